"""Operators of users in programs that C++ runs, in another process that has imported the module which makes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_MODULE = """
import jax
import jaten_ops

@jaten_ops.op("cpplib::swish(Tensor x, float beta=1.0) -> Tensor", differentiable=["x"])
def swish(x, beta):
    return x * jax.nn.sigmoid(beta * x)

@jaten_ops.op("cpplib::add_(Tensor(a!) total, Tensor x) -> Tensor(a!)", differentiable=["total", "x"])
def add_(total, x):
    return total + x
"""

_SCRIPTED = """
import torch, cpplib

@torch.jit.script
def run(x, total):
    torch.ops.cpplib.add_(total, x)
    return torch.ops.cpplib.swish(x, 2.0) + torch.ops.cpplib.swish(x)

run.save("scripted.pt")
"""

_LOADED = """
import torch, cpplib

run = torch.jit.load("scripted.pt")
print(torch._C._get_schema("cpplib::add_", ""))
for device in ("cpu", "jax"):
    x, total = torch.ones(2, device=device, requires_grad=True), torch.zeros(2, device=device)
    result = run(x, total)
    expected = x * torch.sigmoid(2 * x) + torch.nn.functional.silu(x)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), torch.autograd.grad(expected.sum(), x))
    print(total.tolist())
"""

_COMPILED = """
import torch, torch._inductor, cpplib

class Module(torch.nn.Module):
    def forward(self, x):
        return torch.ops.cpplib.swish(x + 1, 2.0) * 2

program = torch.export.export(Module(), (torch.ones(3),))
torch._inductor.aoti_compile_and_package(program, package_path="compiled.pt2")
"""

_RUN = """
import torch, torch._inductor, cpplib

result = torch._inductor.aoti_load_package("compiled.pt2")(torch.ones(3))
torch.testing.assert_close(result, 2 * torch.ops.cpplib.swish(torch.full((3,), 2.0), 2.0))
print("ran")
"""


def _run(program: str, folder: Path) -> str:
    (folder / "cpplib.py").write_text(_MODULE, encoding="utf-8")
    (folder / "program.py").write_text(program, encoding="utf-8")  # TorchScript reads the source
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.exhaustive
def test_a_scripted_program_is_loaded(tmp_path: Path) -> None:
    _run(_SCRIPTED, tmp_path)
    assert _run(_LOADED, tmp_path).splitlines() == [
        "cpplib::add_(Tensor(a!) total, Tensor x) -> Tensor(a!)",
        "[1.0, 1.0]",
        "[1.0, 1.0]",
    ]


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles C++")
def test_a_program_of_aotinductor_calls_the_operator(tmp_path: Path) -> None:
    _run(_COMPILED, tmp_path)
    assert _run(_RUN, tmp_path).strip() == "ran"
