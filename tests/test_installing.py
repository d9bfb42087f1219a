"""Installation without the source tree: from a wheel and a source distribution; and an editable install."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import architecture

ROOT = Path(__file__).resolve().parents[1]
BUILT_OF = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", *architecture.FOLDERS)
KINDS = ("wheel", "sdist", "editable")
TABLES = ("composite", "functional", "variants", "torch_2_14", "torch_2_15")
DATA = {f"jaten_ops/{name}" for name in ("py.typed", *(f"schema/{table}.ops" for table in TABLES))}

ENTRY_POINT = """
import sys, torch
compiled = torch.compile(torch.nn.Linear(4, 4), backend="jaten")  # nothing of jaten is imported
assert compiled(torch.ones(2, 4)).shape == (2, 4)
"""

OPERATORS = """
import importlib, pathlib, sys, torch
import jaten_ops
assert pathlib.Path(jaten_ops.__file__).is_relative_to(sys.argv[1]), jaten_ops.__file__
x = torch.ones(3, requires_grad=True)
torch.ops.jaten.mul.Tensor(x, x).sum().backward()
assert x.grad.tolist() == [2, 2, 2]

x = torch.arange(3.0, device="jax", requires_grad=True)
(x * x).sum().backward()
assert x.grad.device.type == "jax" and x.grad.tolist() == [0, 2, 4]

for name in ("meta", "autograd"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise AssertionError(f"{name} is a module at top level")
"""


def _environment() -> dict[str, str]:
    """The variables of this process without those that lead an interpreter, or pip, to other packages."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def _python(code: str, *arguments: str, executable: str | Path = sys.executable, cwd: Path) -> str:
    """The output of an interpreter that finds what is installed alone."""
    command = [str(executable), "-P", "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def _build(kind: str, source: Path, to: Path) -> Path:
    """Builds as pip does, with the setuptools of this environment."""
    code = (
        "import sys; from setuptools import build_meta; print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"
    )
    return to / _python(code, kind, str(to), cwd=source).split()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The wheel that is installed of a kind. A source distribution has no links to the mapped packages."""
    folder = tmp_path_factory.mktemp("installing")
    source = folder / "source"
    source.mkdir()
    for name in BUILT_OF:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)

    @functools.cache
    def built(kind: str) -> Path:
        to = folder / kind
        to.mkdir()
        if kind != "sdist":
            return _build(kind, source, to)
        with tarfile.open(_build("sdist", source, to)) as archive:
            archive.extractall(to / "unpacked", filter="data")
        (unpacked,) = (to / "unpacked").iterdir()
        assert not (unpacked / "jaten_ops" / "meta").exists()
        return _build("wheel", unpacked, to)

    return built


def _modules() -> Iterator[str]:
    for folder, package in architecture.FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder)
            if not (folder == "jaten_ops" and inside.parts[0] in ("meta", "autograd")):
                yield str(Path(*package.split("."), inside))


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_wheel_has_the_modules_of_the_tree(built: Callable[[str], Path], kind: str) -> None:
    with zipfile.ZipFile(built(kind)) as wheel:
        files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == {*_modules()} | DATA


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has what this one has, but for what is editable in it."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    own, lent = _site_packages(folder), dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))
    (own / "lent.pth").write_text("\n".join(lent), encoding="utf-8")
    return folder


def _site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)}))


def _interpreter(environment: Path) -> Path:
    return Path(sysconfig.get_path("scripts", "venv", {"base": str(environment)})) / "python"


def test_the_environment_is_clean(clean: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.util; print(*[importlib.util.find_spec(n) is None for n in ('jaten_ops', 'meta', 'torch')])"
    )
    assert _python(code, executable=_interpreter(clean), cwd=tmp_path).split() == ["True", "True", "False"]


@pytest.mark.parametrize("kind", [k if k == "wheel" else pytest.param(k, marks=pytest.mark.exhaustive) for k in KINDS])
def test_installed(built: Callable[[str], Path], kind: str, clean: Path, tmp_path: Path) -> None:
    python = _interpreter(clean)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    installing = ["install", "--no-deps", "--no-index", "--no-compile", "--force-reinstall", str(built(kind))]
    subprocess.run([*pip, *installing], check=True, cwd=tmp_path, env=_environment())
    source = built(kind).parents[1] / "source" if kind == "editable" else _site_packages(clean)
    try:
        # an editable install differs in where modules are found, not in its entry points
        _python(
            OPERATORS if kind == "editable" else ENTRY_POINT + OPERATORS, str(source), executable=python, cwd=tmp_path
        )
    finally:
        subprocess.run([*pip, "uninstall", "--yes", "jaten-ops"], check=True, cwd=tmp_path, env=_environment())


# what is on a machine, by name, with what it exits; and which is chosen
PYTHONS: list[tuple[dict[str, int], str | None]] = [
    ({"python3.11": 0, "python3.12": 0, "python3.14": 0, "python3": 0}, "python3.12"),
    ({"python3.11": 0, "python3.13": 127, "python3": 1}, "python3.11"),  # a shim of pyenv's for what is not active
    ({"python3": 0, "python": 0}, "python3"),
    ({"python3": 1, "python": 1}, None),  # too old, or without the means to make environments
    ({}, None),
]


@pytest.mark.parametrize(("there", "chosen"), PYTHONS)
def test_make_finds_a_python(there: dict[str, int], chosen: str | None, tmp_path: Path) -> None:
    for name in ("sh", "ls", "sed", "cat"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name, status in there.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([ROOT / "tools" / "find_python.sh"], env=environment, capture_output=True, text=True)
    if chosen is None:
        assert done.returncode == 1 and not done.stdout and "make PYTHON=" in done.stderr
    else:
        assert done.stdout == f"{tmp_path / chosen}\n" and not done.returncode


def test_find_python_refuses_older_ones(tmp_path: Path) -> None:
    """The condition by which it asks, of this Python and of one that says that it is older."""
    text = (ROOT / "tools" / "find_python.sh").read_text(encoding="utf-8")
    condition = text.split("works='")[1].split("'")[0]
    older = "import sys; sys.version_info = (3, 10); exec(sys.argv[1])"
    assert subprocess.run([sys.executable, "-c", condition]).returncode == 0
    assert subprocess.run([sys.executable, "-c", older, condition]).returncode == 1
