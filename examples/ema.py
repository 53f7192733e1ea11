"""Operators of one's own: an exponential moving average as a scan, log-sum-exp as a reduction."""

import numpy as np

import tilejax as tj


# --8<-- [start:ema]
@tj.jit(static_argnames="block_rows")
def ema(decay, x, *, block_rows=16):
    """`y[t] = decay[t] * y[t - 1] + x[t]` along the last axis of (rows, time) arrays."""
    y = tj.output_like(x)
    blocks = tj.axis("blocks", tj.cdiv(x.shape[0], block_rows))
    r, t = tj.axis("row", block_rows), tj.axis("time", x.shape[1])

    def combine(earlier, later):  # the composition of two affine maps
        (a0, b0), (a1, b1) = earlier, later
        return a0 * a1, b0 * a1 + b1

    @tj.parallel(blocks)
    def _(nest):
        here = tj.coord(nest.index() * block_rows, 0), tj.shape(r, t)
        _, mean = tj.associative_scan(combine, (decay[here], x[here]), t)
        y(*here).store(mean)

    return y


# --8<-- [end:ema]


# --8<-- [start:logsumexp]
def logaddexp(a, b):
    peak = tj.maximum(a, b)
    return peak + tj.log(tj.exp(a - peak) + tj.exp(b - peak))


@tj.jit
def logsumexp(x):
    """log(sum(exp(x))) of each row, by a reduction whose operator is written here."""
    y = tj.output((x.shape[0],), x.dtype)
    rows = tj.axis("rows", x.shape[0])
    r, c = tj.axis("row", 1), tj.axis("column", x.shape[1])

    @tj.parallel(rows)
    def _(nest):
        value = x[tj.coord(nest.index(), 0), tj.shape(r, c)]
        y(tj.coord(nest.index()), tj.shape(r)).store(tj.reduce(value, c, tj.Reducer(logaddexp, -1e30)))

    return y


# --8<-- [end:logsumexp]


def main(rows=100, time=1000) -> tuple[float, float]:
    """Smooth noisy sine waves; print and return the largest errors of `ema` and `logsumexp`."""
    rng = np.random.default_rng(0)
    noisy = np.sin(np.arange(time) / 50) + rng.standard_normal((rows, time))
    noisy = noisy.astype(np.float32)
    decay = np.full_like(noisy, 0.9)
    smooth = np.asarray(ema(decay, 0.1 * noisy))

    expected, state = np.empty((rows, time)), np.zeros(rows)
    for t in range(time):
        state = expected[:, t] = np.float64(np.float32(0.9)) * state + (0.1 * noisy)[:, t]
    ema_error = float(np.abs(smooth - expected).max())
    print(
        f"moving average of {rows} x {time}: largest error {ema_error:.1e}, "
        f"noise {np.diff(noisy).std():.2f} -> {np.diff(smooth).std():.2f}"
    )

    exact = np.log(np.exp(noisy.astype(np.float64)).sum(1))
    lse_error = float(np.abs(logsumexp(noisy) - exact).max())
    print(f"log-sum-exp of {rows} x {time}: largest error {lse_error:.1e}")
    return ema_error, lse_error


if __name__ == "__main__":
    main()
