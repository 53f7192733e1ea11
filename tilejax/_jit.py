"""Entry points: from a kernel to a function of arrays."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from . import _compat
from . import _transformations as _transformations  # registers vmap and the derivatives
from ._errors import ScopeError, ShapeError, TileError, TileTypeError, UnsupportedError, explained
from ._gradient import Gradient
from .backends import interpreter  # registers the lowering rule
from .backends.registry import Options
from .ir.program import run_kernel
from .language import trace
from .language.dtypes import as_dtype
from .language.view import TensorView
from .transforms.prefetch import prefetched
from .transforms.races import check_races


@dataclass(frozen=True)
class _Traced:
    """A kernel traced at some arguments."""

    program: Any
    operands: list[Any]
    """The captured arrays, then the array arguments."""
    results: Any
    """The pytree of the results."""
    gradient: Gradient | None


@dataclass(frozen=True)
class _Kernel:
    """A kernel, which of its parameters are static, and how to compile it."""

    fn: Callable[..., Any]
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    options: Options

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Traced:
        """Traces the kernel at these arguments."""
        signature = inspect.signature(self.fn)
        bound = signature.bind(*args, **kwargs)
        static = self._static_parameters()
        keyed, tree = jax.tree_util.tree_flatten_with_path(
            {k: v for k, v in bound.arguments.items() if k not in static}, is_leaf=lambda x: x is None
        )
        names = [path[0].key + jax.tree_util.keystr(path[1:]) for path, _ in keyed]
        leaves = [leaf for _, leaf in keyed]
        dynamic = [i for i, leaf in enumerate(leaves) if leaf is not None]
        results: list[Any] = []

        order, count = list(bound.arguments), len(leaves)
        fixed = {k: v for k, v in bound.arguments.items() if k in static}

        def rebuild(values: Sequence[Any]) -> Any:
            """The arguments with other arrays; it outlives the trace, so it must not hold what is traced."""
            seen: list[Any] = [None] * count
            for i, value in zip(dynamic, values, strict=True):
                seen[i] = value
            known = {**jax.tree.unflatten(tree, seen), **fixed}
            again = inspect.BoundArguments(signature, OrderedDict((k, known[k]) for k in order))
            return again.args, again.kwargs

        def body(*arrays: Any) -> list[Any]:
            with trace.frame("kernel", f"kernel {self.name}", root=True) as frame:
                trace.own(arrays, frame)
                views = [
                    TensorView(array, names[i], False) if array.ndim else array
                    for i, array in zip(dynamic, arrays, strict=True)
                ]
                positional, named = rebuild(views)
                outputs, out_tree = jax.tree.flatten(self.fn(*positional, **named))
                results[:] = [out_tree]
                return [self._result(view) for view in outputs] if outputs else self._nothing()

        avals = [_abstract(leaves[i], names[i]) for i in dynamic]
        try:
            jaxpr, consts = _compat.trace(body, avals)
            for const in consts:
                trace.check_open(const, f"kernel {self.name}")
            program = _compat.close(jaxpr, 0, jaxpr.constvars)
            check_races(program)
        except (TypeError, ValueError, AssertionError, IndexError, OverflowError) as error:
            better = explained(error, self.name)
            if better is None:
                raise
            raise better from None

        gradient = Gradient.of(self.fn, self.options, rebuild, len(consts), len(dynamic), results[0])
        return _Traced(program, [*consts, *(leaves[i] for i in dynamic)], results[0], gradient)

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def _static_parameters(self) -> set[str]:
        parameters = list(inspect.signature(self.fn).parameters)
        return {
            *self.static_argnames,
            *(parameters[i] for i in self.static_argnums if -len(parameters) <= i < len(parameters)),
        }

    def _result(self, view: Any) -> Any:
        if not isinstance(view, TensorView):
            raise ScopeError(
                f"kernel {self.name} returns {type(view).__name__} {view!r}: it must return views made by "
                "tilejax.output or tilejax.update"
            )
        if not view.writable:
            raise ScopeError(
                f"kernel {self.name} returns {view.name}, which it may only read: return a tilejax.output, "
                f"or tilejax.update({view.name})"
            )
        if view.owner is not trace.current("a result").root:
            raise ScopeError(
                f"kernel {self.name} returns {view.name}, which belongs to another kernel or call"
            )
        return trace.version(view)

    def _nothing(self) -> Any:
        raise ScopeError(
            f"kernel {self.name} returns nothing: return the views made by tilejax.output or tilejax.update"
        )


def _abstract(leaf: Any, name: str) -> jax.ShapeDtypeStruct:
    try:
        aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    except TypeError:
        raise TileTypeError(
            f"argument {name} is {type(leaf).__name__} {leaf!r}, not an array or a number; "
            "name it in static_argnames if the kernel needs it as it is"
        ) from None
    as_dtype(aval.dtype, f"argument {name}")
    for i, extent in enumerate(aval.shape):
        if not isinstance(extent, int):
            shape = ", ".join(map(str, aval.shape))
            raise ShapeError(
                f"argument {name} has shape ({shape}): dimension {i}, {extent}, must be static, for a kernel "
                "is traced for given extents. What jax.vmap adds to the kernel may be symbolic"
            )
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def as_kernel(kernel: Any, options: Options | None, static_argnums: Any, static_argnames: Any) -> _Kernel:
    """`kernel` as given, or the kernel inside what `jit` returned, whose static parameters it keeps, and
    whose options without others."""
    inside = getattr(kernel, "__wrapped__", None)
    call = getattr(inside, "_tilejax_call", None)
    if call is not None and call is not inside:
        # JAX's transformations hand on the attributes of what they transform.
        if isinstance(kernel, type(jax.jit(_sequence))):
            return as_kernel(inside, options, static_argnums, static_argnames)
        raise TileTypeError(
            f"expected a kernel, got a function made of one by a transformation, {kernel!r}: pass the kernel "
            "itself; what transformations make is called on arrays"
        )
    if call is not None:
        inner = call._tilejax_kernel
        fn, nums, names = inner.fn, inner.static_argnums, inner.static_argnames
        options = options or inner.options
    else:
        if not callable(kernel):
            raise TileTypeError(
                f"expected a kernel (a function of views), got {type(kernel).__name__} {kernel!r}"
            )
        fn, nums, names = kernel, (), ()
    nums = _sequence(static_argnums, int) if static_argnums is not None else nums
    names = _sequence(static_argnames, str) if static_argnames is not None else names
    return _Kernel(fn, nums, names, options or Options())


def _sequence(value: Any, kind: type) -> tuple[Any, ...]:
    return (value,) if isinstance(value, kind) else tuple(value)


def jit(
    kernel: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    backend: str = "auto",
    compiler_params: dict[str, Any] | None = None,
) -> Any:
    """The kernel as a function from arrays to arrays: what `jax.jit` returns, with its `lower`, `trace` and
    `eval_shape`.

    In place of every array of rank >= 1 the kernel gets a view; it returns views made by `output` or
    `update`. Arguments and results may be pytrees. Static and donated arguments are `jax.jit`'s. `backend`
    is "auto", "xla", "triton", "mosaic" or "metal"; one that cannot run the kernel raises
    `UnsupportedError`. `compiler_params` may hold `num_warps`, `num_stages`, `temporary_bytes`, `profile`.

    Also a decorator, bare or with keywords. Inside another `jax.jit` it traces inline.
    """
    if kernel is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            backend=backend,
            compiler_params=compiler_params,
        )
    this = as_kernel(kernel, Options.make(backend, compiler_params), static_argnums, static_argnames)

    @functools.wraps(this.fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        t = this.trace(args, kwargs)
        results = run_kernel(
            t.operands, program=t.program, name=this.name, options=this.options, gradient=t.gradient
        )
        return jax.tree.unflatten(t.results, results)

    call._tilejax_call, call._tilejax_kernel = call, this  # type: ignore[attr-defined]
    return jax.jit(
        call,
        static_argnums=this.static_argnums or None,
        static_argnames=this.static_argnames or None,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        inline=True,
    )


def make_jaxpr(
    kernel: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Any]:
    """`make_jaxpr(kernel)(*args)` is the traced program, a `ClosedJaxpr` of tile primitives and elementwise
    JAX ones.

    Arguments may be `jax.ShapeDtypeStruct`s. Captured arrays come first among its inputs.
    """
    this = as_kernel(kernel, Options(), static_argnums, static_argnames)

    @functools.wraps(this.fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return this.trace(args, kwargs).program

    return traced


def interpret(
    kernel: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    backend: str = "auto",
    compiler_params: dict[str, Any] | None = None,
) -> Any:
    """`interpret(kernel)(*args)` runs the program one tile at a time in NumPy and checks it.

    It takes what `jit` takes, so that one can stand for the other: nothing is compiled, and donated
    arguments stay. Raises `BoundsError` for an access outside a view under `Bounds.ASSUME` and `RaceError`
    for two programs of one `parallel` that touch the same element, one of them storing. Slow: it is for
    tests and for finding faults.
    """
    if kernel is None:
        return functools.partial(
            interpret,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            backend=backend,
            compiler_params=compiler_params,
        )
    this = as_kernel(kernel, Options.make(backend, compiler_params), static_argnums, static_argnames)

    @functools.wraps(this.fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        t = this.trace(args, kwargs)
        if any(isinstance(x, Tracer) for x in t.operands):
            raise UnsupportedError(
                f"kernel {this.name}: interpret runs on values, but an argument or a captured array is "
                "traced: call it outside of jax.jit, grad and vmap, or use tilejax.jit"
            )
        avals = [v.aval for v in t.program.jaxpr.invars]
        arrays = [np.asarray(x, a.dtype) for x, a in zip(t.operands, avals, strict=True)]
        return jax.tree.unflatten(t.results, [jnp.asarray(out) for out in _interpreted(t.program, arrays)])

    return run


def _interpreted(program: Any, arrays: list[Any]) -> list[Any]:
    """Runs pipelines as prologue, steady state and epilogue, where that is safe: a check that it changes
    nothing. What is wrong with a program is said of its steps in order, as they were written.
    """
    try:
        return interpreter.run(prefetched(program), arrays)
    except TileError:
        return interpreter.run(program, arrays)
