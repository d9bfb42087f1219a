"""Steps that freeze parameters, assign `tensor.data`, have gradient hooks or step a schedule, beside plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaten_ops import compile_step

from ..programs.steps import Scenario, Wrap, assert_as_plain_torch, batches, classify, make, state_of

CHANGES: dict[str, Scenario] = {}


def _flags(model: nn.Module) -> list[bool]:
    return [p.requires_grad for p in model.parameters()]


def _trained(change: Callable[..., Any], *, after: bool = False, optimizer_of: Any = None) -> Scenario:
    """A step that changes something of the model before or after it trains, by an argument."""

    def trained(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        average = make(device, seed=4)
        optimizer = (optimizer_of or (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)))(model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor, i: int) -> torch.Tensor:
            optimizer.zero_grad()
            if not after:
                change(model, average, i)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if after:
                change(model, average, i)
            return loss

        run = wrap(step)
        for at in (0, 0, 0, 1, 1, 0, 1, 0):
            for x, y in batches(device, 1):
                yield run(x, y, at), state_of(model, optimizer), _flags(model), state_of(average), _flags(average)
                model.head.bias.data.mul_(0.5)  # type: ignore[union-attr,operator]

    return trained


def _swapped(model: nn.Module, average: nn.Module, i: int) -> None:
    for p, q in zip(model.parameters(), average.parameters(), strict=True):
        p.data, q.data = q.data, p.data


def _averaged(model: nn.Module, average: nn.Module, i: int) -> None:
    for p, q in zip(model.parameters(), average.parameters(), strict=True):
        q.data = 0.9 * q.data + 0.1 * p.data


def _assigned(make_data: Callable[[Any, Any], torch.Tensor]) -> Callable[..., None]:
    def assigned(model: Any, average: Any, i: int) -> None:
        model.head.weight.data = make_data(model.head.weight, average.head.weight)

    return assigned


CHANGES |= {
    "freezes by an argument": _trained(lambda m, a, i: m.one.requires_grad_(i == 0)),
    "freezes at each call, after": _trained(lambda m, a, i: m.one.weight.requires_grad_(False), after=True),
    "freezes by an argument, after": _trained(lambda m, a, i: m.one.requires_grad_(bool(i)), after=True),
    "freezes by assignment": _trained(lambda m, a, i: setattr(m.late.bias, "requires_grad", i == 1)),
    "freezes and unfreezes within": _trained(
        lambda m, a, i: (m.requires_grad_(False), m(torch.ones_like(m.one.weight)), m.requires_grad_(True))
    ),
    "freezes what it does not train": _trained(lambda m, a, i: a.requires_grad_(i == 1), after=True),
    "flips at each call": _trained(lambda m, a, i: [p.requires_grad_(not p.requires_grad) for p in m.one.parameters()]),
    "unfreezes after a forward pass": _trained(
        lambda m, a, i: (a.requires_grad_(False), a(m.one.weight), a.requires_grad_(), a(m.one.weight).sum().backward())
    ),
    "data: new": _trained(_assigned(lambda w, e: w.detach() * 0.9), after=True),
    "data: new, before": _trained(_assigned(lambda w, e: w.data * 0.9)),
    "data: of another": _trained(_assigned(lambda w, e: e.data), after=True),
    "data: of another, a copy": _trained(_assigned(lambda w, e: e.data.clone())),
    "data: a view": _trained(_assigned(lambda w, e: (w.data * 2).t().contiguous().t())),
    "data: rows of a larger one": _trained(_assigned(lambda w, e: torch.cat([e.data, w.data])[1:4]), after=True),
    "data: averaged into another": _trained(_averaged, after=True),
    "data: swapped": _trained(_swapped, after=True),
    "data: by an argument": _trained(lambda m, a, i: _swapped(m, a, 0) if i else None),
    "data: Adam": _trained(
        _assigned(lambda w, e: w.data.clamp(-0.3, 0.3)), after=True, optimizer_of=lambda p: torch.optim.Adam(p, lr=0.01)
    ),
    "data: and frozen": _trained(
        lambda m, a, i: (setattr(m.one.weight, "data", m.one.weight.data * 0.5), m.one.weight.requires_grad_(i == 1))
    ),
    "data: in place": _trained(lambda m, a, i: m.one.weight.data.mul_(0.9)),
}  # fmt: skip


SAMPLE = (
    "freezes by an argument, after", "freezes by assignment", "flips at each call", "unfreezes after a forward pass",
    "data: new", "data: of another", "data: a view", "data: averaged into another", "data: swapped", "data: and frozen",
)  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.exhaustive) for n in CHANGES]
)
def test_changes_of_tensors_happen_at_each_call(name: str) -> None:
    assert_as_plain_torch(CHANGES[name])


def _hooked(edit: Callable[[Any, int, dict[str, Any]], None]) -> Scenario:
    def hooked(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        step = classify(model, optimizer)

        run, kept = wrap(step), {"factor": torch.tensor(0.5, dtype=torch.float64, device=device)}
        for i, (x, y) in enumerate(batches(device, 9)):
            edit(model, i, kept)
            yield run(x, y), state_of(model, optimizer)

    return hooked


def _add(model: Any, i: int, kept: dict[str, Any]) -> None:
    if i in (2, 6):
        kept["handle"] = model.one.weight.register_hook(lambda g: g * 2)
    if i in (4, 8):
        kept["handle"].remove()


def _replace(model: Any, i: int, kept: dict[str, Any]) -> None:
    if "handle" in kept:
        kept["handle"].remove()
    kept["handle"] = model.head.weight.register_hook((lambda g: g * 3) if i % 4 < 2 else (lambda g: g - 1))


def _accumulated(model: Any, i: int, kept: dict[str, Any]) -> None:
    if i == 2:
        add = model.one.bias.register_post_accumulate_grad_hook
        kept["handle"] = add(lambda p: setattr(p, "grad", p.grad * kept["factor"]))
    if i == 4:
        kept["factor"].fill_(3)
    if i == 6:
        kept["handle"].remove()


def _several(model: Any, i: int, kept: dict[str, Any]) -> None:
    handles = kept.setdefault("handles", [])
    if i < 5:
        handles.append(model.head.bias.register_hook(lambda g: g + 0.1))
    else:
        handles.pop(0).remove()


HOOKS = {
    "added and removed": _hooked(_add),
    "replaced": _hooked(_replace),
    "after accumulation": _hooked(_accumulated),
    "several": _hooked(_several),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_gradients_take_effect(name: str) -> None:
    assert_as_plain_torch(HOOKS[name])


def test_hooks_that_come_again_compile_nothing() -> None:
    model = make("jax")

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        model.zero_grad()

    fn: Any = compile_step(step)
    for _ in range(6):
        handles = [p.register_hook(lambda g: g * 2) for p in model.parameters()]
        handles.append(model.one.register_forward_hook(lambda *a: None))  # type: ignore[union-attr,operator]
        fn(torch.ones(2, 4, dtype=torch.float64))
        for handle in handles:
            handle.remove()
    assert fn._compiles == 1


def test_a_step_that_raises_leaves_flags_and_data() -> None:
    model = make("jax")
    weight = model.one.weight  # type: ignore[union-attr]
    met = nn.Parameter(torch.ones(2, device="jax"))

    def step(x: torch.Tensor, fail: bool) -> torch.Tensor:
        if fail:
            model.head.requires_grad_(False)  # type: ignore[union-attr,operator]
            weight.data = weight.data * 2
            met.requires_grad_(False)
            met.data = torch.zeros(5, device="jax")
            x.requires_grad_()
            raise KeyError("mine")
        return model(x).sum() + met.sum()

    fn = compile_step(step)
    x = torch.ones(2, 4, dtype=torch.float64, device="jax")
    expected, before = fn(x, False), weight.detach().clone()
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            fn(x, True)
        assert all(_flags(model)) and met.requires_grad and not x.requires_grad
        assert torch.equal(weight, before) and met.shape == (2,)
        assert torch.equal(fn(x, False), expected)
