"""Which backend runs a program: the user's options and the platform decide; what can't run is an error."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._errors import TileTypeError, UnsupportedError
from .metal.profiles import PLATFORMS, PROFILES, profile_of
from .placement import METAL, XLA, check_placement, nvidia
from .triton import lower as triton
from .triton.device import is_there, shared_bytes
from .xla.evaluate import TEMPORARY_BYTES

BACKENDS = ("auto", "xla", "triton", "mosaic", "metal")
DEFAULTS: dict[str, Any] = {
    "num_warps": None,
    "num_stages": None,
    "temporary_bytes": TEMPORARY_BYTES,
    "profile": None,
}


@dataclass(frozen=True)
class Options:
    """What the user asked of the compiler."""

    backend: str = "auto"
    params: tuple[tuple[str, Any], ...] = field(default=())

    @classmethod
    def make(cls, backend: str, compiler_params: dict[str, Any] | None) -> Options:
        if backend not in BACKENDS:
            raise UnsupportedError(f"unknown backend {backend!r}; it is one of {', '.join(BACKENDS)}")
        params = {} if compiler_params is None else compiler_params
        if not isinstance(params, Mapping):
            raise TileTypeError(f"compiler_params: expected a dict, got {type(params).__name__} {params!r}")
        for key, value in params.items():
            if key not in DEFAULTS:
                raise UnsupportedError(
                    f"unknown compiler_params key {key!r}; the keys are {', '.join(DEFAULTS)}"
                )
            _check_param(key, value)
        return cls(backend, tuple(sorted(params.items())))

    def __getitem__(self, key: str) -> Any:
        return dict(self.params).get(key, DEFAULTS[key])


def _check_param(key: str, value: Any) -> None:
    if value is None and DEFAULTS[key] is None:
        return
    if key == "profile":
        fits, expected = value in PROFILES, " or ".join(map(repr, PROFILES))
    else:
        fits, expected = type(value) is int and value >= 0, "an int >= 0"
    if not fits:
        raise UnsupportedError(f"compiler_params: {key} must be {expected}, got {value!r}")


def launches(program: Any, options: Options, name: str, platforms: tuple[str, ...]) -> Any:
    """The program as launches of Triton, a closed jaxpr, if "auto" takes that: where there is a GPU, and
    Triton takes the program. Else None."""
    if options.backend != "auto" or platforms != ("cuda",) or not is_there():
        return None
    with contextlib.suppress(UnsupportedError):
        check_placement(program, nvidia("triton", shared_bytes()), name)
        return triton.traced(program, options["num_warps"], options["num_stages"])
    return None


def choose(program: Any, options: Options, name: str, platforms: tuple[str, ...]) -> str:
    """The backend that runs a program on `platforms`, but for `launches`; `UnsupportedError` if the one asked
    for can't, or has no place for its programs or their memories."""
    backend = choose_for_platforms(options, f"kernel {name}", platforms)
    target = nvidia(backend, shared_bytes()) if backend == "triton" else TARGETS[backend]
    check_placement(program, target, name)
    return backend


def choose_for_platforms(options: Options, what: str, platforms: tuple[str, ...]) -> str:
    """The backend that runs `what`, a kernel or its derivative, on `platforms`."""
    metal = profile_of(options["profile"], platforms, what) is not None
    if options.backend == "auto":
        return "metal" if metal else "xla"
    backend = options.backend
    if backend == "mosaic":
        raise UnsupportedError(f'{what}: backend "mosaic" is not built yet; use "xla", "triton" or "auto"')
    if backend == "metal" and not metal:
        raise UnsupportedError(
            f'{what}: backend "metal" needs a device of platform {", ".join(PLATFORMS)}, but it is compiled '
            f"for {', '.join(platforms)}, and nothing runs on another device in silence: install a Metal "
            'plugin of JAX, use backend "auto", or lower without a device, '
            '.lower(lowering_platforms=("METAL",)) or jax.export.export(fn, platforms=["METAL"])'
        )
    if backend == "triton" and not set(platforms) <= {"cuda", "rocm"}:
        raise UnsupportedError(
            f'{what}: backend "triton" needs an NVIDIA GPU, but the kernel is compiled for '
            f'{", ".join(platforms)}; use "xla" or "auto" there'
        )
    return backend


TARGETS = {"xla": XLA, "triton": nvidia("triton"), "metal": METAL}
"""What each backend offers."""
