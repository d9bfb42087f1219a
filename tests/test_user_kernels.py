"""Operators of users in all ways in which programs call and differentiate functions, beside torch's own operators."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import jaten_ops

from .harness.crossings import crossed
from .harness.in_threads import together
from .harness.ways_of_calls import WAYS, Call, assert_alike, loss, made_of
from .programs.user_kernels import KINDS

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Operands = list[Tensor]


def _gradients(call: Call, operands: Operands) -> list[Any]:
    result = call(*operands)
    return [result, *torch.autograd.grad(loss(result), operands)]


class _Module(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call(x, y)


def _of_size(operands: Operands, rows: int) -> Operands:
    return [torch.cat([x.detach()] * 3)[:rows].requires_grad_() for x in operands]


def _each_size(call: Call, operands: Operands) -> list[Any]:
    return [found for rows in (3, 5, 4, 7) for found in _gradients(call, _of_size(operands, rows))]


def compiled_for_sizes(call: Call, operands: Operands) -> list[Any]:
    return _each_size(torch.compile(call, backend="jaten", dynamic=True), operands)


def compiled_by_aot_eager(call: Call, operands: Operands) -> list[Any]:
    return _gradients(torch.compile(call, backend="aot_eager"), operands)


def exported_for_sizes(call: Call, operands: Operands) -> list[Any]:
    rows = torch.export.Dim("rows", min=3, max=64)
    given = tuple(x.detach() for x in operands)
    program = torch.export.export(_Module(call), given, dynamic_shapes=((sizes := {0: rows}), sizes))
    return [program.module()(*_of_size(operands, n)).detach() for n in (3, 5)]


def exported_and_loaded(call: Call, operands: Operands) -> list[Any]:
    given, file = tuple(x.detach() for x in operands), io.BytesIO()
    torch.export.save(torch.export.export(_Module(call), given).run_decompositions(), file)
    file.seek(0)
    return [torch.export.load(file).module()(*given)]


def step(call: Call, operands: Operands) -> list[Any]:
    def run(*operands: Tensor) -> Any:
        return _gradients(call, [x.detach().requires_grad_() for x in operands])

    return [x.detach() for x in jaten_ops.compile_step(run)(*[x.detach() for x in operands])]


def as_jax(call: Call, operands: Operands) -> list[Any]:
    function, given = jaten_ops.as_jax(call), [jaten_ops.to_jax(x.detach().to("jax")) for x in operands]
    gradients = jax.jit(jax.grad(lambda *xs: jnp.sum(jnp.sin(function(*xs))), (0, 1)))(*given)
    return [jaten_ops.from_jax(x) for x in (jax.jit(function)(*given), *gradients)]


def graph_of_fakes(call: Call, operands: Operands) -> list[Any]:
    given = [x.detach() for x in operands]
    return [make_fx(call, tracing_mode="fake")(*given)(*[x * 2 for x in given])]


def functionalized(call: Call, operands: Operands) -> list[Any]:
    return [torch.func.functionalize(call)(*[x.detach() for x in operands])]


def on_meta(call: Call, operands: Operands) -> list[Any]:
    return [torch.zeros_like(call(*[x.detach().to("meta") for x in operands]), device="cpu")]


def of_transposes(call: Call, operands: Operands) -> list[Any]:
    return _gradients(call, [x.detach().mT.contiguous().mT.requires_grad_() for x in operands])


def of_slices(call: Call, operands: Operands) -> list[Any]:
    with torch.no_grad():
        return [call(torch.cat([operands[0]] * 2, 1)[:, ::2], torch.cat([operands[1]] * 2)[::2])]


def in_three_threads(call: Call, operands: Operands) -> list[Any]:
    return [x for found in together(lambda _: _gradients(call, operands), 3) for x in found]


MORE: dict[Callable[..., Any], Callable[..., Any]] = {
    compiled_for_sizes: _each_size,
    compiled_by_aot_eager: _gradients,
    exported_for_sizes: lambda call, operands: [call(*_of_size(operands, n)).detach() for n in (3, 5)],
    exported_and_loaded: lambda call, operands: [call(*operands).detach()],
    step: lambda call, operands: [x.detach() for x in _gradients(call, operands)],
    as_jax: lambda call, operands: [x.detach() for x in _gradients(call, operands)],
    graph_of_fakes: lambda call, operands: [call(*[x.detach() * 2 for x in operands])],
    functionalized: lambda call, operands: [call(*operands).detach()],
    on_meta: lambda call, operands: [torch.zeros_like(call(*operands).detach())],
    of_transposes: of_transposes,
    of_slices: of_slices,
    in_three_threads: lambda call, operands: _gradients(call, operands) * 3,
}
"""Ways beside `WAYS`, and what torch's operators are asked for in their place."""

ERRORS: dict[tuple[str, str], tuple[type[Exception], str]] = {
    ("random numbers", "func_vmap"): (RuntimeError, "randomness"),
    ("random numbers", "func_hessian"): (RuntimeError, "randomness"),
    ("random numbers", "as_jax"): (RuntimeError, "needs a key"),
    ("a device", "on_meta"): (NotImplementedError, "Cannot copy out of meta tensor"),
}
"""The calls that raise, as torch's own operators do that draw numbers, or that move what has no values."""


@pytest.mark.parametrize(("kind", "way", "device"), crossed(KINDS, [*WAYS, *MORE], ["cpu", "jax"], strength=1))
def test_it_is_what_torchs_operators_are(kind: str, way: Callable[..., Any], device: str) -> None:
    function, plain = KINDS[kind]
    sizes = [(3, 4), (3, 4)]
    if (kind, way.__name__) in ERRORS:
        error, says = ERRORS[kind, way.__name__]
        with pytest.raises(error, match=says):
            way(function, made_of(sizes, device))
        return
    expected = MORE.get(way, way)(plain, made_of(sizes, "cpu"))
    single = {"rtol": 1e-5, "atol": 1e-5} if way.__name__ == "autocast" else {}  # it computes in float32
    assert_alike(way(function, made_of(sizes, device)), expected, check_stride=False, **single)
