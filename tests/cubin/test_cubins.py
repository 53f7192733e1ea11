"""What the machine code of kernels holds: matrix instructions, wide accesses, masks where they are needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def compiled():
    script = Path(__file__).with_name("compiled.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def made(compiled, key):
    """A fact of every kernel of which there is PTX."""
    return {name: facts[key] for name, facts in compiled.items() if key in facts}


def test_every_nest_is_one_launch_but_for_few_long_rows(compiled):
    """Those are shared between programs, for which the first sums are launches of their own."""
    several = {name for name, entries in made(compiled, "entries").items() if entries != 1}
    assert several == {"long softmax"}


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("gemm", ["f32.bf16.bf16"]),
        ("gemm ragged", ["f32.bf16.bf16"]),
        ("attention", ["f32.bf16.bf16"]),
        ("conv2d", ["f32.bf16.bf16"]),
        ("conv2d of few channels", ["f32.bf16.bf16"]),
        ("conv2d f32", ["f32.bf16.bf16"]),
        ("gemm f32", ["f32.bf16.bf16"]),  # in six products of a third of the bits each
        ("gemm int8", ["s32.s8.s8"]),
        ("gemm uint8", ["s32.s8.s8"]),  # in four products, of the lower seven bits and the eighth
        ("gemm of four steps", ["f32.bf16.bf16"]),
    ],
)
def test_products_are_those_of_warp_groups(compiled, name, types):
    assert compiled[name]["products"] == types
    assert compiled[name]["mma.sync"] == []


def test_masks_are_where_bounds_are_not_proved(compiled):
    assert compiled["copy"]["predicated"] == 0
    assert compiled["copy ragged"]["predicated"] > 0


@pytest.mark.parametrize("name", ["copy", "softmax", "sobel_median", "long softmax", "depthwise"])
def test_accesses_are_wide(compiled, name):
    assert compiled[name]["wide"] > 0


@pytest.mark.parametrize("name", ["gemm", "conv2d", "conv2d f32"])
def test_what_is_multiplied_is_copied_ahead(compiled, name):
    """Sixteen bytes at a time, also where an image needs a mask at its border."""
    assert compiled[name]["copied ahead"] > 0


@pytest.mark.parametrize("name", ["sobel_median", "depthwise"])
def test_windows_need_no_exchange_between_threads(compiled, name):
    assert compiled[name]["barriers"] == 0


def test_nothing_is_kept_in_local_memory(compiled):
    assert set(made(compiled, "local").values()) == {0}


@pytest.mark.parametrize("name", ["two elements", "sort of a middle axis", "e4m3", "e5m2", "casts of bytes"])
def test_what_triton_could_not_compile(compiled, name):
    """It crashed where it joins two elements, took a minute for a network along a transposed axis, computes
    nothing with floats of eight bits, and aborts where it casts one kind of them to another."""
    assert compiled[name]["entries"] == 1


def test_loads_that_do_not_fit_are_refused_before_and_others_compile(compiled):
    """Steps of 48 KiB, of which the device has room for four."""
    assert "error" not in compiled["gemm of four steps"]
    needs = "needs 245760 bytes of shared memory for the loads of 5 steps, but the device has 232448"
    assert needs in compiled["gemm of five steps"]["error"]


def test_batches_are_on_the_matrix_units_if_they_are_large(compiled):
    assert compiled["batch"]["products"] == ["f32.bf16.bf16"]
    for name in ("batch of small matrices", "scan of matrices"):
        assert (compiled[name]["mma.sync"], compiled[name]["products"]) == ([], [])


@pytest.mark.parametrize("name", ["gemm e4m3", "gemm e5m2"])
def test_eight_bit_floats_add_up_in_float32(compiled, name):
    """The warp groups' products of them keep 14 bits of a sum, so they are multiplied as float16, exactly."""
    assert (compiled[name]["mma.sync"], compiled[name]["products"]) == (["f32.f16.f16.f32"], [])


def test_xla_rounds_to_short_floats(compiled):
    """Each cast is there, and the one after it but for bfloat16, to which float32 is cut in place."""
    assert compiled["casts by xla"]["to"] == ["f16", *["f32"] * 4, "f8e4m3fn", "f8e5m2"]
