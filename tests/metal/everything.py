"""A pytest plugin: the tests of the language run every kernel through the module for the platform in the
environment variable METAL_PLATFORM, instead of through the CPU's own form and the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
from jax import export

import tilejax as tj

UNSUPPORTED = ("float8", "float64", "x64", "VECTOR", "2097152", "folded_away", "no_visit", "narrow_floats")
"""Words in the names of tests of what Metal does not have: dtypes, scopes, memories beyond 32 KiB."""


def _run(kernel: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    fn = tj.jit(kernel, **options)

    def call(*args: Any, **kwargs: Any) -> Any:
        off = [export.DisabledSafetyCheck.platform()]
        exported = export.export(
            jax.jit(lambda *a: fn(*a, **kwargs)),
            platforms=[os.environ["METAL_PLATFORM"]],
            disabled_checks=off,
        )
        return exported(*args).call(*args)

    return call


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    from tests import helpers  # after the configuration of JAX by conftest.py

    helpers.RUNNERS.clear()
    helpers.RUNNERS["metal"] = _run
    left = [item for item in items if not any(word in item.name for word in UNSUPPORTED)]
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left
