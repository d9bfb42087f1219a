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
    assert len(BLOCKS) == README.count("```python") == 7


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [0, 1])
def test_code_for_several_processes(number: int, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "many_devices.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python skip\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[number]
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


PAGES = {"export": 3, "jax_functions": 10, "kernels": 6, "overrides": 6, "performance": 3, "training_steps": 4}
"""The pages whose code is run, with the number of blocks, which are one program."""

NEEDED = {"jax_functions": ("optax", "orbax.checkpoint", "flax", "equinox", "transformers")}
"""The libraries that a page imports, of the extra `test`."""


@pytest.mark.parametrize("name", PAGES)
def test_code_of_a_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in NEEDED.get(name, ()):
        pytest.importorskip(library, reason=f"needs {library}, of the extra `test`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # what a block adds is taken away
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == PAGES[name]
    torch._dynamo.reset()
    exec(compile("\n".join(blocks), f"docs/{name}.md", "exec"), {"__name__": "page"})


WITH_LINKS = ["README.md", "CONTRIBUTING.md", "docs/many_devices.md", *(f"docs/{page}.md" for page in PAGES)]


@pytest.mark.parametrize("name", WITH_LINKS)
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
