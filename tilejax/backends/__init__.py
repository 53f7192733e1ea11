"""From a program to a machine: an interpreter, and a lowering for each kind of device."""
