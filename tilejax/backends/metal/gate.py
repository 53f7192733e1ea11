"""Checks before a module goes out: the program, at the user's lines, and the operations made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jax.extend.mlir import ir

from ... import _compat
from ..._errors import UnsupportedError, location_of
from ...ir.primitives import PRIMITIVES
from .profiles import Profile
from .rewrite import KNOWN

_BECOMES = {"tile_mma": "dot_general"}
"""The operation that a tile primitive becomes, where a profile may refuse it."""
_ELEMENTS = {
    "i1": "bool",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"ui{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}
_STRUCTURE = frozenset({"func.call", "func.func", "func.return"})
_ROWS = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"


def check_program(program: Any, profile: Profile, name: str) -> None:
    """`UnsupportedError`, at the user's line, for an operation or a dtype that the profile lacks."""
    for eqn in _equations(program.jaxpr):
        called = eqn.primitive.name
        known = called in PRIMITIVES or called in KNOWN
        avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        # Under x64 a Python number is a weak float64, which takes another dtype before it is used.
        for dtype in (str(a.dtype) for a in avals if hasattr(a, "dtype") and not a.weak_type):
            if (_BECOMES.get(called, called), dtype) in profile.refused:
                why = "has no such products: cast the operands to float32"
            elif dtype not in profile.dtypes:
                why = f"has no {dtype}: cast to float32" if "float" in dtype else f"has no {dtype}"
            elif not known:
                why = "has no such operation"
            else:
                continue
            loc = eqn.params.get("loc") if called in PRIMITIVES else location_of(_compat.frames(eqn))
            made = f" ({_BECOMES[called]})" if called in _BECOMES else ""
            raise UnsupportedError(
                f"kernel {name}: {called}{made} of {dtype}, but backend metal with profile "
                f'"{profile.name}" {why}',
                loc=loc,
            )


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those inside one before it."""
    for eqn in jaxpr.eqns:
        for param in eqn.params.values():
            if hasattr(param, "eqns") or hasattr(param, "jaxpr"):
                yield from _equations(getattr(param, "jaxpr", param))
        yield eqn


def check_operations(operations: Iterable[Any], module: Any, profile: Profile, name: str) -> None:
    """`UnsupportedError` for an operation, of these and the functions of `module` that they call, that is not
    in the profile's whitelist or not in the form that it takes there."""
    functions = {
        op.attributes["sym_name"].value: op for op in module.body.operations if "sym_name" in op.attributes
    }
    seen: set[str] = set()

    def visit(op: Any) -> None:
        fault = _fault(op, profile)
        if fault is not None:
            raise UnsupportedError(
                f'{name}: {op.name} of {", ".join(_elements(op))} {fault}; profile "{profile.name}"'
            )
        if op.name == "func.call" and (callee := op.attributes["callee"].value) not in seen:
            seen.add(callee)
            visit(functions[callee].operation)
        for region in op.regions:
            for block in region:
                for inner in block.operations:
                    visit(inner.operation)

    for op in operations:
        visit(op.operation)


def _elements(op: Any) -> list[str]:
    """The element types of operands and results, each once, by the names of JAX where it has them."""
    types = [v.type for v in (*op.operands, *op.results)]
    texts = [str(t.element_type if isinstance(t, ir.RankedTensorType) else t) for t in types]
    return list(dict.fromkeys(_ELEMENTS.get(t, t) for t in texts))


def _fault(op: Any, profile: Profile) -> str | None:
    """Why the profile does not take an operation; None if it does."""
    dialect, _, kind = op.name.partition(".")
    if op.name in _STRUCTURE:
        return None
    if dialect != "stablehlo" or kind not in profile.operations:
        return "is not in the whitelist"
    elements = _elements(op)
    if missing := [e for e in elements if e not in profile.dtypes]:
        return f"has {missing[0]}, which is not in the whitelist"
    if refused := [e for e in elements if (kind, e) in profile.refused]:
        return f"is not in the whitelist for {refused[0]}"
    shape = _FORMS.get(kind)
    return None if shape is None else shape(op, profile)


def _reduce(op: Any, profile: Profile) -> str | None:
    if len(op.operands) != 2:
        return "reduces more than one array"
    rank = op.operands[0].type.rank
    return None if rank <= profile.max_reduce_rank else f"reduces an array of rank {rank}"


def _compare(op: Any, _: Profile) -> str | None:
    kind = str(op.attributes["compare_type"]) if "compare_type" in op.attributes else ""
    return "compares in the total order of floats" if "TOTALORDER" in kind else None


def _gather(op: Any, _: Profile) -> str | None:
    rows = _ROWS in str(op.attributes["dimension_numbers"])
    return None if rows and op.operands[0].type.rank == 2 else "is not of the rows of a matrix"


def _sort(op: Any, _: Profile) -> str | None:
    return "sorts floats" if "float" in _ELEMENTS[str(op.operands[0].type.element_type)] else None


_FORMS = {"reduce": _reduce, "compare": _compare, "gather": _gather, "sort": _sort}
