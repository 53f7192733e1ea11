"""tilejax: tile kernels for JAX that are plain pure functions."""

from . import kernels, language, metal
from ._errors import (
    AxisError,
    BoundsError,
    CarryError,
    DtypeError,
    LayoutError,
    RaceError,
    ReadOnlyError,
    ScopeError,
    ShapeError,
    TileError,
    TileTypeError,
    UnsupportedError,
)
from ._explain import explain
from ._jit import interpret, jit, make_jaxpr
from .language import *  # noqa: F403

__all__ = [
    "AxisError",
    "BoundsError",
    "CarryError",
    "DtypeError",
    "LayoutError",
    "RaceError",
    "ReadOnlyError",
    "ScopeError",
    "ShapeError",
    "TileError",
    "TileTypeError",
    "UnsupportedError",
    "explain",
    "interpret",
    "jit",
    "kernels",
    "make_jaxpr",
    "metal",
]
__all__ += language.__all__

__version__ = "0.1.0"
