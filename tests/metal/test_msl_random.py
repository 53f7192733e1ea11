"""Random kernels as Metal source, compiled and run: the same bits as the interpreter's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from msl_host import PLAIN, RACES, Batch, Case

import tilejax as tj
from tests.fuzz_kernels import random_kernel
from tests.fuzz_patterns import random_pattern
from tests.helpers import same


def case(kernel: Any, cooperative_matrix: bool) -> Case:
    def check(call: Any) -> None:
        got = call(*kernel.args)
        same(got, jax.tree.map(np.asarray, tj.interpret(kernel.function())(*kernel.args)))

    return Case(kernel.function(), check, cooperative_matrix)


@pytest.mark.parametrize(
    ("seeds", "flags"),
    [
        (range(8), PLAIN),
        pytest.param(range(100, 140), PLAIN, marks=pytest.mark.long),
        pytest.param(range(200, 230), RACES, marks=pytest.mark.long),
    ],
    ids=["few", "many", "races"],
)
def test_random_kernels_agree_with_the_interpreter(seeds, flags, tmp_path):
    cases = {
        f"{make.__name__}_{seed}": case(make(seed), cooperative_matrix=seed % 2 == 0)
        for make in (random_kernel, random_pattern)
        for seed in seeds
    }
    batch = Batch(cases)
    batch.run(tmp_path, flags)
    for name in cases:
        batch.check(name, tmp_path)
