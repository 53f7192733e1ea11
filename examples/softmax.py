"""A fused softmax: the rows are read once, reduced twice and written once."""

import jax
import numpy as np

import tilejax as tj
from examples.timing import warm


# --8<-- [start:softmax]
@tj.jit(static_argnames="block_rows")
def softmax(x, *, block_rows=64):
    y = tj.output_like(x)
    blocks = tj.axis("blocks", tj.cdiv(x.shape[0], block_rows))
    r, c = tj.axis("row", block_rows), tj.axis("column", x.shape[1])

    @tj.parallel(blocks)
    def _(nest):
        origin = tj.coord(nest.index() * block_rows, 0)
        value = x[origin, tj.shape(r, c)]
        exponentials = tj.exp(value - tj.max(value, c))
        y(origin, tj.shape(r, c)).store(exponentials / tj.sum(exponentials, c))

    return y


# --8<-- [end:softmax]


def main(rows=4096, columns=1000) -> float:
    """Print the times of `softmax` and `jax.nn.softmax`; return their largest difference."""
    x = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    difference = float(np.abs(softmax(x) - jax.nn.softmax(x)).max())
    tile, whole = warm(softmax, x), warm(jax.jit(jax.nn.softmax), x)
    print(f"softmax of {rows} x {columns}: tile {tile * 1e3:.2f} ms, jax.nn {whole * 1e3:.2f} ms")
    print(f"largest difference {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
