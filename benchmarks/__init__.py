"""The documented kernels timed against the `jnp` that a user would write: `python -m benchmarks --help`."""
