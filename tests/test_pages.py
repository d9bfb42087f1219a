"""The pages of the site in docs/: their code and commands run, and the reference has every public name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch._dynamo

import jaten_ops
from jaten_ops import distributed
from jaten_ops.backend import jaten
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.stages import STAGES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TEXTS = {p.relative_to(DOCS).with_suffix("").as_posix(): p.read_text("utf-8") for p in sorted(DOCS.rglob("*.md"))}
"""The text of each page, by its path in docs/ without the suffix."""

OWN_PROCESS = {
    "guides/debugging": "it sets the levels of logs, and torch keeps those of each module from then on",
    "guides/many_devices": "it needs eight devices of the CPU, which are made when JAX starts",
    "tutorials/many_devices": "likewise",
}
"""Pages whose code runs in a process of its own, and why."""

NEEDED = {
    "guides/libraries": ("lightning",),
    "guides/jax_functions": ("optax", "orbax.checkpoint", "flax", "equinox", "transformers"),
    "tutorials/hugging_face": ("optax", "transformers", "matplotlib"),
    **{
        f"tutorials/{name}": ("matplotlib",)
        for name in ("export", "many_devices", "own_kernel", "vision", "whole_step")
    },
}
"""The libraries that a page imports, of the extras `test` and `docs`."""

EXHAUSTIVE = {
    "guides/debugging",
    "guides/dynamic_shapes",
    "guides/jax_functions",
    "guides/many_devices",
    "guides/memory",
    "guides/performance",
    "guides/training_steps",
    "tutorials/export",
    "tutorials/hugging_face",
    "tutorials/many_devices",
    "tutorials/own_kernel",
    "tutorials/vision",
    "tutorials/whole_step",
}
"""Pages whose code takes longer than a test of the default run may."""

NOT_RUN = {
    "make": "a test of its own looks whether the Makefile has the target",
    "pip": "tests/test_installing.py installs the package",
    "torchrun": "the program stands on the page, and a test of its own runs it",
}
"""Commands of pages that these tests do not run, by their first word, and why."""


def _blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXTS[page], re.MULTILINE | re.DOTALL)


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"}


def _marked(names: list[str]) -> list:
    return [pytest.param(n, marks=pytest.mark.exhaustive if n in EXHAUSTIVE else ()) for n in names]


WITH_CODE = [page for page in TEXTS if _blocks(page, "python")]


@pytest.mark.parametrize("page", _marked(WITH_CODE))
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are one program."""
    for library in NEEDED.get(page, ()):
        pytest.importorskip(library, reason=f"needs {library}, of the extra `test` or `docs`")
    code = "\n".join(_blocks(page, "python"))
    if page in OWN_PROCESS:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # what a block adds is taken away
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # Dynamo looks for the module of a class that it meets
    exec(compile(code, f"docs/{page}.md", "exec"), vars(module))


def test_pages_with_code_are_found() -> None:
    assert {"guides/many_devices", "guides/export", "guides/overrides"} <= set(WITH_CODE)
    assert len(_blocks("guides/many_devices", "python")) == 11
    assert set(OWN_PROCESS) | set(NEEDED) | EXHAUSTIVE <= set(WITH_CODE)


def test_all_blocks_are_of_kinds_that_are_run() -> None:
    kinds = {kind for text in TEXTS.values() for kind in re.findall(r"^ *```.+$", text, re.MULTILINE)}
    shown = {kind for kind in kinds if not kind.startswith("```{")}
    assert shown == {"```python", "```python skip", "```sh"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [0, 1])
def test_code_for_several_processes(number: int, tmp_path: Path) -> None:
    code = _blocks("guides/many_devices", "python skip")[number]
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


# page and command, a line of a block ```sh each
COMMANDS = [(page, line) for page in TEXTS for block in _blocks(page, "sh") for line in block.splitlines()]


