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


def check_backend(program: Any, options: Options, name: str) -> None:
    """`UnsupportedError` for a backend that is not built, and for a scope that a CPU does not have."""
    if options.backend in ("triton", "mosaic", "metal"):
        raise UnsupportedError(
            f'kernel {name}: backend "{options.backend}" is not built yet; use "xla" or "auto"'
        )
    _check_scopes(program.jaxpr, name)


def _check_scopes(jaxpr: Any, name: str) -> None:
    for eqn in jaxpr.eqns:
        scope = eqn.params.get("scope")
        if eqn.primitive.name == "tile_parallel" and scope not in _XLA_SCOPES:
            raise UnsupportedError(
                f"kernel {name}: parallel({', '.join(eqn.params['names'])}) asks for scope {scope.name}, "
                f"which backend xla does not have; it takes {', '.join(s.name for s in _XLA_SCOPES)}",
                loc=eqn.params["loc"],
            )
        if "body" in eqn.params:
            _check_scopes(eqn.params["body"].jaxpr, name)


_XLA_SCOPES = (Scope.AUTOMATIC, Scope.WORKER, Scope.VECTOR)
