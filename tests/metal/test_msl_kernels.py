"""Every documented kernel as Metal source, compiled and run against the oracle, and under ThreadSanitizer."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from msl_cases import ALL, ONE
from msl_host import RACES, Batch, build, give

from tilejax import kernels

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


def test_every_barrier_is_needed(tmp_path):
    """As it is, the text has no race; without any one of its barriers, it has."""
    made = Batch({name: ONE[name] for name in ("softmax", "gemm", "cumsum", "manual_gemm", "sort")})
    sources = dict(made.sources)
    for name, source in made.sources.items():
        for number, barrier in enumerate(BARRIER.finditer(source.text)):
            text = source.text[: barrier.start()] + source.text[barrier.end() :]
            sources[f"{name}_without_{number}"] = replace(source, text=text)
    assert len(sources) > 12
    program = build(sources, tmp_path, RACES)
    for name in sources:
        give(name, sources[name], made.operands[name.split("_without_")[0]], tmp_path)
        done = subprocess.run(
            [program, tmp_path, name], capture_output=True, text=True, timeout=60, env=os.environ
        )
        assert ("data race" in done.stderr, done.returncode != 0) == ("without" in name,) * 2, name
    for name in made.sources:
        made.check(name, tmp_path)
