"""Four CPU devices for the multi-device tests. Warnings are errors by pyproject.toml."""

import jax

jax.config.update("jax_num_cpu_devices", 4)
