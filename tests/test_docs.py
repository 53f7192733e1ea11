"""Every ```python block of README and docs runs, its asserts hold; those of a page share a namespace.

A block marked ```py is only shown: the source of a documented kernel, which has tests of its own.
"""

import inspect
import re
from pathlib import Path

import pytest

import tilejax as tj
from tilejax import kernels

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r'^ *--8<-- "([^":]+)(?::(\w+))?"$', re.MULTILINE)
LINK = re.compile(r"\]\(([\w./-]+)(#[\w-]+)?\)")


def included(match: re.Match[str]) -> str:
    """The text that a snippet line stands for: a file, or the section of it between two markers."""
    path, section = match.groups()
    text = (ROOT / path).read_text()
    if section is None:
        return text
    found = re.search(rf"# --8<-- \[start:{section}\]\n(.*?)# --8<-- \[end:{section}\]", text, re.DOTALL)
    assert found, f"{path} has no section {section}"
    return found[1]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_run(page):
    text = page.read_text()
    namespace = {"__name__": page.stem}
    for block in FENCE.finditer(text):
        # As many lines as stand above the block, so that a failure names the page's own line.
        above = "\n" * (text[: block.start()].count("\n") + 1)
        exec(compile(above + INCLUDE.sub(included, block[1]), name(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_includes_and_links_resolve(page):
    text = page.read_text()
    for match in INCLUDE.finditer(text):
        assert included(match).strip()
    for target, _ in LINK.findall(text):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_readme_shows_the_gemm_of_the_examples():
    section = included(INCLUDE.match('--8<-- "examples/gemm.py:gemm"'))  # type: ignore[arg-type]
    assert section.strip() in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("module", [tj, kernels], ids=["tilejax", "tilejax.kernels"])
def test_every_public_name_is_in_the_reference(module):
    reference = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", reference))))
    public = {name for name, value in vars(module).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert public - words <= {"annotations"}  # the __future__
