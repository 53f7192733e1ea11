"""Runs Metal sources on this machine: g++ compiles the text itself against the shim, a thread for each lane."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilejax.backends.metal.msl.source import Source

SHIM = Path(__file__).parent / "shim"
PLAIN = ("-O1",)
RACES = ("-O1", "-g", "-fsanitize=thread")
TYPES = {
    "bool": "bool",
    "int8": "char",
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
}


def build(sources: Mapping[str, Source], folder: Path, flags: Sequence[str] = PLAIN) -> Path:
    """A program that runs the sources of the names given to it."""
    compiler = shutil.which("g++")
    assert compiler, "the tests of Metal source compile it with g++ 12 or later, which is not installed"
    lines = ["#include <metal_stdlib>", "#include <metal_simdgroup_matrix>", "#include <map>"]
    for name, source in sources.items():
        (folder / f"{name}.metal").write_text(source.text)
        lines += [f"namespace {name} {{", f'#include "{name}.metal"', *_case(source), "}"]
    table = ", ".join(f'{{"{name}", {name}::run}}' for name in sources)
    lines += [
        f"std::map<std::string, void (*)(std::string)> cases = {{{table}}};",
        "int main(int count, char** given) {",
        "    for (int i = 2; i < count; ++i) cases.at(given[i])(std::string(given[1]) + '/' + given[i]);",
        "}",
    ]
    (folder / "main.cpp").write_text("\n".join(lines))
    program = folder / "main"
    command = [compiler, "-std=c++20", *flags, "-Wno-attributes", "-Wno-unknown-pragmas", "-pthread"]
    subprocess.run([*command, "-I", SHIM, "-o", program, folder / "main.cpp"], check=True)
    return program


def _case(source: Source) -> list[str]:
    """The function that makes the buffers of a source and launches its kernels."""
    numbers = {b.name: i for i, b in enumerate(source.buffers)}
    kinds = {b.name: TYPES[b.dtype.name] for b in source.buffers}
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
    given = [np.asarray(x) for x in operands]
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


def run(
    sources: Mapping[str, Source],
    operands: Mapping[str, Sequence[Any]],
    folder: Path,
    flags: Sequence[str] = PLAIN,
) -> dict[str, list[np.ndarray]]:
    """The results of every source at its operands."""
    program = build(sources, folder, flags)
    for name, source in sources.items():
        give(name, source, operands[name], folder)
    subprocess.run([program, folder, *sources], check=True, timeout=600)
    return {name: take(name, source, folder) for name, source in sources.items()}
