"""The docstrings of the public names: arguments, errors, and examples that run."""

from __future__ import annotations

import doctest
import inspect
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import jaten_ops
from jaten_ops import distributed
from jaten_ops.backend import jaten
from jaten_ops.explanation import Explanation
from jaten_ops.exporting import Exported
from jaten_ops.step.compiled import Step

FUNCTIONS = [n for n in jaten_ops.__all__ if not isinstance(getattr(jaten_ops, n), type)]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


EXTRAS = {
    "nnx": ("flax", "TorchModule", "nnx"),
    "equinox": ("equinox", "TorchModule", "equinox"),
    "lightning": ("lightning", "JaxAccelerator", "Trainer"),
}
"""The modules of jaten_ops that need another library: the library, the class, and a name that its example uses."""


def _examples(name: str, documented: Any, **libraries: Any) -> list[doctest.DocTest]:
    scope = {"jaten_ops": jaten_ops, "torch": torch, "jax": jax, "jnp": jnp, **libraries}
    finder = doctest.DocTestFinder(recurse=False)
    return [t for t in finder.find(documented, name, globs=scope) if t.examples]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", jaten_ops.__all__)
def test_examples_run(name: str) -> None:
    _run(_examples(name, getattr(jaten_ops, name)))


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("documented", [jaten, Step.executable_for, Explanation, Exported], ids=lambda d: d.__name__)
def test_examples_of_other_documented_names_run(documented: Any) -> None:
    _run(_examples(documented.__name__, documented))


@pytest.mark.parametrize("name", distributed.__all__)
def test_examples_for_many_devices_run(name: str) -> None:
    _run(_examples(name, getattr(distributed, name)))


@pytest.mark.parametrize("name", EXTRAS)
def test_examples_of_extras_run(name: str) -> None:
    library, documented, used = EXTRAS[name]
    pytest.importorskip(library, reason=f"needs {library}, of the extra `{name}`")
    module = getattr(jaten_ops, name)
    _run(_examples(name, getattr(module, documented), **{used: getattr(module, used)}))


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTRAS[name][0], None)
    monkeypatch.delitem(sys.modules, f"jaten_ops.{name}", raising=False)
    monkeypatch.delitem(vars(jaten_ops), name, raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'jaten-ops\[{name}\]'"):
        getattr(jaten_ops, name)


def _run(found: list[doctest.DocTest]) -> None:
    assert found, "an example, after 'Example:'"
    text: list[str] = []
    for test in found:
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=text.append)
    assert not text, "".join(text)


def _lacks(function: Any) -> list[str]:
    """The sections that the docstring of a function should have and has not."""
    text = inspect.getdoc(function) or ""
    wanted = {"Raises:", "Example:", "shape", "dtype"}
    if "Args:" not in text:  # else the parameters are explained in the text
        wanted |= {name for name in inspect.signature(function).parameters if name not in ("overloads", "operators")}
    return sorted(word for word in wanted if word not in text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_have_their_sections(name: str) -> None:
    assert _lacks(getattr(jaten_ops, name)) == []


WITHOUT_TENSORS = ("initialize", "make_mesh")
"""Functions of jaten_ops.distributed that neither take nor return tensors."""


@pytest.mark.parametrize("name", [n for n in distributed.__all__ if not isinstance(getattr(distributed, n), type)])
def test_docstrings_for_many_devices_have_their_sections(name: str) -> None:
    lacks = _lacks(getattr(distributed, name))
    assert [word for word in lacks if name not in WITHOUT_TENSORS or word not in ("dtype", "shape")] == []


def test_a_missing_section_is_seen() -> None:
    def function(x: Any) -> None:
        """Does something.

        Raises:
            ValueError: never.
        """

    assert _lacks(function) == ["Example:", "dtype", "shape", "x"]
    function.__doc__ = None
    assert _lacks(function) == ["Example:", "Raises:", "dtype", "shape", "x"]
