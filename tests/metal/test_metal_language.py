"""The tests of the language, through the modules for Metal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "elementwise": ["elementwise", "values", "casts", "bugs_values", "promotion"],
    "order": ["order", "scan", "reduce", "folds", "bugs_order", "bugs_reduce", "contract"],
    "places": ["index", "views", "bugs_bounds", "memory", "outputs", "axes"],
    "nests": ["loops", "nests", "bugs_loops", "algorithms", "pipeline", "bugs_compose", "found"],
}


@pytest.mark.long
@pytest.mark.parametrize("group", FILES)
def test_language(group):
    files = [f"tests/test_{name}.py" for name in FILES[group]]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.metal.everything", *files],
        cwd=ROOT,
        env={**os.environ, "METAL_PLATFORM": "mps"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout[-4000:]
