"""Handwritten digits by nearest neighbours, and filters on a photograph: tile kernels at real work.

Both data sets ship with scikit-learn. Run it with `make demo`.
"""

import argparse

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

import tilejax as tj
from tilejax import kernels


# --8<-- [start:classify]
@tj.jit(static_argnames=("classes", "neighbours", "block"))
def classify(queries, points, labels, *, classes=10, neighbours=5, block=64):
    """The majority label of the nearest `points` (n, d) to each of `queries` (m, d); the least of a tie."""
    answer = tj.output((queries.shape[0],), labels.dtype)
    blocks = tj.axis("blocks", tj.cdiv(queries.shape[0], block))
    q, p = tj.axis("query", block), tj.axis("point", points.shape[0])
    d, rank, kind = tj.axis("pixel", points.shape[1]), tj.axis("rank", neighbours), tj.axis("kind", classes)

    @tj.parallel(blocks)
    def _(nest):
        start = nest.index() * block
        a, b = queries[tj.coord(start, 0), tj.shape(q, d)], points[tj.coord(0, 0), tj.shape(p, d)]
        dot = tj.mma(a, b, tj.zeros(tj.shape(q, p)))
        distance = tj.sum(a * a, d) - 2 * dot + tj.sum(b * b, d)
        _, nearest = tj.top_k(distance, p, rank, largest=False)
        vote = tj.gather(labels[tj.coord(0), tj.shape(p)], nearest, p)
        count = tj.sum(vote == tj.iota(kind), rank)
        answer(tj.coord(start), tj.shape(q)).store(tj.argmax(count, kind).astype(answer.dtype))

    return answer


# --8<-- [end:classify]


def digits(neighbours=5) -> tuple[float, float]:
    """Classify the held-out quarter of the digits; print and return our accuracy and scikit-learn's."""
    pixels, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        pixels.astype(np.float32), labels.astype(np.int32), test_size=0.25, random_state=0, stratify=labels
    )
    answer = np.asarray(classify(x_test, x_train, y_train, neighbours=neighbours))
    theirs = KNeighborsClassifier(neighbours).fit(x_train, y_train).predict(x_test)
    ours, sklearn = float((answer == y_test).mean()), float((theirs == y_test).mean())
    print(f"digits: {len(x_train)} known, {len(x_test)} to classify, {neighbours} nearest neighbours")
    print(f"  tile kernel   {ours:.2%} right")
    print(f"  scikit-learn  {sklearn:.2%} right, the same answer for {(answer == theirs).mean():.2%}")
    return ours, sklearn


def photograph(path: str, noise=0.1) -> tuple[float, float]:
    """Write a noisy photograph, its median and the median's edges side by side.

    Print and return the rms errors of the noisy photograph and of its median.
    """
    grey = np.rint(load_sample_image("china.jpg").mean(-1)).astype(np.float32)
    spots = np.random.default_rng(0).random(grey.shape)
    noisy = np.where(spots < noise / 2, 0, np.where(spots > 1 - noise / 2, 255, grey)).astype(np.float32)
    _, _, median = kernels.sobel_median(noisy)
    gx, gy, _ = kernels.sobel_median(median)
    edges = np.clip(np.hypot(gx, gy) / 2, 0, 255)
    picture = np.hstack([noisy, median, edges]).astype(np.uint8)
    Image.fromarray(picture).save(path)
    before, after = (float(np.sqrt(np.mean((image - grey) ** 2))) for image in (noisy, np.asarray(median)))
    print(
        f"photograph: {noise:.0%} of the pixels spoilt; rms error {before:.1f}, after the median {after:.1f}"
    )
    print(f"  noisy, median, edges: {path}")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", default="demo.png", help="where the filtered photograph is written")
    options = parser.parse_args()
    digits()
    photograph(options.picture)
