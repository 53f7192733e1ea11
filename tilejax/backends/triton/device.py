"""What the device has that a program is compiled for."""

from __future__ import annotations

from typing import Any

import jax

_HOPPER = 227 * 1024
_KIBIBYTES = {"V100": 96, "T4": 64, "A100": 163, "A10": 99, "A40": 99, "L4": 99, "RTX": 99}
"""The shared memory that a program may have at most, by a part of the device's name: what CUDA's programming
guide says of its compute capability. Others have what Hopper has."""
_CORES = 132
"""The multiprocessors of an H200."""


def is_there() -> bool:
    """Whether there is a GPU to compile for: the abstract device of the mesh in use, or a real one."""
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    return (abstract is not None and abstract.platform == "gpu") or jax.default_backend() == "gpu"


def shared_bytes() -> int:
    """The bytes of shared memory that one program may have: on the abstract device of the mesh in use, if it
    has one; else on the GPU that is there; without any, on Hopper."""
    if (abstract := _abstract()) is not None:
        names = (name for name in _KIBIBYTES if name in abstract.device_kind)
        return 1024 * _KIBIBYTES[name] if (name := next(names, None)) else _HOPPER
    return _of_device("shared_memory_per_block_optin", _HOPPER)


def room_for_loads() -> int:
    """The bytes of that which loads may take: some are left to exchanges between threads."""
    return shared_bytes() - 24 * 1024


def cores() -> int:
    """How many multiprocessors run programs, of the same device."""
    if (abstract := _abstract()) is not None:
        return abstract.num_cores or _CORES
    return _of_device("core_count", _CORES)


def _abstract() -> Any:
    return jax.sharding.get_abstract_mesh().abstract_device


def _of_device(attribute: str, default: int) -> int:
    if jax.default_backend() != "gpu":
        return default
    return getattr(jax.devices()[0], attribute, default)
