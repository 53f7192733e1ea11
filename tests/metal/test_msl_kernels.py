"""Every documented kernel as Metal source, compiled and run against the oracle, and under ThreadSanitizer."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msl_cases import ALL, ONE
from msl_host import RACES, Batch, build, execute, give, run

from tilejax import kernels
from tilejax.backends.metal.msl.source import Source

BARRIER = re.compile(r"^ *threadgroup_barrier\(.*\);\n", re.MULTILINE)


@pytest.fixture(scope="module")
def batch(tmp_path_factory) -> tuple[Batch, Path]:
    made, folder = Batch(ALL), tmp_path_factory.mktemp("plain")
    made.run(folder)
    return made, folder


def test_every_documented_kernel_is_here():
    assert {name for name in kernels.__all__ if name != "Window"} <= set(ONE)
    assert len(kernels.__all__) - 1 == 31


@pytest.mark.parametrize("name", sorted(ALL))
def test_it_computes_what_the_oracle_says(batch, name):
    made, folder = batch
    made.check(name, folder)


def test_atoms_are_used_where_they_are_asserted(batch):
    made, _ = batch
    for name, source in made.sources.items():
        assert source.matrix_operations == source.text.count("simdgroup_multiply_accumulate(")
        assert bool(source.matrix_operations) == ("atoms" in name), name


@pytest.mark.long
def test_no_kernel_has_a_race(tmp_path):
    """ThreadSanitizer ends the program with an error at the first warning."""
    made = Batch(ALL)
    made.run(tmp_path, RACES)
    for name in ALL:
        made.check(name, tmp_path)


def without_barriers(source: Source) -> list[Source]:
    """The source without its first barrier, without its second, ..."""
    places = [(m.start(), m.end()) for m in BARRIER.finditer(source.text)]
    return [replace(source, text=source.text[:start] + source.text[end:]) for start, end in places]


def test_no_documented_kernel_has_a_race_but_without_a_barrier_it_has(tmp_path):
    """Each kernel in float32 under ThreadSanitizer; some of them also without each of their barriers."""
    made = Batch(ONE)
    cut = {
        f"{name}_without_{number}": source
        for name in ("softmax", "gemm", "cumsum", "manual_gemm", "sort_long")
        for number, source in enumerate(without_barriers(made.sources[name]))
    }
    assert len(cut) >= 15
    sources = made.sources | cut
    program = build(sources, tmp_path, RACES)
    run(program, made.sources, made.operands)
    for name in ONE:
        made.check(name, tmp_path)
    for name, source in cut.items():
        give(name, source, made.operands[name.split("_without_")[0]], tmp_path)
        # ThreadSanitizer sees what threads did in this run: on a busy machine they may have come one by one.
        runs = (execute(program, [name]) for _ in range(20))
        done = next((run for run in runs if run.returncode), None)
        assert done is not None, f"{name} is as good as with its barrier"
        assert "data race" in done.stderr
