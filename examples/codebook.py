"""A captured array: weights stored as 4-bit codes, decoded through a table that the kernel closes over."""

import jax.numpy as jnp
import numpy as np

import tilejax as tj


# --8<-- [start:decoder]
def decoder(table, *, block=256):
    """A function from int8 codes (rows, columns) to the values that `table` gives them."""

    @tj.jit
    def decode(codes):
        values = tj.output(codes.shape, table.dtype)
        book = tj.view(table)  # a read-only view of the captured array
        entry = tj.axis("entry", table.shape[0])
        blocks = tj.axis("blocks", tj.cdiv(codes.shape[0], block))
        r, c = tj.axis("row", block), tj.axis("column", codes.shape[1])

        @tj.parallel(blocks)
        def _(nest):
            origin = tj.coord(nest.index() * block, 0)
            code = codes[origin, tj.shape(r, c)]
            known = book[tj.coord(0), tj.shape(entry)]
            values(origin, tj.shape(r, c)).store(tj.gather(known, code, entry))

        return values

    return decode


# --8<-- [end:decoder]


def main(rows=1024, columns=512) -> float:
    """Round normal weights to 16 levels, decode them, print and return the mean error."""
    weights = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    levels = np.quantile(weights, (np.arange(16) + 0.5) / 16).astype(np.float32)
    codes = np.abs(weights[:, :, None] - levels).argmin(-1).astype(np.int8)
    decoded = np.asarray(decoder(jnp.asarray(levels))(codes))
    assert (decoded == levels[codes]).all()
    error = float(np.abs(decoded - weights).mean())
    print(
        f"{weights.nbytes // 1024} KiB of weights as {codes.size // 2 // 1024} KiB of 4-bit codes, "
        f"mean error {error:.3f}"
    )
    return error


if __name__ == "__main__":
    main()
