"""Recurrent layers on the device, an operator for each layer and direction, beside ATen's on the CPU."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import jaten_ops  # noqa: F401  # the device jax

from ..harness.crossings import crossed

LAYERS: dict[str, Any] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **settings: nn.RNN(*sizes, nonlinearity="relu", **settings),
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True},
]


def _pair(name: str, **settings: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    module = LAYERS[name](5, 6, **settings).double()
    return module, copy.deepcopy(module).to("jax")


def _states(module: Any, batch: int, device: str) -> Any:
    count = module.num_layers * (2 if module.bidirectional else 1)
    states = torch.linspace(-1, 1, 2 * count * batch * 6, dtype=torch.float64).view(2, count, batch, 6)
    moved = [s.clone().to(device).requires_grad_() for s in states]
    return tuple(moved) if isinstance(module, nn.LSTM) else moved[0]


def _tensors(tree: Any) -> list[Tensor]:
    return list(tree) if isinstance(tree, tuple) else [tree]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "settings"), crossed(LAYERS, SETTINGS))
def test_values_and_gradients(name: str, settings: dict[str, Any]) -> None:
    """With and without states at the start; second derivatives too."""
    found, given = [], not settings.get("bias", True) or not settings
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for module, device in zip(_pair(name, **settings), ("cpu", "jax"), strict=True):
        inputs = [x.to(device).requires_grad_()]
        inputs += [_states(module, 4 if module.batch_first else 3, device)] if given else []
        out, last = module(*inputs)
        results = [out, *_tensors(last)]
        wanted = [inputs[0], *(_tensors(inputs[1]) if given else ()), *module.parameters()]
        total = sum((r * r).sum() for r in results)
        grads = torch.autograd.grad(total, wanted, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in grads), wanted)
        found.append([t.detach().cpu() for t in (*results, *grads, *second)])
    for got, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_without_saved_gates(name: str) -> None:
    """A call that was not made for training has no gates to save."""
    module = _pair(name)[1]
    cell = name.lower() if name in ("LSTM", "GRU") else f"rnn_{name}"
    x = torch.randn(4, 3, 5, dtype=torch.float64).to("jax").requires_grad_()
    hx, cx = (torch.full((3, 6), n, dtype=torch.float64, device="jax", requires_grad=True) for n in (0.5, -0.3))
    wanted = [x, hx, *([cx] if cell == "lstm" else []), *module.parameters()]
    found = []
    for train in (True, False):
        out, hy, cy, gates, cells = torch.ops.jaten_nn.rnn_layer(
            x, hx, cx if cell == "lstm" else None, *module.parameters(), cell, True, train
        )
        assert train or gates.numel() == cells.numel() == 0
        total = out.sin().sum() + hy.cos().sum() + (cy.sin().sum() if cell == "lstm" else 0)
        grads = torch.autograd.grad(total, wanted, create_graph=True)
        found.append([*grads, *torch.autograd.grad(sum(g.pow(2).sum() for g in grads), wanted)])
    for with_gates, without in zip(*found, strict=True):
        torch.testing.assert_close(without.cpu(), with_gates.cpu())


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_where_all_is_zero(name: str) -> None:
    found = []
    for module, device in zip(_pair(name), ("cpu", "jax"), strict=True):
        with torch.no_grad():
            [p.zero_() for p in module.parameters()]
        x = torch.ones(4, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
        found.append([g.cpu() for g in torch.autograd.grad(module(x)[0].sum(), [x, *module.parameters()])])
    for got, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "dtype"), crossed(LAYERS, [torch.bfloat16, torch.float16]), ids=str)
def test_gradients_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """No further from those in double precision, of the same operands, than ten roundings of the largest element."""
    module = _pair(name)[1].to(dtype)
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = []
    for wide, device in ((torch.float64, "cpu"), (dtype, "jax")):
        own = copy.deepcopy(module).to(device).to(wide)
        leaf = x.to(device).to(wide).requires_grad_()
        found.append(torch.autograd.grad(own(leaf)[0].sum(), [leaf, *own.parameters()]))
    for expected, got in zip(*found, strict=True):
        bound = 10 * torch.finfo(dtype).eps * expected.abs().max().item()
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu().double(), expected, rtol=0, atol=bound)


def _packed(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module applied to packed sequences of 4, 2 and 1 steps; packing them has no forward mode in torch."""
    return lambda x: module(nn.utils.rnn.PackedSequence(x.flatten(0, 1)[:7], torch.tensor([3, 2, 1, 1])))[0].data


