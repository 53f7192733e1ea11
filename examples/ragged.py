"""A ragged kernel: every row has its own length, and its program loops only that far."""

import numpy as np

import tilejax as tj


# --8<-- [start:ragged_mean]
@tj.jit(static_argnames="block")
def ragged_mean(x, lengths, *, block=64):
    """The mean of the first `lengths[i]` entries of each row; 0 for an empty row."""
    means = tj.output((x.shape[0],), x.dtype)
    rows, blocks = tj.axis("rows", x.shape[0]), tj.axis("blocks", tj.cdiv(x.shape[1], block))
    r, c = tj.axis("row", 1), tj.axis("column", block)

    @tj.parallel(rows)
    def _(nest):
        i = nest.index()
        length = tj.reshape(lengths[tj.coord(i), tj.shape(r)], tj.shape())  # one value, now a scalar

        @nest.serial(blocks, carry=tj.zeros(tj.shape(r), x.dtype), stop=tj.cdiv(length, block))
        def total(step, total):
            c0 = step.index() * block
            value = x[tj.coord(i, c0), tj.shape(r, c)]
            return total + tj.sum(tj.where(c0 + tj.iota(c) < length, value, 0), c)

        means(tj.coord(i), tj.shape(r)).store(total / tj.maximum(length, 1))

    return means


# --8<-- [end:ragged_mean]


def main(rows=2000, columns=1500) -> float:
    """Average ragged rows whose tails hold NaN; print and return the largest error."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, columns + 1, rows, np.int32)
    x = rng.standard_normal((rows, columns), np.float32)
    x[np.arange(columns) >= lengths[:, None]] = np.nan
    expected = np.array(
        [row[:n].sum(dtype=np.float64) / max(n, 1) for row, n in zip(x, lengths, strict=True)]
    )
    error = float(np.abs(ragged_mean(x, lengths) - expected).max())
    print(f"means of {rows} ragged rows, {lengths.mean():.0f} entries on average: largest error {error:.1e}")
    return error


if __name__ == "__main__":
    main()
