"""The code in README.md runs, and what it points to is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# title of the section, the code
BLOCKS = re.findall(r"^## ([^\n]+)$(?:(?!^## ).)*?^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_every_block_is_found() -> None:
    assert len(BLOCKS) == README.count("```python") == 6


@pytest.mark.parametrize(("title", "code"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_code(title: str, code: str) -> None:
    torch._dynamo.reset()
    exec(compile(code, f"README.md: {title}", "exec"), {"__name__": "readme"})


def test_code_for_many_devices() -> None:
    """The blocks of the page are one program, which needs a process of its own for its devices."""
    page = (ROOT / "docs" / "many_devices.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all-reduce" in done.stdout
    assert len(blocks) == 11


def test_code_for_training_steps() -> None:
    page = (ROOT / "docs" / "training_steps.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile("\n".join(blocks), "docs/training_steps.md", "exec"), {"__name__": "page"})
    assert len(blocks) == 4


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/many_devices.md", "docs/training_steps.md"])
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


def test_code_about_performance() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    torch._dynamo.reset()
    for code in blocks:
        exec(compile(code, "docs/performance.md", "exec"), {"__name__": "performance"})
