"""Small tensors that are saved for the backward pass in one array: gradients, and what is not joined."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.backend import small_saved_tensors
from tests.harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
Program = Callable[[Tensor, Tensor], Any]


def _steps(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(4):
        x = torch.tanh(x @ w) * x.sigmoid()
    return x


def _masks(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(4):
        x = (x @ w).relu() + x.abs().clamp(0.1, 2)
    return x


def _parts(x: Tensor, w: Tensor) -> Tensor:
    a, b = (x @ w).split([2, 3], 1)
    return (a.sin() @ b[:2].cos()).tanh() * (b.exp().mT @ b.mT[:3].mT.sin()).mean() + a.unbind(1)[0].atan().sum()


def _views_of_inputs(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = (x @ w.mT).sin() * x.view(-1)[:25].view(5, 5).cos()
    return x


def _results_too(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    a = (x @ w).sin()
    b = (a @ w).cos()
    c = (b @ w).exp()
    return a, b.mT, c.sum(), c.tanh()


def _indices(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(4):
        values, at = (x @ w).sort(1)
        x = values.gather(1, at.flip(1)) * x.sin()
    return x


def _norms(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.nn.functional.layer_norm(x @ w, (5,)) + torch.nn.functional.softmax(x, 0)
    return x


def _images(x: Tensor, w: Tensor) -> Tensor:
    y = x.view(1, 1, 5, 5)
    for _ in range(3):
        y = torch.nn.functional.conv2d(y, w[:3, :3].view(1, 1, 3, 3), padding=1).sin() * w[0].cos()
    return y


def _dropped(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.nn.functional.dropout(x @ w, 0.5)  # masks, of which all elements are the same in both passes
    return x + w * 0


PROGRAMS: dict[str, Program] = {
    "steps": _steps, "masks": _masks, "parts": _parts, "views of inputs": _views_of_inputs,
    "results, too": _results_too, "indices": _indices, "norms": _norms, "images": _images,
}  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def _given(dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.rand(2, 5, 5, dtype=torch.float64).to(dtype).to(device)
    return x.clone().requires_grad_(), w.clone().requires_grad_()


def _total(results: Any) -> Tensor:
    """Each element counts differently: the sum of a norm has no gradient."""
    each = results if isinstance(results, tuple) else (results,)
    weighted = [(r.double().flatten() * torch.arange(1.0, r.numel() + 1, device=r.device)).sum() for r in each]
    return torch.stack(weighted).sum()


def _saved(program: Program, given: tuple[Tensor, Tensor], **settings: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.compile(program, backend="jaten", **settings)(*given)
    torch._dynamo.reset()
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "dtype", "device", "dynamic"), crossed(PROGRAMS, DTYPES, ("cpu", "jax"), (False, True))
)
def test_gradients(name: str, dtype: torch.dtype, device: str, dynamic: bool) -> None:
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="jaten", dynamic=dynamic)
    exact, atens, found = (
        [g.cpu().double() for g in torch.autograd.grad(_total(run(*given)), given)]
        for run, given in ((program, _given()), (program, _given(dtype)), (compiled, _given(dtype, device)))
    )
    for mine, right, aten in zip(found, exact, atens, strict=True):
        # twice ATen's own error, and each of about 25 operations in a row rounds where that is luckily small
        allowed = 2 * (aten - right).abs().max().item() + 25 * torch.finfo(dtype).eps * right.abs().max().item()
        assert (mine - right).abs().max().item() <= allowed


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", ["steps", "masks", "indices", "norms"])
def test_fewer_are_saved(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "0")
    joined = _saved(PROGRAMS[name], _given(device=device))
    monkeypatch.setattr(small_saved_tensors, "_FEWEST", 1000)
    each = _saved(PROGRAMS[name], _given(device=device))
    assert len(joined) <= len(each) - 4
    assert sum(t.nbytes for t in joined) == sum(t.nbytes for t in each)


def test_large_ones_and_few_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "0")
    monkeypatch.setattr(small_saved_tensors, "LARGEST", 8 * 25 - 1)
    assert all(t.dim() == 2 for t in _saved(_steps, _given()))
    monkeypatch.setattr(small_saved_tensors, "LARGEST", 8 * 25)
    assert any(t.dim() == 1 for t in _saved(_steps, _given()))
    assert all(t.dim() == 2 for t in _saved(lambda x, w: (x @ w).sin() @ w, _given()))


def _of_parameters(x: Tensor, w: Tensor) -> Tensor:
    """Beside rows of any number what is saved has sizes that do not change."""
    return (x @ w).sin() * (w.sin().exp().tanh() * w.cos()).sum(0)


def test_sizes_that_change_are_rounded_as_before(caplog: pytest.LogCaptureFixture) -> None:
    _, w = _given()
    compiled = torch.compile(lambda x: _of_parameters(x, w), backend="jaten", dynamic=True)
    with caplog.at_level("INFO", "jaten_ops"):
        for rows in (7, 6, 9, 11, 13, 8):
            x = torch.rand(rows, 5, dtype=torch.float64)
            expected = torch.autograd.grad(_of_parameters(x, w).sum(), w)
            torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), w), expected)
    compiles = {r.getMessage() for r in caplog.records if ": compile " in r.getMessage()}
    assert len(compiles) <= 6, compiles  # forward and backward, for the first two sizes, and for all others


WAYS: dict[str, Callable[[Program], Program]] = {
    "compiled": lambda f: torch.compile(f, backend="jaten"),
    "checkpoint": lambda f: lambda x, w: checkpoint(torch.compile(f, backend="jaten"), x, w, use_reentrant=False),
    "checkpoint inside": lambda f: torch.compile(
        lambda x, w: checkpoint(f, x, w, use_reentrant=False), backend="jaten"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_called_in_other_ways(way: str) -> None:
    given = _given()
    run, expected = WAYS[way](_steps), torch.autograd.grad(_steps(*given).sum(), given)
    for _ in range(2):
        loss = run(*given).sum()
        for _ in range(2):  # the graph is retained
            torch.testing.assert_close(torch.autograd.grad(loss, given, retain_graph=True), expected)
    with save_on_cpu():
        loss = run(*given).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, given), expected)


def test_writes_to_inputs_before_the_backward_pass_are_noticed() -> None:
    """As without the compile: inputs, and views of them, are saved as they are."""
    for run in (_views_of_inputs, torch.compile(_views_of_inputs, backend="jaten")):
        x, w = _given()
        result = run(x, w)
        with torch.no_grad():
            w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def _undefined(x: Tensor, w: Tensor) -> Tensor:
    return (_steps(x, w) * 0).sqrt()


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_nan_of_the_backward_pass_is_found(device: str) -> None:
    """There the graph runs without an executable, and of a graph from the disk less is known."""
    x, w = _given(device=device)
    with torch.autograd.detect_anomaly(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that anomaly detection is slow, and where the forward call was
        total = torch.compile(_undefined, backend="jaten")(x, w).sum()
        with pytest.raises(RuntimeError, match="nan"):
            total.backward()


def test_random_masks_are_those_of_the_forward_pass() -> None:
    x, w = _given()
    with torch.no_grad():
        w.copy_(torch.eye(5))
    out = torch.compile(_dropped, backend="jaten")(x, w)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad * x.detach(), out.detach())  # a product of the masks, in both
