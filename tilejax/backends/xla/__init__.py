"""The grid vectoriser: a program becomes whole-array `lax`, which runs on any platform of XLA."""
