"""Exported functions in the form that a profile's plugins read."""

from __future__ import annotations

import dataclasses

from jax import export
from jax.extend.mlir.dialects import stablehlo

from ..._errors import UnsupportedError
from .profiles import PROFILES, Profile, profile_of


def profile_of_exported(exported: export.Exported) -> Profile:
    """The profile of the platforms that `exported` is for."""
    profile = profile_of(None, exported.platforms, exported.fun_name)
    if profile is None:
        raise UnsupportedError(
            f"{exported.fun_name} is exported for {', '.join(exported.platforms)}; a portable artifact "
            'for Metal is of an export for its platforms, as jax.export.export(fn, platforms=["METAL"])'
        )
    return profile


def portable(exported: export.Exported, profile: str | None = None) -> export.Exported:
    """`exported` with its module as a portable artifact of the profile's StableHLO version, which
    `serialize()` writes and `jax.export.deserialize` reads. `UnsupportedError` if it holds what that version
    does not have."""
    found = profile_of_exported(exported) if profile is None else PROFILES[profile]
    try:
        module = stablehlo.serialize_portable_artifact_str(exported.mlir_module(), found.version)
    except ValueError as error:
        raise UnsupportedError(
            f"{exported.fun_name}: its module can't be written in StableHLO {found.version}, which profile "
            f'"{found.name}" reads: {str(error).splitlines()[0]}'
        ) from None
    return dataclasses.replace(exported, mlir_module_serialized=module)
