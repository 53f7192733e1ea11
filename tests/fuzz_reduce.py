"""Makes a kernel that fails smaller: lines go, operations go, as long as it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz_text import Kernel


def reduced(kernel: Kernel, fails: Callable[[Kernel], bool]) -> Kernel:
    """A smaller kernel for which `fails` still holds; it is false of a kernel that is no longer one."""
    while True:
        smaller = next((k for k in _smaller(kernel) if fails(k)), None)
        if smaller is None:
            return kernel
        kernel = smaller


def _smaller(kernel: Kernel) -> Iterator[Kernel]:
    lines = kernel.source.split("\n")
    size = len(lines) // 2
    while size:
        for start in range(len(lines) - size, -1, -1):
            yield replace(kernel, source="\n".join(lines[:start] + lines[start + size :]))
        size //= 2
    for i, line in enumerate(lines):
        name, is_assigned, text = line.partition(" = ")
        for operand in dict.fromkeys(re.findall(r"\bv\d+\b", text)) if is_assigned else ():
            if operand != text:
                simpler = f"{name} = {operand}"
                yield replace(kernel, source="\n".join([*lines[:i], simpler, *lines[i + 1 :]]))
            else:
                rest = [re.sub(rf"\b{name.strip()}\b", operand, later) for later in lines[i + 1 :]]
                yield replace(kernel, source="\n".join([*lines[:i], *rest]))
