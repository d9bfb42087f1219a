"""Versions of torch and JAX that are not supported: one warning at the import, and nothing fails."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import jax
import pytest
import torch

from jaten_ops import supported_versions

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

# what the versions are said to be, and what the warning names
VERSIONS: list[tuple[dict[str, str], list[str]]] = [
    ({"torch": "2.13.0+cpu", "jax": "0.10.0"}, []),
    ({"torch": "2.15.3", "jax": "0.12.9.1"}, []),
    ({"torch": "2.16.0.dev20261101", "jax": "0.10.2"}, ["torch 2.16.0.dev20261101 (supported: 2.13 to 2.15)"]),
    ({"torch": "2.12.1", "jax": "0.13.0rc1"}, ["torch 2.12.1", "jax 0.13.0rc1 (supported: 0.10 to 0.12)"]),
    ({"torch": "3.0", "jax": "1.0"}, ["torch 3.0", "jax 1.0"]),
]


@pytest.mark.parametrize(("versions", "named"), VERSIONS)
def test_others_are_named(versions: dict[str, str], named: list[str]) -> None:
    text = supported_versions.warning_of(versions)
    assert (text is not None) == bool(named)
    assert all(part in (text or "") for part in (*named, *(["Fix: "] if named else [])))


def test_the_installed_versions_are_supported() -> None:
    assert supported_versions.warning_of({"torch": torch.__version__, "jax": jax.__version__}) is None


@pytest.mark.parametrize(("module", "version"), [(torch, "2.99.0"), (jax, "0.99.0")])
def test_the_warning_is_of_the_installed_versions(
    module: ModuleType, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "__version__", version)
    with pytest.warns(UserWarning, match=f"is not for {module.__name__} {version} "):
        supported_versions.warn()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("module", "version"), [("torch", "2.99.0"), ("jax", "0.99.0")])
def test_an_import_warns_once_and_works(module: str, version: str) -> None:
    """The warning is of the line with the import."""
    program = f"""
import importlib, warnings
import {module}
{module}.__version__ = "{version}"
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import jaten_ops
    importlib.import_module("jaten_ops.backend")
    import jaten_ops
import torch
assert (torch.ones(3, device="jax") + 1).tolist() == [2.0, 2.0, 2.0]
print([str(w.message) for w in seen if "jaten" in str(w.message)])
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is not for") == 1 and f"{module} {version}" in done.stdout


def test_the_bounds_of_a_release_are_these() -> None:
    """pip takes no torch or JAX beyond the newest that is supported."""
    bounds = {}
    for need in tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]:
        name, least, most = re.fullmatch(r"(\w+)>=([\d.]+),<([\d.]+)", need).groups()  # type: ignore[union-attr]  # None, if the line is not of this form, fails the test
        bounds[name] = least, most
    assert bounds["jaxlib"] == bounds["jax"]
    for name, (oldest, newest) in supported_versions.SUPPORTED.items():
        major, minor = newest.split(".")
        assert bounds[name] == (oldest, f"{major}.{int(minor) + 1}")
