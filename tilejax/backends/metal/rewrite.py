"""A jaxpr of `lax` on whole arrays, read again with a rule for each primitive that the Metal plugins lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ..._errors import UnsupportedError
from ...ir.jaxprs import CALLS, bind, held, literal
from . import arrays, convolution, elementwise, indexing, scatter
from .elementwise import NoForm
from .profiles import Profile

DIRECT = frozenset(
    """
    abs add add_any and bitcast_convert_type broadcast_in_dim ceil clamp concatenate cos div eq exp expm1
    floor ge gt integer_pow iota is_finite le log log1p log2 logistic lt max min mul ne neg not
    one_minus_square optimization_barrier or pow rem reshape rev rsqrt select_n sign sin slice split sqrt
    squeeze sub tanh transpose xor
    """.split()  # noqa: SIM905
)
"""Primitives that JAX lowers to what every profile takes."""

RULES: dict[str, Callable[..., Any]] = {
    **elementwise.RULES,
    **arrays.RULES,
    **indexing.RULES,
    **scatter.RULES,
    **convolution.RULES,
}

INLINED = CALLS | {"checkpoint", "custom_vjp_call"}
"""Primitives that only hold a jaxpr: what is rewritten here has been differentiated."""


@dataclass(frozen=True)
class Rewriter:
    """Reads jaxprs for one profile; `name` is what the messages call the whole."""

    profile: Profile
    name: str

    def run(self, closed: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr, closed or without consts."""
        jaxpr: Any = getattr(closed, "jaxpr", closed)
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))
        bytes_: dict[Any, Any] = {}  # what was widened from eight bits

        def read(var: Any) -> Any:
            return literal(var) if isinstance(var, Literal) else env[var]

        for var in (*jaxpr.constvars, *jaxpr.invars):
            self._check(var, "an operand")
        for eqn in jaxpr.eqns:
            name, values = eqn.primitive.name, [read(v) for v in eqn.invars]
            if name == "convert_element_type" and _is_byte(values[0]):
                bytes_[eqn.outvars[0]] = values[0]
            if name == "dot_general":
                eqn = eqn.replace(params=eqn.params | {"preferred_element_type": eqn.outvars[0].aval.dtype})
                values = [v if isinstance(v, Literal) else bytes_.get(v, env[v]) for v in eqn.invars]
            for var in eqn.outvars:
                self._check(var, name)
            env.update(zip(eqn.outvars, self._apply(eqn, values), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _apply(self, eqn: Any, values: list[Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        for value in values:
            if (name, str(value.dtype)) in self.profile.refused:
                raise UnsupportedError(
                    f'{self.name}: {name} of {value.dtype} is not in profile "{self.profile.name}"; cast its '
                    "operands to float32"
                )
        if name in RULES:
            try:
                out = RULES[name](*values, **params)
            except NoForm as error:
                raise UnsupportedError(f"{self.name}: backend metal has no form for {error}") from None
        elif name in INLINED:
            out = self.run(held(eqn), values)
        elif name in _CONTROL:
            out = _CONTROL[name](self, values, **params)
        elif name == "scan":  # the same loop around another body
            body = rewrite(params["jaxpr"], self.profile, self.name)
            out = eqn.primitive.bind(*values, **params | {"jaxpr": body})
        elif name in DIRECT:
            out = bind(eqn, values)
        else:
            kinds = ", ".join(dict.fromkeys(str(v.dtype) for v in values)) or str(eqn.outvars[0].aval.dtype)
            raise UnsupportedError(
                f'{self.name}: operation {name} of {kinds} is not in profile "{self.profile.name}", and '
                'backend metal has no other form for it; use backend "xla" on another device'
            )
        return out if isinstance(out, (list, tuple)) else [out]

    def _check(self, var: Any, what: str) -> None:
        dtype = str(var.aval.dtype)
        if dtype not in self.profile.dtypes:
            raise UnsupportedError(
                f'{self.name}: {what} is {dtype}, which profile "{self.profile.name}" does not have; it '
                f"takes {', '.join(sorted(self.profile.dtypes))}"
            )


def _is_byte(x: Any) -> bool:
    return np.issubdtype(x.dtype, np.integer) and x.dtype.itemsize == 1


def _while(
    reader: Rewriter,
    values: list[Any],
    *,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
) -> Any:
    tests, consts = values[:cond_nconsts], values[cond_nconsts : cond_nconsts + body_nconsts]
    batched = cond_jaxpr.jaxpr.outvars[0].aval.ndim > 0

    def running(state: list[Any]) -> Any:
        return reader.run(cond_jaxpr, [*tests, *state])[0]

    def going_on(state: list[Any]) -> Any:
        here = running(state)
        return lax.reduce_or(here, tuple(range(here.ndim))) if batched else here

    def step(state: list[Any]) -> list[Any]:
        new = reader.run(body_jaxpr, [*consts, *state])
        if not batched:
            return new
        here = running(state)  # each of a batch, whose dimensions come first, stops for itself
        spread = [lax.broadcast_in_dim(here, x.shape, range(here.ndim)) for x in new]
        return [lax.select(s, x, old) for s, x, old in zip(spread, new, state, strict=True)]

    return lax.while_loop(going_on, step, values[cond_nconsts + body_nconsts :])


def _cond(reader: Rewriter, values: list[Any], *, branches: Any, **_: Any) -> Any:
    index, *operands = values
    return lax.switch(
        lax.convert_element_type(index, np.int32),
        [lambda *xs, branch=branch: reader.run(branch, xs) for branch in branches],
        *operands,
    )


_CONTROL: dict[str, Callable[..., Any]] = {"while": _while, "cond": _cond}

KNOWN = frozenset({*DIRECT, *RULES, *INLINED, *_CONTROL, "scan"})
"""All primitives that are taken."""


def rewrite(closed: Any, profile: Profile, name: str) -> Any:
    """`closed` as a closed jaxpr of primitives that the profile's plugins run; `UnsupportedError`, which
    begins with `name`, where there is none."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *operands: Rewriter(profile, name).run(closed, operands))(*avals)
