"""Run a kernel through the compiler and through the interpreter, and hold both to an independent value."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import tilejax as tj

RUNNERS: dict[str, Callable[..., Any]] = {"jit": tj.jit, "interpret": tj.interpret}
if jax.default_backend() == "gpu":  # where plain `jit` is one of these
    del RUNNERS["jit"]
    RUNNERS |= {name: functools.partial(tj.jit, backend=name) for name in ("xla", "triton")}


def same(got: Any, want: Any, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Equal tree, shapes, dtypes and values; NaN equals NaN. Exact unless a tolerance is given.

    A leaf of ``want`` is an array of the dtype that the result must have.
    """
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for path, wanted in jax.tree.leaves_with_path(want):
        wanted = np.asarray(wanted)
        found = np.asarray(dict(jax.tree.leaves_with_path(got))[path])
        where = jax.tree_util.keystr(path)
        assert found.shape == wanted.shape, f"{where}: shape {found.shape}, wanted {wanted.shape}"
        assert found.dtype == wanted.dtype, f"{where}: dtype {found.dtype}, wanted {wanted.dtype}"
        if rtol == atol == 0.0:
            np.testing.assert_array_equal(_plain(found), _plain(wanted), err_msg=where)
        else:
            np.testing.assert_allclose(_plain(found), _plain(wanted), rtol=rtol, atol=atol, err_msg=where)


def _plain(x: np.ndarray) -> np.ndarray:
    """The same values in a dtype that NumPy's comparisons know (bfloat16 and float8 are not)."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return x.astype(np.float64) if jax.numpy.issubdtype(x.dtype, np.floating) else x


def both(
    kernel: Callable[..., Any], *args: Any, want: Any, rtol: float = 0.0, atol: float = 0.0, refused: str = ""
) -> None:
    """``tj.jit(kernel)(*args)``, on a GPU by each backend, and ``tj.interpret(kernel)(*args)`` are ``want``.

    ``refused`` is what backend triton says of the kernel, where it can't run it.
    """
    for name, runner in RUNNERS.items():
        if refused and name == "triton":
            with pytest.raises(tj.UnsupportedError, match=refused):
                runner(kernel)(*args)
            continue
        try:
            same(runner(kernel)(*args), want, rtol=rtol, atol=atol)
        except Exception as error:
            error.add_note(f"run by {name}")
            raise


def whole(spec: str, fn: Callable[..., Any], want: Any) -> Callable[..., Any]:
    """A kernel of one program: ``fn(axes, *tiles)`` from whole arrays to the tiles of ``want``'s tree.

    ``spec`` names the axes of each argument ("rc,c": a matrix, and a vector along its columns); ``fn`` finds
    them as attributes of ``axes``. Results are stored by position, so their axis order is checked, and their
    dtypes are compared here, where no store has widened them yet. A rank-0 argument has an empty name.
    """
    want = jax.tree.map(np.asarray, want)

    def kernel(*args: Any) -> Any:
        axes: dict[str, Any] = {}
        outputs = jax.tree.map(lambda w: tj.output(w.shape or (1,), w.dtype), want)

        @tj.parallel(1)
        def _(nest: Any) -> None:
            tiles = []
            for names, array in zip(spec.replace(" ", "").split(","), args, strict=True):
                for name, extent in zip(names, array.shape if names else (), strict=True):
                    axes.setdefault(name, tj.axis(name, extent))
                tiles.append(_load(array, [axes[name] for name in names]) if names else array)
            results = fn(SimpleNamespace(**axes, nest=nest), *tiles)
            for (path, wanted), result, output in zip(
                jax.tree.leaves_with_path(want),
                jax.tree.leaves(results, is_leaf=lambda x: isinstance(x, tj.Tile)),
                jax.tree.leaves(outputs, is_leaf=lambda x: isinstance(x, tj.TensorView)),
                strict=True,
            ):
                where = jax.tree_util.keystr(path)
                dtype = getattr(result, "dtype", wanted.dtype)
                assert dtype == wanted.dtype, f"{where}: dtype {dtype}, wanted {wanted.dtype}"
                output(tj.coord(*[0] * output.ndim), tj.shape(*output.shape)).store(result)

        return outputs

    return kernel


def _load(view: Any, axes: list[Any]) -> tj.Tile:
    return view[tj.coord(*[0] * len(axes)), tj.shape(*axes)]


def tiles(
    spec: str, fn: Callable[..., Any], *args: Any, want: Any, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """``both`` of ``whole``: what ``fn`` computes from whole tiles is ``want``."""
    shaped = jax.tree.map(lambda w: np.reshape(w, np.shape(w) or (1,)), want)
    both(whole(spec, fn, want), *args, want=shaped, rtol=rtol, atol=atol)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Standard normal numbers rounded to ``dtype``."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def only(items: Any) -> Any:
    """The one item."""
    (item,) = items
    return item


def equations(jaxpr: Any) -> list[str]:
    """The names of all primitives, those of inner jaxprs included."""
    names = []
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        names.append(eqn.primitive.name)
        for param in eqn.params.values():
            for value in param if isinstance(param, (tuple, list)) else [param]:
                if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                    names += equations(value)
    return names
