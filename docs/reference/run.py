import jax.numpy as jnp
import numpy as np

import tilejax as tj

i, j, k = tj.axis("i", 2), tj.axis("j", 3), tj.axis("k", 4)


def run(fn, out, *operands, dtype=jnp.float32):
    """`fn` of whole arrays as tiles, as an array with the axes `out`; an operand is (array, axes)."""

    @tj.jit
    def kernel(*views):
        result = tj.output(tuple(axis.extent for axis in out), dtype)

        @tj.parallel(1)
        def _(nest):
            pairs = zip(views, operands, strict=True)
            tiles = [view[tj.coord(*[0] * view.ndim), tj.shape(*axes)] for view, (_, axes) in pairs]
            result(tj.coord(*[0] * len(out)), tj.shape(*out)).store(fn(*tiles))

        return result

    return np.asarray(kernel(*[array for array, _ in operands]))
