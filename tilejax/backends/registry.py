"""Which backend runs a program: the user's options and the platform decide; what can't run is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._errors import UnsupportedError
from ..ir.types import Scope

BACKENDS = ("auto", "xla", "triton", "mosaic", "metal")
DEFAULTS: dict[str, Any] = {"num_warps": None, "num_stages": None, "temporary_bytes": 2**25, "profile": None}


@dataclass(frozen=True)
class Options:
    """What the user asked of the compiler."""

    backend: str = "auto"
    params: tuple[tuple[str, Any], ...] = field(default=())

    @classmethod
    def make(cls, backend: str, compiler_params: dict[str, Any] | None) -> Options:
        if backend not in BACKENDS:
            raise UnsupportedError(f"unknown backend {backend!r}; it is one of {', '.join(BACKENDS)}")
        params = compiler_params or {}
        for key in params:
            if key not in DEFAULTS:
                raise UnsupportedError(
                    f"unknown compiler_params key {key!r}; the keys are {', '.join(DEFAULTS)}"
                )
        return cls(backend, tuple(sorted(params.items())))

    def __getitem__(self, key: str) -> Any:
        return dict(self.params).get(key, DEFAULTS[key])


def choose(program: Any, options: Options, name: str, platforms: tuple[str, ...]) -> str:
    """The backend that runs a program on `platforms`; `UnsupportedError` if the one asked for can't, or
    lacks a scope."""
    backend = "xla" if options.backend == "auto" else options.backend
    if backend in ("mosaic", "metal"):
        raise UnsupportedError(
            f'kernel {name}: backend "{backend}" is not built yet; use "xla", "triton" or "auto"'
        )
    if backend == "triton" and not set(platforms) <= {"cuda", "rocm"}:
        raise UnsupportedError(
            f'kernel {name}: backend "triton" needs an NVIDIA GPU, but the kernel is compiled for '
            f'{", ".join(platforms)}; use "xla" or "auto" there'
        )
    _check_scopes(program.jaxpr, name, backend)
    return backend


def _check_scopes(jaxpr: Any, name: str, backend: str) -> None:
    for eqn in jaxpr.eqns:
        scope = eqn.params.get("scope")
        if eqn.primitive.name == "tile_parallel" and scope not in _SCOPES[backend]:
            raise UnsupportedError(
                f"kernel {name}: parallel({', '.join(eqn.params['names'])}) asks for scope {scope.name}, "
                f"which backend {backend} does not have; it takes "
                f"{', '.join(s.name for s in _SCOPES[backend])}",
                loc=eqn.params["loc"],
            )
        if "body" in eqn.params:
            _check_scopes(eqn.params["body"].jaxpr, name, backend)


_SCOPES = {
    "xla": (Scope.AUTOMATIC, Scope.WORKER, Scope.VECTOR),
    "triton": (Scope.AUTOMATIC, Scope.GROUP, Scope.WORKER),
}
