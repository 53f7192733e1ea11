"""What the Metal plugins of JAX take, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..._errors import UnsupportedError

PLATFORMS = {"METAL": "jax-metal", "metal": "mlx", "mps": "mlx", "mtl": "mlx"}
"""The platform names of the plugins, each with its profile: Apple's jax-metal, metaljax, jax-mps and
jax-graft."""

_OPERATIONS = """
abs add and bitcast_convert broadcast_in_dim case ceil clamp compare concatenate constant convert cosine
divide dot_general dynamic_slice dynamic_update_slice exponential exponential_minus_one floor gather iota
is_finite log log_plus_one logistic maximum minimum multiply negate not optimization_barrier or pad power
reduce remainder reshape return reverse round_nearest_even rsqrt select shift_left shift_right_arithmetic
shift_right_logical sign sine slice sort sqrt subtract tanh transpose while xor
"""
_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32"


@dataclass(frozen=True)
class Profile:
    """What one generation of plugins reads."""

    name: str
    version: str
    """The StableHLO version of its portable artifacts."""
    operations: frozenset[str]
    """The StableHLO operations that it runs."""
    dtypes: frozenset[str]
    refused: frozenset[tuple[str, str]] = frozenset()
    """Pairs of operation and operand dtype that it does not run."""
    max_reduce_rank: int = 4


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "jax-metal",
            "1.0.0",
            frozenset(_OPERATIONS.split()),
            frozenset(_DTYPES.split()),
            frozenset({("dot_general", "bfloat16")}),
        ),
        Profile("mlx", "1.9.0", frozenset(_OPERATIONS.split()), frozenset(_DTYPES.split())),
    )
}


def profile_of(asked: str | None, platforms: Sequence[str], what: str) -> Profile | None:
    """The profile of a module for `platforms`: None if none of them is a Metal platform. A module for several
    platforms is one text that each must read, so it has the strictest of their profiles. `what` is what a
    message calls it."""
    found = {PLATFORMS[p] for p in platforms if p in PLATFORMS}
    if not found:
        return None
    if asked is not None and asked != "jax-metal" and "jax-metal" in found:
        raise UnsupportedError(
            f'{what}: profile "{asked}" was asked for, but the kernel is lowered for platform METAL, '
            'whose plugin reads profile "jax-metal" only; leave `profile` out, or lower for metal, mps or mtl'
        )
    return PROFILES[asked or min(found)]
