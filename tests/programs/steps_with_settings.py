"""Training steps that read settings, which change between calls, wherever people keep them, or draw what is next."""

from __future__ import annotations

import argparse
import random
import types
from collections import ChainMap, UserDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .steps import SCENARIOS, Scenario, Wrap, batches, make, state_of

SCALE = 1.0
MASK: torch.Tensor | None = None
MODULE = types.ModuleType("settings")
MODULE.scale = 1.0  # type: ignore[attr-defined]  # a module of the user


class Settings:
    """A class that is never instantiated, and defaults of the objects that are."""

    scale = 1.0
    table = {"scale": 1.0}  # noqa: RUF012  # as people write it

    def __getitem__(self, name: str) -> float:
        return self.table[name]

    @property
    def doubled(self) -> float:
        return self.scale * 2


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class Small(nn.Module):
    """One layer, whose `forward` reads globals."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(x) * SCALE
        return y if MASK is None else y * MASK


def _double(holder: Any, name: str = "scale") -> None:
    setattr(holder, name, getattr(holder, name, 1.0) * 2)


def _set_global(name: str, value: Any) -> None:
    globals()[name] = value


Found = tuple[Callable[[], Any], dict[int, Callable[[], Any]]]
"""A function whose value a step multiplies its loss with, and the changes before some calls, by their numbers."""


SETTINGS: dict[str, Callable[[nn.Module], Found]] = {}


def setting(fn: Callable[[nn.Module], Found]) -> Callable[[nn.Module], Found]:
    SETTINGS[fn.__name__] = fn
    return fn


@setting
def of_class(model: nn.Module) -> Found:
    Settings.scale = 1.0
    return lambda: Settings.scale, {2: lambda: _double(Settings), 4: lambda: _double(Settings)}


@setting
def default_of_objects(model: nn.Module) -> Found:
    Settings.scale, Settings.table, own = 1.0, {"scale": 1.0}, Settings()
    changes = {
        2: lambda: _double(own), 3: lambda: delattr(own, "scale"), 4: lambda: _double(Settings),
        5: lambda: Settings.table.update(scale=3.0),
    }  # fmt: skip
    return lambda: own.doubled * own["scale"], changes


@setting
def of_module(model: nn.Module) -> Found:
    MODULE.scale = 1.0  # type: ignore[attr-defined]
    return lambda: MODULE.scale, {2: lambda: _double(MODULE)}


@setting
def namespaces(model: nn.Module) -> Found:
    one, two = argparse.Namespace(scale=1.0), types.SimpleNamespace(inner=types.SimpleNamespace(scale=1.0))
    return lambda: one.scale * two.inner.scale, {2: lambda: _double(one), 4: lambda: _double(two.inner)}


@setting
def slots(model: nn.Module) -> Found:
    own = Slotted()
    return lambda: own.scale, {2: lambda: _double(own)}


@setting
def named_by_text(model: nn.Module) -> Found:
    own = types.SimpleNamespace(scale=1.0)
    return lambda: getattr(own, "scale"), {2: lambda: _double(own)}  # noqa: B009  # as people write it


@setting
def new_attributes(model: nn.Module) -> Found:
    changes = {2: lambda: _double(model, "extra"), 4: lambda: _double(model.head, "extra")}
    return lambda: getattr(model, "extra", 1.0) * getattr(model.head, "extra", 1.0), changes


@setting
def of_parameters(model: nn.Module) -> Found:
    weight: Any = model.head.weight  # type: ignore[union-attr]
    weight.scale = 1.0
    return lambda: weight.scale, {2: lambda: _double(weight), 4: lambda: _double(weight)}


@setting
def wrappers(model: nn.Module) -> Found:
    one, two = UserDict(scale=1.0), ChainMap({"scale": 1.0}, {"scale": 3.0})
    return lambda: one["scale"] * two["scale"], {2: lambda: one.update(scale=2.0), 4: lambda: two.pop("scale")}


@setting
def large(model: nn.Module) -> Found:
    one, two = [1.0] * 100, dict.fromkeys(range(100), 1.0)
    changes = {2: lambda: one.__setitem__(7, 2.0), 4: lambda: two.__setitem__(50, 3.0)}
    return lambda: one[7] * two[50], changes


@setting
def sets(model: nn.Module) -> Found:
    names, params = {"a"}, {model.head.weight}  # type: ignore[union-attr]
    changes = {
        2: lambda: names.add("b"), 3: lambda: (names.remove("b"), names.add("c")),
        4: lambda: (params.clear(), params.add(model.head.bias)),  # type: ignore[union-attr]
    }  # fmt: skip
    return lambda: 1.0 + ("b" in names) + 2 * (model.head.bias in params), changes  # type: ignore[union-attr]


@setting
def globals_of_forward(model: nn.Module) -> Found:
    _set_global("SCALE", 1.0), _set_global("MASK", None)
    mask = torch.full((3,), 2.0, dtype=torch.float64, device=model.head.bias.device)  # type: ignore[union-attr]
    changes = {2: lambda: _set_global("SCALE", 2.0), 4: lambda: _set_global("MASK", mask)}
    return lambda: 1.0, changes | {6: lambda: (_set_global("SCALE", 1.0), _set_global("MASK", None))}


@setting
def methods(model: nn.Module) -> Found:
    forward = model.forward
    changes = {2: lambda: setattr(model, "forward", lambda x: forward(x) * 2), 4: lambda: delattr(model, "forward")}
    return lambda: 1.0, changes


@setting
def hooks_of_all_modules(model: nn.Module) -> Found:
    handles: list[Any] = []
    add = nn.modules.module.register_module_forward_hook
    changes = {2: lambda: handles.append(add(lambda *a: a[2] * 1.5)), 4: lambda: handles.pop().remove()}
    return lambda: 1.0, changes


@setting
def random_of_python(model: nn.Module) -> Found:
    random.seed(0), np.random.seed(0)
    own = np.random.default_rng(0), random.Random(0)
    return lambda: random.random() + np.random.rand() + own[0].random() + own[1].random(), {}


@setting
def generator_of_torch(model: nn.Module) -> Found:
    generator = torch.Generator().manual_seed(0)
    return lambda: torch.rand((), generator=generator).item(), {}


@setting
def on_the_cpu(model: nn.Module) -> Found:
    scale, two, three = torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)
    box = types.SimpleNamespace(read=torch.tensor(1.0), taken=two)
    changes: dict[int, Callable[[], Any]] = {
        2: lambda: scale.fill_(4), 3: lambda: setattr(box, "read", torch.tensor(2.0)), 4: lambda: two.fill_(5),
        5: lambda: setattr(box, "taken", three), 6: lambda: setattr(box, "taken", two),
    }  # fmt: skip
    return lambda: (scale + 1).item() * float(box.read) * box.taken, changes


@setting
def counted_on_the_cpu(model: nn.Module) -> Found:
    count = torch.tensor(0.0)
    return lambda: count.add_(1).item(), {}


@setting
def what_comes_next(model: nn.Module) -> Found:
    one, two = iter([1.0, 2.0, 3.0] * 3), (i + 1.0 for i in range(9))
    return lambda: next(one) + next(two), {}


def _read(setting_of: Callable[[nn.Module], Found]) -> Scenario:
    def reading(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device, Small)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        factor, changes = setting_of(model)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) * factor()
            loss.backward()
            optimizer.step()
            return loss

        run = wrap(step)
        for i, (x, y) in enumerate(batches(device, 7)):
            changes.get(i, lambda: None)()
            yield run(x, y), state_of(model, optimizer)

    return reading


for _name, _make in SETTINGS.items():
    SCENARIOS[f"settings: {_name}"] = _read(_make)


def _argument(cls: type, fresh: bool) -> Scenario:
    def argument(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device, Small)
        optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.05), cls()

        def step(batch: Any) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch.x), batch.y) * batch.scale
            loss.backward()
            optimizer.step()
            batch.loss = loss.detach()
            return loss

        run = wrap(step)
        for i, (x, y) in enumerate(batches(device, 6)):
            batch = cls() if fresh else batch
            batch.x, batch.y, batch.scale = x, y, 1.0 + i // 3
            yield run(batch), state_of(model, optimizer), batch.loss

    return argument


class Batch:
    """An argument with tensors in its attributes."""

    x: Any
    y: Any
    scale: float
    loss: Any = None


SCENARIOS["settings: an argument"] = _argument(Batch, fresh=True)
SCENARIOS["settings: the same argument"] = _argument(types.SimpleNamespace, fresh=False)
