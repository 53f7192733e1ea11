"""Every Python block of README and docs runs, in page order with one namespace a page, and its asserts hold."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r'^--8<-- "([^":]+)(?::(\w+))?"$', re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


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
