"""Exported functions in the form that a profile's plugins read."""

from __future__ import annotations

import dataclasses

from jax import export
from jax.extend.mlir.dialects import stablehlo

from ..._errors import TileTypeError, UnsupportedError
from .profiles import profile_of


def portable(exported: export.Exported, profile: str | None = None) -> export.Exported:
    """`exported`, for a Metal platform, with its module as a portable artifact at the StableHLO version of
    the profile, which is by default that of the platform. `mlir_module_serialized` is the artifact,
    `serialize()` writes all, and `jax.export.deserialize` reads it. Raises `UnsupportedError` for other
    platforms, and for a module that the version has no words for."""
    if not isinstance(exported, export.Exported):
        raise TileTypeError(
            f"portable: expected what jax.export.export(fn)(*args) returns, got {type(exported).__name__} "
            f'{exported!r}: export the function first, with platforms=["METAL"]'
        )
    found = profile_of(profile, exported.platforms, exported.fun_name)
    if found is None:
        raise UnsupportedError(
            f"{exported.fun_name} is exported for {', '.join(exported.platforms)}: a portable artifact for "
            'Metal is of an export for its platforms, as jax.export.export(fn, platforms=["METAL"])'
        )
    try:
        module = stablehlo.serialize_portable_artifact_str(exported.mlir_module(), found.version)
    except ValueError as error:
        raise UnsupportedError(
            f"{exported.fun_name}: its module can't be written in StableHLO {found.version}, which profile "
            f'"{found.name}" reads: {str(error).splitlines()[0]}'
        ) from None
    return dataclasses.replace(exported, mlir_module_serialized=module)
