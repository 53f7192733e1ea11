"""Tests that compile for an NVIDIA GPU without one: deselected where its compiler is not installed."""

import importlib.util
from pathlib import Path


def pytest_collection_modifyitems(config, items):
    if all(importlib.util.find_spec(name) for name in ("jax_cuda13_plugin", "nvidia")):
        return
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    if mine:
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]