def _first_word(command: str) -> str:
    """The program that a command starts, after variables that it sets and comments."""
    return next((w for w in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", w)), "#")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("page", "command"), [c for c in COMMANDS if _first_word(c[1]) not in NOT_RUN])
def test_commands_run(page: str, command: str) -> None:
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{page}: {command}\n{done.stderr[-3000:]}"


def test_commands_are_of_known_programs() -> None:
    assert COMMANDS and {_first_word(command) for _, command in COMMANDS} <= {*NOT_RUN, "python"}


def test_make_has_the_targets_of_pages() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    lines = [command for _, command in COMMANDS if _first_word(command) == "make"]
    lines += [found for text in TEXTS.values() for found in re.findall(r"`(make [^`]+)`", text)]
    named = {re.split(r"\s+(?=[A-Z#])", line)[0] for line in lines}
    assert named and {word for line in named for word in line.split()[1:]} <= targets


def test_modules_named_in_commands_are_there() -> None:
    named = {name for text in TEXTS.values() for name in re.findall(r"`python -m ([\w.]+)", text)}
    paths = [
        ROOT / name.replace(".", "/") for name in named if name.partition(".")[0] in ("benchmarks", "tests", "tools")
    ]
    assert paths and [p for p in paths if not (p.with_suffix(".py").exists() or (p / "__main__.py").exists())] == []


def test_every_example_is_listed() -> None:
    listed = re.findall(r"\]\(\.\./\.\./examples/(\w+)\.py\)", TEXTS["tutorials/examples"])
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def test_boxes_of_the_picture_lead_to_pages() -> None:
    picture = (DOCS / "start" / "ways_in.svg").read_text("utf-8")
    pages = {target.partition("#")[0] for target in re.findall(r'href="([^"]+)"', picture)}
    assert len(pages) > 4
    assert [p for p in pages if not (DOCS / "start" / p).with_suffix(".md").exists()] == []


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXTS[page])
    missing = [t for t in targets if "://" not in t and not (DOCS / page).parent.joinpath(t).exists()]
    assert missing == []


def test_the_table_of_environment_variables_is_complete() -> None:
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "jaten_ops").rglob("*.py"))
    table = re.findall(r"^\| `(JATEN_\w+)` \|", TEXTS["guides/environment"], re.MULTILINE)
    assert len(table) == len(set(table))
    assert set(re.findall(r"JATEN_[A-Z_]+", code)) == set(table)


def _options() -> set[str]:
    """The options of the backend, from the error about one that it does not know."""
    with pytest.raises(UnsupportedInputError) as raised:
        jaten(torch.fx.symbolic_trace(torch.nn.Identity()), [], options={"unknown": None})
    known = re.search(r"expected (.+?)\.", str(raised.value))
    assert known is not None
    return set(re.split(", | or ", known[1]))


PUBLIC = {
    *(f"jaten_ops.{name}" for name in jaten_ops.__all__),
    *(f"jaten_ops.distributed.{name}" for name in distributed.__all__),
    *("jaten_ops.backend.jaten", "jaten_ops.nnx.TorchModule", "jaten_ops.equinox.TorchModule"),
    "jaten_ops.lightning.JaxAccelerator",
}


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(text for page, text in TEXTS.items() if page.startswith("reference/"))
    documented = re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.MULTILINE) + re.findall(r"\{stage\}`([^`]+)`", text)
    assert sorted(documented) == sorted(set(documented))
    assert set(documented) >= PUBLIC | {f"options['{name}']" for name in _options()}


def test_every_public_name_has_a_stage() -> None:
    assert set(STAGES) == PUBLIC | {f"options['{name}']" for name in _options()}
    assert set(STAGES.values()) == {"stable", "experimental"}


EXTRAS = ("equinox", "lightning", "nnx")
"""Public modules that need a library which need not be installed."""


def test_a_newcomer_sees_what_is_there() -> None:
    versions = [
        re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
        for file, pattern in (("pyproject.toml", r'^version = "(.*)"$'), ("CITATION.cff", r"^version: (.*)$"))
    ]
    assert versions == [[jaten_ops.__version__]] * 2
    shown = dir(jaten_ops)
    assert {*jaten_ops.__all__, "__version__", "distributed", "equinox", "lightning", "nnx", "stages"} <= set(shown)
    assert [
        name for name in shown if not name.startswith("__") and name not in EXTRAS and not hasattr(jaten_ops, name)
    ] == []
    functions = [n for n in jaten_ops.__all__ if not isinstance(getattr(jaten_ops, n), type)]
    assert [name for name in functions if name not in (jaten_ops.__doc__ or "")] == []
