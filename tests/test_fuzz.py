"""Random kernels: the compiler and the interpreter must give the same bits.

`TILEJAX_FUZZ=5000 pytest tests/test_fuzz.py` runs that many examples, each time others.
"""

import os

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings

import tilejax as tj
from tests.helpers import same
from tests.strategies import Kernel, kernels

EXAMPLES = int(os.environ.get("TILEJAX_FUZZ", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@SETTINGS
@given(kernels())
def test_compiled_and_interpreted_kernels_agree(kernel: Kernel):
    fn = kernel.function()
    want = jax.tree.map(np.asarray, tj.interpret(fn)(*kernel.args))
    same(tj.jit(fn)(*kernel.args), want)
