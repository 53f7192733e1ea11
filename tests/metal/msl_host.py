"""Runs Metal sources on this machine: g++ compiles the text itself, a thread for each lane."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tilejax._jit import as_kernel
from tilejax.backends.metal.msl.program import emit
from tilejax.backends.metal.msl.source import Source
from tilejax.backends.metal.msl.types import type_of
from tilejax.backends.registry import Options

SHIM = Path(__file__).parent / "shim"
PLAIN = ("-O0",)
RACES = ("-O1", "-g", "-fsanitize=thread")


def build(sources: Mapping[str, Source], folder: Path, flags: Sequence[str] = PLAIN) -> Path:
    """A program that runs the sources of the names given to it."""
    compiler = shutil.which("g++")
    assert compiler, "the tests of Metal source compile it with g++ 12 or later, which is not installed"
    lines = ["#include <metal_stdlib>", "#include <metal_simdgroup_matrix>", "#include <map>"]
    for name, source in sources.items():
        (folder / f"{name}.metal").write_text(source.text)
        lines += [f"namespace case_{name} {{", f'#include "{name}.metal"', *_case(source), "}"]
    lines += [
        "std::map<std::string, void (*)(std::string)> cases = {",
        *(f'    {{"{name}", case_{name}::run}},' for name in sources),
        "};",
        "int main(int count, char** given) {",
        "    for (int i = 2; i < count; ++i) cases.at(given[i])(std::string(given[1]) + '/' + given[i]);",
        "}",
    ]
    (folder / "main.cpp").write_text("\n".join(lines))
    program = folder / "main"
    command = [compiler, "-std=c++20", *flags, "-Wno-attributes", "-Wno-unknown-pragmas", "-pthread"]
    command += ["-I", str(SHIM), "-o", str(program), str(folder / "main.cpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return program


def _case(source: Source) -> list[str]:
    """The function that makes the buffers of a source and launches its kernels."""
    numbers = {b.name: i for i, b in enumerate(source.buffers)}
    kinds = {b.name: type_of(b.dtype) for b in source.buffers}
    values = {b.name for b in source.buffers if b.role == "argument" and not b.shape}
    sizes = ", ".join(str(max(math.prod(b.shape), 1) * b.dtype.itemsize) for b in source.buffers)
    arguments = sum(b.role == "argument" for b in source.buffers)
    lines = ["void run(std::string path) {", f"    host::Arrays arrays(path, {{{sizes}}}, {arguments});"]
    for launch in source.launches:
        given = [f"{'*' * (b in values)}({kinds[b]}*)arrays[{numbers[b]}]" for b in launch.buffers]
        call = f"{launch.kernel}({', '.join([*given, 'group', 'lane'])})"
        lines.append(
            f"    host::launch({launch.groups}, {launch.threads}, [&](uint group, uint lane) {{ {call}; }});"
        )
    return [*lines, f"    arrays.save({{{', '.join(str(numbers[r]) for r in source.results)}}});", "}"]


def give(name: str, source: Source, operands: Sequence[Any], folder: Path) -> None:
    """Writes the file of a case's arguments."""
    arguments = [b for b in source.buffers if b.role == "argument"]
    given = [np.asarray(x, b.dtype) for x, b in zip(operands, arguments, strict=True)]
    data = [np.ascontiguousarray(x).tobytes() or bytes(x.dtype.itemsize) for x in given]
    (folder / f"{name}.in").write_bytes(b"".join(data))


def take(name: str, source: Source, folder: Path) -> list[np.ndarray]:
    """Reads the file of a case's results."""
    data, at, results = (folder / f"{name}.out").read_bytes(), 0, []
    buffers = {b.name: b for b in source.buffers}
    for buffer in (buffers[r] for r in source.results):
        size = math.prod(buffer.shape)
        results.append(np.frombuffer(data, buffer.dtype, size, at).reshape(buffer.shape))
        at += max(size, 1) * buffer.dtype.itemsize
    assert at == len(data)
    return results


def run(program: Path, sources: Mapping[str, Source], operands: Mapping[str, Sequence[Any]]) -> None:
    """Runs what `build` made, at the operands of each source."""
    for name in sources:
        give(name, sources[name], operands[name], program.parent)
    done = execute(program, sources)
    assert done.returncode == 0, done.stderr[:4000]


def execute(program: Path, names: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Runs the cases of these names. One that takes a minute is tried again, for a busy machine may stand
    still; a kernel that waits for ever does so each time."""
    for _ in range(3):
        try:
            command = [str(program), str(program.parent), *names]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"{', '.join(names)}: a kernel does not end")


class _Called(Exception):
    """A check has called its kernel: with these arguments."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.args_given, self.kwargs = args, kwargs


@dataclass(frozen=True)
class Case:
    """A kernel and a check of it: `check(call)` calls its argument as if it were the kernel, once, and says
    whether the result is right."""

    kernel: Any
    check: Callable[[Callable[..., Any]], None]
    cooperative_matrix: bool = False


class Batch:
    """Cases that are compiled into one program, and their sources."""

    def __init__(self, cases: Mapping[str, Case], threads: int = 32):
        self.cases = cases
        self.sources: dict[str, Source] = {}
        self.operands: dict[str, Any] = {}
        self._trees: dict[str, Any] = {}
        for name, case in cases.items():
            args, kwargs = self._arguments(case)
            kernel = as_kernel(case.kernel, Options(), None, None)
            traced = kernel.trace(args, kwargs)
            self.sources[name] = emit(
                traced.program, kernel.name, cooperative_matrix=case.cooperative_matrix, threads=threads
            )
            self.operands[name], self._trees[name] = traced.operands, traced.results

    def _arguments(self, case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def call(*args: Any, **kwargs: Any) -> None:
            raise _Called(args, kwargs)

        try:
            case.check(call)
        except _Called as called:
            return called.args_given, called.kwargs
        raise AssertionError("the check does not call its kernel")

    def run(self, folder: Path, flags: Sequence[str] = PLAIN) -> None:
        """Compiles all cases and runs them; the results stay in the folder."""
        run(build(self.sources, folder, flags), self.sources, self.operands)

    def check(self, name: str, folder: Path) -> None:
        """Whether the result of a case is right."""
        results = jax.tree.unflatten(self._trees[name], take(name, self.sources[name], folder))
        self.cases[name].check(lambda *_, **__: results)