# how a layer or a cell is made, and what is computed of an input (4, 3, 5) with it
FORWARD: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Callable[[Tensor], Tensor]]]] = {
    **{name: (functools.partial(LAYERS[name], 5, 6), lambda m: lambda x: m(x)[0]) for name in ("LSTM", "GRU", "tanh")},
    "LSTM, two layers": (
        lambda: nn.LSTM(5, 6, 2, bidirectional=True, batch_first=True),
        lambda m: lambda x: m(x)[1][1],
    ),
    "LSTM, projected": (lambda: nn.LSTM(5, 6, proj_size=4), lambda m: lambda x: m(x)[0]),
    "LSTM cell": (lambda: nn.LSTMCell(5, 6, bias=False), lambda m: lambda x: m(x[0], m(x[1]))[1]),
    "GRU cell": (lambda: nn.GRUCell(5, 6), lambda m: lambda x: m(x[0], m(x[1]))),
}
# torch's transforms refuse these on the CPU: they read the batch sizes from a tensor that has no memory there
PACKED: dict[str, Any] = {f"{n}, packed": (functools.partial(LAYERS[n], 5, 6), _packed) for n in ("LSTM", "GRU")}


def _dual(f: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))).tangent


def _jvp(f: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    return torch.func.jvp(f, (x,), (tangent,))[1]


WAYS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]] = {
    "dual tensors": _dual,
    "jvp": _jvp,
    "jacfwd": lambda f, x, _: torch.func.jacfwd(lambda x: f(x).sin().sum())(x),
    "hessian": lambda f, x, _: torch.func.hessian(lambda x: f(x).sin().sum())(x),
    "compiled": lambda f, x, t: torch.compile(lambda x, t: _jvp(f, x, t), backend="jaten")(x, t),
}


@pytest.mark.parametrize(("name", "way"), [*crossed(FORWARD, WAYS), *((name, "dual tensors") for name in PACKED)])
@pytest.mark.usefixtures("fresh_dynamo")
def test_forward_mode(name: str, way: str) -> None:
    """ATen's fused cells, which it takes on a device, have none."""
    make, function = (FORWARD | PACKED)[name]
    torch.manual_seed(0)
    module = make().double()
    x, tangent = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    expected = WAYS["jvp" if way == "compiled" else way](function(module), x, tangent)
    found = WAYS[way](function(module.to("jax")), x.to("jax"), tangent.to("jax"))
    torch.testing.assert_close(found.cpu(), expected)


def _operators(result: Tensor) -> list[str]:
    """The names of the nodes that autograd has of a result."""
    found, left = {}, [result.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            left += [following for following, _ in node.next_functions]
    return [*found.values()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LAYERS)
def test_one_operator_for_all_steps(name: str) -> None:
    module = LAYERS[name](5, 6).to("jax")
    few, many = (_operators(module(torch.ones(steps, 2, 5, device="jax"))[0]) for steps in (3, 30))
    assert sorted(few) == sorted(many)


def test_dropout_between_layers() -> None:
    module = nn.LSTM(5, 6, 2, dropout=0.5).to("jax")
    x = torch.ones(3, 2, 5, device="jax")
    torch.manual_seed(0)
    first = module(x)[0]
    assert not torch.equal(first, module(x)[0])
    torch.manual_seed(0)
    assert torch.equal(first, module(x)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])


def test_projection() -> None:
    """It has no operator: ATen's composition computes it."""
    module, on_jax = _pair("LSTM", proj_size=4)
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(on_jax(x.to("jax"))[0].cpu(), module(x)[0])


def test_autocast() -> None:
    module = nn.GRU(5, 6).to("jax")
    with torch.autocast("jax", dtype=torch.bfloat16):
        out, _ = module(torch.ones(4, 3, 5, device="jax"))
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("wrong", ["sizes", "input", "parameters", "dtype"])
def test_errors(wrong: str) -> None:
    for module, device in zip(_pair("GRU"), ("cpu", "jax"), strict=True):
        weights = [p.detach() for p in module.parameters()]
        x, hx = torch.ones(2, 3, 5, dtype=torch.float64, device=device), torch.zeros(1, 3, 6).double().to(device)
        if wrong == "sizes":
            hx = hx[..., :4]
        elif wrong == "input":
            x = x[..., :4]
        elif wrong == "parameters":
            weights.pop()
        else:
            x = x.float()
        with pytest.raises(RuntimeError):
            torch.gru(x, hx, weights, True, 1, 0.0, False, False, False)


def test_a_cell_whose_results_have_no_gradients() -> None:
    """Autograd asks so, as `gradcheck` does; ATen returns nothing then."""
    state, gates = torch.ones(1, 2, device="jax"), torch.ones(1, 8, device="jax")
    backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
    assert backward(None, None, state, state, gates, True) == (None, None, None)
