"""The code in README.md runs, and what it points to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch._dynamo

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# title of the section, the code
BLOCKS = re.findall(r"^## ([^\n]+)$(?:(?!^## ).)*?^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_every_block_is_found() -> None:
    assert len(BLOCKS) == README.count("```python") == 7


@pytest.mark.parametrize(("title", "code"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_code(title: str, code: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    exec(compile(code, f"README.md: {title}", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [t for t in targets if not t.startswith("http") and not (ROOT / name).parent.joinpath(t).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_commands_are_those_of_the_makefile(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = (ROOT / name).read_text(encoding="utf-8")
    named = [w for line in re.findall(r"(?:`| {4})make ([a-z -]+?)(?:`| {2}|$)", text, re.M) for w in line.split()]
    assert set(named) <= targets


def test_paths_named_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = {p for p in re.findall(r"`([\w./]+/[\w./]*)`", text) if "<" not in p}
    inside = {p for p in paths if (ROOT / p).exists() or (ROOT / "jaten_ops" / p).exists()}
    assert paths - inside == set() and paths
