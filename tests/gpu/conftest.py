"""Tests that need an NVIDIA GPU: deselected where there is none."""

from pathlib import Path

import jax


def pytest_collection_modifyitems(config, items):
    if jax.default_backend() == "gpu":
        return
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    if mine:
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]
