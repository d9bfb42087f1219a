"""Small gradients that are parts of one array: their values, and that each is a tensor of its own."""

from __future__ import annotations

import gc
import io
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from jaten_ops.backend import small_gradients
from tests.harness.crossings import crossed

SHAPES: list[tuple[int, ...]] = [
    (4,),
    (),
    (3, 5),
    (1,),
    (2, 1, 3),
    (40, 40),
    (0, 3),
    (33,),
    (17, 2),
    (4,),
    (70, 80),
    (3, 5),
]
DTYPES: dict[str, list[torch.dtype]] = {
    "float32": [torch.float32],
    "float64": [torch.float64],
    "mixed": [torch.float32, torch.float64],
    "with bfloat16": [torch.float32, torch.bfloat16],
}


class Terms(nn.Module):
    """A sum of functions of parameters of many shapes."""

    def __init__(self, dtypes: list[torch.dtype]) -> None:
        super().__init__()
        each = zip(SHAPES, itertools.cycle(dtypes), strict=False)
        self.terms = nn.ParameterList(torch.linspace(-1, 1, max(1, int(np.prod(s)))).to(d)[: int(np.prod(s))].reshape(s)
                                      for s, d in each)  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.stack([(p.double() * (i + 1)).sin().sum() for i, p in enumerate(self.terms)]).sum()


def _gradients(model: nn.Module) -> list[Any]:
    return [p.grad for p in model.parameters()]


def _once(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    loss().backward()


def _written_to(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    """A write to one gradient, which changes no other."""
    loss().backward()
    for i, grad in enumerate(_gradients(model)):
        before = grad._version
        grad.add_(i)
        assert grad._version == before + 1


def _accumulated(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    kept = loss()
    kept.backward(retain_graph=True)
    kept.backward()
    loss().backward()


def _hooked(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    for p in model.parameters():
        p.register_hook(lambda g: g.mul_(2))
    loss().backward()


def _stepped(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    for _ in range(3):
        loss().backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.7)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    loss().backward()


WAYS = [_once, _written_to, _accumulated, _hooked, _stepped]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("dtypes", "way"), crossed(list(DTYPES), WAYS))
def test_values(dtypes: str, way: Callable[..., None]) -> None:
    found = []
    for compiled in (True, False):
        model = Terms(DTYPES[dtypes])
        fn = torch.compile(model, backend="jaten") if compiled else model
        way(model, lambda fn=fn: fn(torch.tensor(2.0, dtype=torch.float64)))
        found.append([*_gradients(model), *model.parameters()])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def _trained(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[small_gradients.Pack]]:
    """The gradients of a model, and the packs in which they came."""
    made: list[small_gradients.Pack] = []
    pack = small_gradients.packs
    monkeypatch.setattr(small_gradients, "packs", lambda given: (found := pack(given), made.extend(found))[0])
    torch._dynamo.reset()
    model = Terms([torch.float32])
    torch.compile(model, backend="jaten")(torch.tensor(2.0, dtype=torch.float64)).backward()
    return _gradients(model), made


def test_each_has_a_storage_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    grads, made = _trained(monkeypatch)
    assert [len(pack.members) for pack in made] == [len(SHAPES) - 3]  # one is large, one is empty, and one a number
    assert len({g.untyped_storage()._cdata for g in grads}) == len(grads)
    for grad in grads:
        assert grad.untyped_storage().nbytes() == grad.nbytes and not grad.storage_offset()
        assert grad.data_ptr() % 64 == 0 and not grad._is_view() and grad.is_leaf
    file = io.BytesIO()
    torch.save(grads[0], file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file), grads[0])


def test_one_outlives_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    grads, _ = _trained(monkeypatch)
    last, expected = grads[2], grads[2].clone()
    del grads
    gc.collect()
    others = [torch.full(shape, -1.0) for shape in SHAPES for _ in range(100)]
    assert len(others) and torch.equal(last, expected)
