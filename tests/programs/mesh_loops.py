"""Layers partitioned by `fully_shard`, in loops and in checkpoints: their parameters are gathered there."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import jaten_ops
from jaten_ops import distributed

from .mesh_programs import Programs

PROGRAMS = Programs()
_WIDTH = 32


class Block(nn.Module):
    """A perceptron between a norm and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 128), nn.Linear(128, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def _blocks(n: int) -> tuple[nn.ModuleList, Any, nn.ModuleList]:
    mesh = distributed.make_mesh(data=8)
    plain = nn.ModuleList(Block() for _ in range(n))
    return distributed.fully_shard(copy.deepcopy(plain), mesh), mesh, plain


def _checkpointed(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


FORMS: dict[str, Callable[[nn.ModuleList, Tensor], Tensor]] = {
    "scan": lambda layers, x: jaten_ops.scan_layers(layers, x),
    "scan, remat": lambda layers, x: jaten_ops.scan_layers(layers, x, remat=True),
    "checkpoint": _checkpointed,
}
WAYS = ("eager", "compiled", "a step", "as_jax")


def trained(form: str, way: str) -> None:
    """Asserts that values and gradients are those of plain layers, and that gradients are where parameters are."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers, mesh, plain = _blocks(3)
    x = torch.randn(16, _WIDTH)
    expected = x
    for layer in plain:
        expected = layer(expected)
    expected.square().mean().backward()
    given, run = distributed.distribute_batch(x, mesh), FORMS[form]
    if way == "as_jax":
        _in_jax(run, layers, given, plain)
        return
    call = torch.compile(run, backend="jaten", fullgraph=True) if way == "compiled" else run

    def step(x: Tensor) -> Tensor:
        for parameter in layers.parameters():
            parameter.grad = None
        value = call(layers, x)
        value.square().mean().backward()
        return value.detach()

    step = jaten_ops.compile_step(step) if way == "a step" else step
    for _ in range(2):
        value = step(given)
    torch.testing.assert_close(value.cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    for one, other in zip(layers.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-6)
        assert one.grad.sharding == one.sharding
    torch.testing.assert_close(layers[0](given).cpu(), plain[0](x))  # its parameters are its own again


def _in_jax(run: Callable[[nn.ModuleList, Tensor], Tensor], layers: Any, given: Any, plain: nn.ModuleList) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            return run(self.layers, x).square().mean()

    model = Model()
    function = jaten_ops.as_jax(model)
    gradients = jax.jit(jax.grad(function))(jaten_ops.to_jax(dict(model.state_dict())), jaten_ops.to_jax(given))
    for name, parameter in plain.named_parameters():
        found = jaten_ops.from_jax(gradients[f"layers.{name}"]).cpu()
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-6)


@PROGRAMS
def a_layer_at_a_time() -> None:
    """One layer at a time is whole on a device, in the loops for values and for gradients."""
    gathered: dict[tuple[int, bool], list[str]] = {}
    memory: dict[tuple[int, bool], int] = {}
    for n in (4, 12):
        for remat in (False, True):
            layers, mesh, _ = _blocks(n)
            step: Any = jaten_ops.compile_step(
                lambda x, m=layers, r=remat: jaten_ops.scan_layers(m, x, remat=r).square().mean().backward()
            )
            x = distributed.distribute_batch(torch.randn(16, _WIDTH), mesh)
            executable = step.executable_for(x)
            memory[n, remat] = executable.memory_analysis().temp_size_in_bytes
            computation = ""
            for line in executable.as_text().splitlines():
                if re.match(r"ENTRY|%", line):
                    computation = line.split()[0]
                if " all-gather" in line:
                    assert computation != "ENTRY", line
                    gathered.setdefault((n, remat), []).append(line)
    for remat in (False, True):
        assert len(gathered[4, remat]) == len(gathered[12, remat]) >= 4  # matrices, for values and gradients
        layer = sum(p.numel() for p in Block().parameters()) * 4
        assert (
            memory[12, remat] - memory[4, remat] < 8 * layer * 0.75
        )  # parts of parameters and gradients: an eighth each
