"""Gradients of compiled programs on the device: `.grad` after passes of all kinds, as on the CPU, and who is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from jaten_ops.backend import leaf_gradients
from jaten_ops.tensor.tensor import PUT_IN_PLACE
from tests.harness.crossings import crossed

Told = list[Any]
Loss = Callable[[], torch.Tensor]
Way = Callable[[nn.Module, Loss, Told], Any]


def _once(model: nn.Module, loss: Loss, told: Told) -> None:
    loss().backward()


def _accumulated(model: nn.Module, loss: Loss, told: Told) -> None:
    loss().backward()
    kept = [p.grad for p in model.parameters()]
    loss().backward()
    told.append([p.grad is k for p, k in zip(model.parameters(), kept, strict=True)])


def _two_graphs_in_a_pass(model: nn.Module, loss: Loss, told: Told) -> None:
    (loss() + 2 * loss()).backward()


def _kept_graph(model: nn.Module, loss: Loss, told: Told) -> None:
    one = loss()
    one.backward(retain_graph=True)
    one.backward()


def _set_to_zero(model: nn.Module, loss: Loss, told: Told) -> None:
    loss().backward()
    model.zero_grad(set_to_none=False)
    loss().backward()
    model.zero_grad()
    told.append([p.grad for p in model.parameters()])
    loss().backward()


def _hooks_on_tensors(model: nn.Module, loss: Loss, told: Told) -> None:
    hook = model.get_parameter("0.weight").register_hook(lambda g: (told.append(g.sum()), g * 3)[1])
    loss().backward()
    hook.remove()
    model.zero_grad()
    loss().backward()


def _hooks_on_gradients(model: nn.Module, loss: Loss, told: Told) -> None:
    model[0].bias.register_post_accumulate_grad_hook(lambda p: told.append(p.grad.sum()))  # type: ignore[index]
    loss().backward()


def _hooks_on_nodes(model: nn.Module, loss: Loss, told: Told) -> None:
    nodes = [p.expand_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]  # type: ignore[union-attr]
    told += [None, None]  # in whatever order the engine calls them
    nodes[0].register_prehook(lambda grads: (told.__setitem__(0, grads[0].sum()), (grads[0] * 2,))[1])
    nodes[1].register_hook(lambda _, grads: told.__setitem__(1, grads[0].sum()))
    loss().backward()


def _for_some(model: nn.Module, loss: Loss, told: Told) -> None:
    loss().backward(inputs=[model[0].weight])  # type: ignore[index]


def _asked_for(model: nn.Module, loss: Loss, told: Told) -> None:
    told.extend(torch.autograd.grad(loss(), list(model.parameters())))
    told.append([p.grad for p in model.parameters()])


def _in_a_pass(model: nn.Module, loss: Loss, told: Told) -> None:
    """A pass that asks for gradients within one that accumulates them."""

    def ask(grad: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            told.extend(torch.autograd.grad(loss(), list(model.parameters())))
        told.append([p.grad is None for p in model.parameters()])
        return grad

    one = loss()
    one.register_hook(ask)
    one.backward()


def _frozen_later(model: nn.Module, loss: Loss, told: Told) -> None:
    one = loss()
    model[0].bias.requires_grad_(False)  # type: ignore[index]
    one.backward()
    model[0].bias.requires_grad_(True)  # type: ignore[index]


def _recomputed(model: nn.Module, loss: Loss, told: Told) -> None:
    for reentrant in (True, False):
        x = torch.ones((), device=next(model.parameters()).device, requires_grad=True)
        checkpoint(lambda x: loss() * x, x, use_reentrant=reentrant).backward()
        told.append(x.grad)


def _in_a_thread(model: nn.Module, loss: Loss, told: Told) -> None:
    one = loss()
    thread = threading.Thread(target=one.backward)
    thread.start()
    thread.join()


def _anomaly(model: nn.Module, loss: Loss, told: Told) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        loss().backward()


def _laid_out(model: nn.Module, loss: Loss, told: Told) -> None:
    """A parameter with other strides, which its gradient takes."""
    with torch.no_grad():
        model[0].weight.data = model[0].weight.t().clone().t()  # type: ignore[index]
    loss().backward()
    told.append([p.grad.stride() for p in model.parameters()])  # type: ignore[union-attr]


def _with_optimizer(model: nn.Module, loss: Loss, told: Told) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def _written_to(model: nn.Module, loss: Loss, told: Told) -> None:
    """A gradient is the parameter's own: what is written to it nobody else sees."""
    loss().backward()
    grads: list[Any] = [p.grad for p in model.parameters()]
    for grad in grads:
        grad.mul_(2)
        told.append((grad._version, grad.requires_grad, grad._is_view(), grad.is_leaf))
    loss().backward()


WAYS: list[Way] = [
    _once, _accumulated, _two_graphs_in_a_pass, _kept_graph, _set_to_zero, _hooks_on_tensors, _hooks_on_gradients,
    _hooks_on_nodes, _for_some, _asked_for, _in_a_pass, _frozen_later, _recomputed, _in_a_thread, _anomaly, _laid_out,
    _with_optimizer, _written_to,
]  # fmt: skip


def _plain(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _run(way: Way, device: str, shared: bool, outside: bool) -> list[Any]:
    torch.manual_seed(3)
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()]
    model = nn.Sequential(*layers, *([layers[0]] if shared else [])).to(device)
    x = torch.randn(3, 4).to(device)

    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x) if outside else model(x).square().mean()

    fn = torch.compile(run, backend="jaten") if device == "jax" else run
    told: Told = []
    way(model, lambda: fn(x).square().mean() if outside else fn(x), told)
    found = [*told, *[p.grad for p in model.parameters()], *model.parameters()]
    return [[_plain(v) for v in value] if isinstance(value, list) else _plain(value) for value in found]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("way", "shared", "outside"), crossed(WAYS, [False, True], [False, True]))
def test_gradients(way: Way, shared: bool, outside: bool) -> None:
    for got, expected in zip(*[_run(way, d, shared, outside) for d in ("jax", "cpu")], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6, allow_subclasses=False)


@pytest.mark.usefixtures("fresh_dynamo")  # or other sizes before have made the program one of open sizes
def test_gradients_are_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[list[bool]] = []
    put = leaf_gradients.put_in_place

    def watched(gradients: list[Any]) -> None:
        put(gradients)
        left.append([g is None or g is PUT_IN_PLACE for g in gradients])

    monkeypatch.setattr(leaf_gradients, "put_in_place", watched)
    model = nn.Linear(4, 4).to("jax")
    fn = torch.compile(model, backend="jaten")
    x = torch.randn(3, 4, device="jax")
    for _ in range(2):  # into `.grad`, then added to it
        fn(x).sum().backward()
    assert left == [[True] * 3, [False, False, True]]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("context", ["torch.inference_mode()", "torch.no_grad()", "torch.device('meta')"])
def test_the_first_program_of_a_process_may_be_compiled_anywhere(context: str) -> None:
    program = f"""
import torch, jaten_ops
x, model = torch.ones(3), torch.nn.Linear(3, 2).to("jax")
with {context}:
    torch.compile(lambda x: x * 2, backend="jaten")(x)
torch.compile(model, backend="jaten")(x.to("jax")).sum().backward()
assert model.bias.grad.tolist() == [1, 1]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
