"""Metal through JAX's plugins: a program is the same `lax` on whole arrays as elsewhere, rewritten into the
few StableHLO operations that the plugins run, and checked.

No Mac was at hand: what is here was lowered, checked and emulated on Linux. `profiles` says what the plugins
take, `rewrite` reads a program with one rule for each primitive that they lack, `gate` checks programs and
modules, `portable` writes modules for old readers.
"""
