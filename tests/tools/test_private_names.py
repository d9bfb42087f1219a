"""The table of private names is that of the source, and the installed torch and JAX have all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import pytest
import torch
from torch.distributed.tensor._random import OffsetBasedRNGTracker

import jaten_ops  # noqa: F401  # operators of its own
from jaten_ops.hooks.private_names import ATTRIBUTES, GROUPS, NAMES
from tools import private_names


def test_every_private_name_has_a_row() -> None:
    used = private_names.used()
    without = {name: files for name, files in used.items() if private_names.row_of(name, NAMES) is None}
    assert not without, "give these a row in jaten_ops/hooks/private_names.py, or call something public"


def test_every_row_is_used() -> None:
    assert NAMES.keys() == {private_names.row_of(name, NAMES) for name in private_names.used()}
    assert len(NAMES) == sum(len(names) for names in GROUPS.values())


def test_installed_versions_have_them() -> None:
    """If this fails, torch or JAX has moved the names in the message, and the files that use them must follow."""
    used = private_names.used()
    lacking = {
        name: f"used in {', '.join(sorted(used[name]))}: {_reason(name)}"
        for name in used
        if private_names.missing(name)
    }
    assert not lacking


def _reason(name: str) -> str:
    return NAMES[private_names.row_of(name, NAMES) or ""]


def test_every_private_attribute_has_a_row() -> None:
    assert private_names.attributes().keys() == ATTRIBUTES.keys()


_ADD = torch.ops.aten.add.Tensor


def _trainer() -> Any:
    lightning = pytest.importorskip("lightning", reason="needs lightning, of the extra `lightning`")
    return lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)


# an object that has each of the attributes
OBJECTS: dict[str, Callable[[], Any]] = {
    "_accelerator_connector": _trainer,
    "_backward_cls": lambda: torch.autograd.Function,
    "_init_flat_weights": lambda: torch.nn.GRU(1, 1),
    "_buffers": lambda: torch.nn.Linear(1, 1),
    "_can_decompose": lambda: _ADD,
    "_c": lambda: torch.jit.script(torch.nn.Linear(1, 1)),
    "_cdata": lambda: torch.ones(1).untyped_storage(),
    "_concrete_type": lambda: torch.jit.script(torch.nn.Linear(1, 1)),
    "_compute_rng_offsets": lambda: OffsetBasedRNGTracker,
    "_dispatch_cache": lambda: _ADD,
    **dict.fromkeys(("_evaluate", "_get_vars"), lambda: jax.export.symbolic_shape("n")[0]),
    "_executable": lambda: jax.jit(lambda x: x).lower(1.0).compile(),
    "_forward_cls": lambda: torch.autograd.Function._backward_cls,
    "_forward_pre_hooks": lambda: torch.nn.Linear(1, 1),
    "_lowering": lambda: jax.jit(lambda x: x).lower(1.0),
    "_op_dk": lambda: _ADD,
    "_parallel_devices": lambda: _trainer()._accelerator_connector,
    "_qualified_op_name": lambda: torch.ops.aten.add,
    "_destroy": lambda: torch.library.Library("jaten_nothing", "FRAGMENT"),
    "_registration_handles": lambda: torch.library.Library("jaten_nothing", "FRAGMENT"),
    "_schema": lambda: _ADD,
    "_sequence_nr": lambda: (torch.ones(1, requires_grad=True) * 2).grad_fn,
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_objects_have_the_attribute(name: str) -> None:
    assert hasattr(OBJECTS[name](), name), f"used in {', '.join(sorted(private_names.attributes()[name]))}"


SOURCE = """
import os, torch, torch._dynamo
import torch.nn.functional as F
from . import module
from jax._src import config
from torch._subclasses.fake_tensor import FakeTensor as Fake

_keys = torch._C.DispatchKey
_annotated: Any = torch._C._functorch
_utils = getattr(torch.fx, "_one", None)


class Own:
    _member: int


def _three(x, op):
    os._exit(x._member, module._there, x._fields)
    F._two(x), x._three, torch.ops.aten._operator, _keys.CPU, _annotated.level, Fake
    op._own = x.__dict__, x._to_copy
"""


def test_names_are_found(tmp_path: Path) -> None:
    for folder in private_names.FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "jaten_ops" / "one.py").write_text(SOURCE, encoding="utf-8")
    assert private_names.used(tmp_path).keys() == {
        *("torch._dynamo", "jax._src.config", "torch._subclasses.fake_tensor.FakeTensor", "torch._C.DispatchKey"),
        *("torch._C._functorch", "torch.fx._one", "torch.nn.functional._two", "torch._C.DispatchKey.CPU"),
        "torch._C._functorch.level",
    }
    assert private_names.used(tmp_path)["torch.fx._one"] == {"one.py"}
    assert private_names.attributes(tmp_path) == {"_three": {"one.py"}}


def test_the_longest_row_is_a_names() -> None:
    assert private_names.row_of("torch._C.key.CPU", ["torch._C", "torch._C.key", "torch._C.k"]) == "torch._C.key"
    assert private_names.row_of("torch._Cpp", ["torch._C"]) is None


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("torch._C.DispatchKey.CPU", ""),
        ("torch._C._no_such.more", "torch._C._no_such"),
        ("torch._no_module.more", "torch._no_module"),
        ("jax._src.compiler", ""),
    ],
)
def test_what_has_moved_is_named(name: str, lacking: str) -> None:
    assert private_names.missing(name) == lacking
