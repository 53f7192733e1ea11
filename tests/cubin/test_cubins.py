"""What the machine code of kernels holds: matrix instructions, wide accesses, masks where they are needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def compiled():
    script = Path(__file__).with_name("compiled.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_nest_is_one_launch(compiled):
    assert {name: facts["entries"] for name, facts in compiled.items()} == dict.fromkeys(compiled, 1)


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("gemm", ["f32.bf16.bf16"]),
        ("gemm ragged", ["f32.bf16.bf16"]),
        ("attention", ["f32.bf16.bf16"]),
        ("gemm f32", ["f32.bf16.bf16"]),  # in six products of a third of the bits each
        ("gemm int8", ["s32.s8.s8"]),
    ],
)
def test_products_are_those_of_warp_groups(compiled, name, types):
    assert compiled[name]["products"] == types
    assert compiled[name]["mma.sync"] == 0


def test_masks_are_where_bounds_are_not_proved(compiled):
    assert compiled["copy"]["predicated"] == 0
    assert compiled["copy ragged"]["predicated"] > 0


@pytest.mark.parametrize("name", ["copy", "softmax", "sobel_median", "long softmax"])
def test_accesses_are_wide(compiled, name):
    assert compiled[name]["wide"] > 0


def test_nothing_is_kept_in_local_memory(compiled):
    assert {name: facts["local"] for name, facts in compiled.items()} == dict.fromkeys(compiled, 0)
