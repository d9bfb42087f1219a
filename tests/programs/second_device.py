"""Programs on the second of JAX's devices, for a process that has two: what each makes, and where that is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import jaten_ops

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 2),
    "empty_like": lambda x: torch.empty_like(x).zero_(),
    "rand_like": lambda x: torch.rand_like(x) * 0,
    "new_zeros": lambda x: x.new_zeros(3),
    "new_full": lambda x: x.new_full((3,), 2),
    "new_tensor": lambda x: x.new_tensor([1.0, 2]),
    "filled": lambda x: x.clone().fill_(3),
    "zeroed": lambda x: x.clone().zero_(),
    "drawn": lambda x: x.clone().normal_() * 0,
    "dropped": lambda x: F.dropout(x, 1.0),
    "a factory": lambda x: torch.arange(3, device=x.device),
    "a factory beside": lambda x: (x + 1, torch.ones(2, device=x.device)),
    "moved back": lambda x: torch.zeros_like(x, device=x.device).cpu(),
    "a gradient": lambda x: torch.autograd.grad((y := x.clone().requires_grad_()).select(0, 1).sum(), y)[0],
    "a copy": copy.deepcopy,
    "a number on the CPU": lambda x: x * torch.tensor(2.0),
    "a short number on the CPU": lambda x: x * torch.tensor(2.0, dtype=torch.bfloat16),
    "indices on the CPU": lambda x: x[torch.tensor([1, 0, 1])],
    "direct": lambda x: torch.ops.jaten.zeros_like(x) if x.device.type == "jax" else torch.zeros_like(x),
}
COMPILED = (
    "a factory",
    "zeros_like",
    "rand_like",
    "new_full",
    "filled",
    "zeroed",
    "a factory beside",
    "dropped",
    "moved back",
    "a number on the CPU",
    "a short number on the CPU",
    "indices on the CPU",
)


def _device(name: str) -> str:
    return "cpu" if name == "moved back" else "jax:1"


def _step() -> list[torch.Tensor]:
    layer = torch.nn.Linear(3, 2).to("jax:1")
    optimizer = torch.optim.AdamW(layer.parameters())

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), torch.zeros_like(x)

    compiled = jaten_ops.compile_step(step, layer, optimizer)
    for _ in range(3):
        results = compiled(torch.ones(4, 3).to("jax:1"))
    return [*results, layer.weight, optimizer.state[layer.weight]["exp_avg"]]


def _moved_step() -> list[torch.Tensor]:
    """The results of a step whose module has moved from the first device, where it was compiled."""
    layer = torch.nn.Linear(3, 2).to("jax:0")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    compiled = jaten_ops.compile_step(step, layer, optimizer)
    for device in ("jax:0", "jax:1"):
        layer.to(device)
        for _ in range(2):
            loss = compiled(torch.ones(4, 3).to(device))
    return [loss, layer.weight]


def _wrong(name: str, got: Any, expected: Any) -> list[str]:
    """The results of a program that differ from those on the CPU, or are not on the second device."""
    wrong = []
    parts = got if isinstance(got, tuple | list) else [got]
    wanted = expected if isinstance(expected, tuple | list) else [expected]
    for one, other in zip(parts, wanted, strict=True):
        if str(one.device) != _device(name):
            wrong.append(f"on {one.device}")
        elif one.device.type == "jax" and {d.id for d in one.view_of_arrays.read().devices()} != {1}:
            wrong.append(f"its array is on {one.view_of_arrays.read().devices()}")
        elif other is not None and not torch.equal(one.cpu(), other):
            wrong.append(f"{one.cpu()}, not {other}")
    return wrong


if __name__ == "__main__":
    x = torch.arange(6.0).view(2, 3)
    outcomes = {n: _wrong(n, fn(x.to("jax:1")), fn(x)) for n, fn in PROGRAMS.items()}
    for name in COMPILED:
        compiled = torch.compile(PROGRAMS[name], backend="jaten")(x.to("jax:1"))
        outcomes[f"compiled {name}"] = _wrong(name, compiled, PROGRAMS[name](x))
    outcomes["a step"] = _wrong("a step", _step(), [None] * 4)
    outcomes["a moved step"] = _wrong("a moved step", _moved_step(), [None] * 2)
    print(json.dumps(outcomes))
