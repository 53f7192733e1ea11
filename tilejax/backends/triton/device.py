"""What the device has."""

from __future__ import annotations

import jax

_HOPPER = 232448


def shared_bytes() -> int:
    """The bytes of shared memory that one program may have; those of Hopper where there is no GPU."""
    if jax.default_backend() != "gpu":
        return _HOPPER
    return getattr(jax.devices()[0], "shared_memory_per_block_optin", _HOPPER)
