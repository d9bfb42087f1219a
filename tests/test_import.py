"""The import of jaten leaves torch, its other backends, JAX's configuration and the process alone."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.testing._internal.logging_tensor import LoggingTensorMode

import jaten_ops  # noqa: F401  # what is tested

from .harness import late_import, probe

PROBE = Path(probe.__file__)


def _python(*arguments: str, cwd: Path | None = None) -> str:
    """The output of a fresh interpreter, which finds nothing but what is installed."""
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _probe(*arguments: str) -> dict[str, Any]:
    return json.loads(_python(str(PROBE), *arguments).splitlines()[-1])


# what the probe says: what is right, and why it matters
FACTS: dict[str, tuple[Any, str]] = {
    "aten operators changed": (
        [
            "aten::_foreach_addcdiv.Tensor",
            "aten::_foreach_addcdiv_.Tensor",
            "aten::_foreach_addcmul.Tensor",
            "aten::_foreach_addcmul_.Tensor",
            "aten::_pin_memory",
        ],
        "the speed of CPU tensors: every dispatch key runs what it ran; but torch would ask the device for its memory,"
        " and has no meta functions for numbers in a tensor",
    ),
    "torch changed": ([], "default device and dtype, modes, threads, the random generator"),
    "torch changed by use": ([], "as above, after a call and a compilation"),
    "process changed": ([], "environment, warnings"),
    "jax config changed": ([], "x64, platforms, asynchronous dispatch, matmul precision"),
    "jax config changed by use": ([], "as above, after a call and a compilation"),
    "jax backends started": (False, "jax.distributed and platform choices are still open after the import"),
    "arrays outside": ("float32", "x64 is on inside kernels alone"),
    "tensor attributes changed": (
        ["as_subclass", "is_jax", "jax"],
        "no __torch_function__; docs/patches.md has the first, torch gives any device two",
    ),
    "module attributes changed": (["jax"], "torch gives any device this one"),
}


@pytest.mark.parametrize("fact", FACTS)
def test_import_leaves_alone(fact: str) -> None:
    expected, why = FACTS[fact]
    assert _probe()[fact] == expected, why


def test_import_loads_neither_compiler_nor_models() -> None:
    heavy = ("torch._dynamo", "torch._inductor", "torch.testing", "sympy", "scipy", "transformers")
    assert [m for m in _probe()["modules"] if m.startswith(heavy)] == []


def test_plain_tensors_have_no_torch_function() -> None:
    assert not torch.overrides.has_torch_function([torch.ones(2), torch.nn.Parameter(torch.ones(2))])
    assert torch.Tensor.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def _loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x @ y) * x.sin()).sum()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_other_backends_still_work(backend: str) -> None:
    if backend == "inductor" and shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("Inductor's CPU backend needs a C++ compiler")
    torch.manual_seed(0)
    torch._dynamo.reset()
    x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    expected = _loss(x, y)
    got = torch.compile(_loss, backend=backend, fullgraph=True)(x, y)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got, (x, y)), torch.autograd.grad(expected, (x, y)))


def test_other_backends_see_atens_operators() -> None:
    seen: set[str] = set()

    def note(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        targets = (n.target for n in gm.graph.nodes if n.op == "call_function")
        seen.update(t.namespace for t in targets if isinstance(t, torch._ops.OpOverload))
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    x = torch.ones(4, 4, requires_grad=True)
    torch.compile(_loss, backend=aot_autograd(fw_compiler=note, bw_compiler=note))(x, x).backward()
    assert seen == {"aten"}


@pytest.mark.exhaustive  # test_installing.py does this of a wheel
def test_backend_is_found_without_an_import(tmp_path: Path) -> None:
    program = "import torch; print(torch.compile(torch.nn.Linear(4, 4), backend='jaten')(torch.ones(2, 4)).shape)"
    assert "torch.Size([2, 4])" in _python("-c", program, cwd=tmp_path)


@pytest.mark.exhaustive
@pytest.mark.sampled(8)
@pytest.mark.parametrize("place", late_import.PLACES)
def test_import_in_the_middle_of_a_program(place: str) -> None:
    _python(late_import.__file__, place)


FOREIGN: dict[str, Any] = {
    "owner": "foo",
    "fallback of jaten": False,
    "direct": [2.0, 2.0],
    "gradient of compiled": [2.0, 2.0, 2.0],
}


@pytest.mark.parametrize("fact", FOREIGN)
def test_another_backend_keeps_its_slot(fact: str) -> None:
    assert _probe("foreign")[fact] == FOREIGN[fact]


@pytest.mark.parametrize("use", ["require", "tensor"])
def test_device_names_the_owner_of_its_slot(use: str) -> None:
    outcome = _probe("foreign")[use]
    assert outcome.startswith("DeviceSlotError") and "'foo'" in outcome and "import jaten_ops before" in outcome


def test_unknown_device_raises_torchs_error() -> None:
    """torch parses the name of a device before anything of jaten could answer."""
    assert _probe("foreign")["to"].startswith("RuntimeError: Expected one of cpu")


def _override_an_operator() -> Callable[[], None]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_foobar", lambda x, *args, **kwargs: x, "AutogradCPU")
    return library._destroy


def _set_a_dtype() -> Callable[[], None]:
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(torch.float32)


def _configure_jax() -> Callable[[], None]:
    jax.config.update("jax_default_matmul_precision", "highest")
    return lambda: jax.config.update("jax_default_matmul_precision", None)


def _enter_a_mode() -> Callable[[], None]:
    mode = LoggingTensorMode()
    mode.__enter__()
    return lambda: mode.__exit__(None, None, None)


# a change, the state in which the probe sees it, and what it says
CHANGES: list[tuple[Callable[[], Callable[[], None]], Callable[[], dict[str, Any]], list[str]]] = [
    (_override_an_operator, probe._dispatch, ["aten::_foobar"]),
    (_set_a_dtype, probe._torch_state, ["default dtype"]),
    (_enter_a_mode, probe._torch_state, ["dispatch modes"]),
    (_configure_jax, probe._jax_config, ["jax_default_matmul_precision"]),
]


@pytest.mark.parametrize(("change", "state", "says"), CHANGES, ids=lambda x: getattr(x, "__name__", ""))
def test_the_probe_sees_a_change(change: Callable, state: Callable, says: list[str]) -> None:
    before = state()
    undo = change()
    try:
        after = state()
    finally:
        undo()
    assert probe._changed(before, after) == says
    assert probe._changed(before, state()) == []
