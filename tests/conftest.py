"""Four CPU devices for the multi-device tests; every program is verified. Warnings are errors."""

import jax
import pytest

from tilejax.backends import interpreter, lowering
from tilejax.ir.verify import verify

jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture
def on_cpu():
    """For claims about the CPU or its four devices, where a GPU is too."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(autouse=True, scope="session")
def verified_programs():
    """Every program that a test runs, as traced or as a transform left it, keeps the rules of programs."""
    patch = pytest.MonkeyPatch()
    for module, name in ((lowering, "compile_program"), (interpreter, "run")):
        inner = getattr(module, name)

        def checked(program, *args, inner=inner, **kwargs):
            verify(program)
            return inner(program, *args, **kwargs)

        patch.setattr(module, name, checked)
    yield
    patch.undo()
