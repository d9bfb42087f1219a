"""An exception in a backward pass on the device reaches who called it, from wherever it was raised."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from jaten_ops.errors import MissingKernelError


class Stop(Exception):
    pass


def _stop(*_: Any) -> Any:
    raise Stop("here")


def _of_tensor(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(_stop)
    return y * y


def _of_leaf(x: Tensor) -> Tensor:
    x.register_hook(_stop)
    return x * x


def _of_node(x: Tensor) -> Tensor:
    y = x * x
    assert y.grad_fn is not None
    y.grad_fn.register_hook(_stop)
    return y * 2


def _after_accumulation(x: Tensor) -> Tensor:
    x.register_post_accumulate_grad_hook(_stop)
    return x * x


def _of_module(x: Tensor) -> Tensor:
    layer = nn.Linear(3, 3).to("jax")
    layer.register_full_backward_hook(_stop)
    return layer(x)


def _unpacked(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t, _stop):
        return x * x


def _recomputed(x: Tensor) -> Tensor:
    calls: list[Tensor] = []

    def part(x: Tensor) -> Tensor:
        calls.append(x)
        return x.exp() * x if len(calls) == 1 else _stop()

    return checkpoint(part, x * 2, use_reentrant=False)


def _reentrant(x: Tensor) -> Tensor:
    return checkpoint(
        lambda x: _of_tensor(x) if x.requires_grad and torch.is_grad_enabled() else x * x, x, use_reentrant=True
    )


PLACES = [_of_tensor, _of_leaf, _of_node, _after_accumulation, _of_module, _unpacked, _recomputed, _reentrant]


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_exception(place: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(3, device="jax", requires_grad=True)
    out = place(x).sum()
    with pytest.raises(Stop, match="here"):
        out.backward()
    y = torch.ones(3, device="jax", requires_grad=True)
    (y * 3).sum().backward()  # the next pass knows nothing of it
    assert y.grad is not None


_RAISED = [StopIteration(), StopIteration(3), GeneratorExit(), KeyError("x"), SystemExit(2), KeyboardInterrupt()]


@pytest.mark.parametrize("raised", _RAISED, ids=repr)
def test_exceptions_of_all_kinds(raised: BaseException) -> None:
    """Some of them mean something to the generators by which the device answers torch."""
    w = torch.ones(2, device="jax", requires_grad=True)

    def fail(_grad: Tensor) -> None:
        raise raised

    handle = w.register_hook(fail)
    for _ in range(100):  # more often than there are generators
        with pytest.raises(type(raised)) as caught:
            (w * 2).sum().backward()
        assert caught.value.args == raised.args
    handle.remove()
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]


def test_missing_kernel() -> None:
    out = nn.Embedding(5, 2, sparse=True).to("jax")(torch.tensor([1, 2], device="jax"))
    with pytest.raises(MissingKernelError, match="sparse"):
        out.sum().backward()


def test_exception_in_a_thread() -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            _of_tensor(torch.ones(3, device="jax", requires_grad=True)).sum().backward()
        except Stop as error:
            caught.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caught) == len(threads)


def test_errors_of_torch_itself() -> None:
    x = torch.ones(3, device="jax", requires_grad=True)
    out = (x * x).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


@pytest.mark.usefixtures("fresh_dynamo")
def test_between_graphs() -> None:
    """The engine leaves alone what it runs between a program's graphs; conftest.py checks that."""

    def program(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        y = (x * 2).tanh()
        torch._dynamo.graph_break()
        y.sum().backward()
        return y

    x = torch.ones(3, device="jax", requires_grad=True)
    y = torch.compile(program, backend="jaten")(x)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * (1 - y.detach() ** 2))


class _Elsewhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.ones(3)


ELSEWHERE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "backward": lambda x, grad: (x * 2).backward(grad),
    "backward of several": lambda x, grad: torch.autograd.backward((x * 2, x * 3), (torch.ones_like(x), grad)),
    "backward for inputs": lambda x, grad: (x * 2).backward(grad, inputs=(x,)),
    "grad": lambda x, grad: torch.autograd.grad(x * 2, x, grad),
    "grad that records": lambda x, grad: torch.autograd.grad(x * 2, x, grad, create_graph=True),
}


@pytest.mark.parametrize("devices", [("jax", "cpu"), ("cpu", "jax")])
@pytest.mark.parametrize("call", ELSEWHERE)
def test_gradients_on_another_device_are_refused(call: str, devices: tuple[str, str]) -> None:
    x = torch.ones(3, device=devices[0], requires_grad=True)
    with pytest.raises(RuntimeError, match=rf"invalid gradient at index . - expected device {devices[0]}.* but got"):
        ELSEWHERE[call](x, torch.ones(3, device=devices[1]))
    assert x.grad is None
    (x.sum() * 2).backward(torch.ones((), device=devices[1]))  # torch moves those without dimensions
    assert x.grad is not None and x.grad.device == x.device and x.grad.tolist() == [2, 2, 2]


def test_a_function_that_returns_a_gradient_of_another_device() -> None:
    x = torch.ones(3, device="jax", requires_grad=True)
    with pytest.raises(RuntimeError, match=r"autograd\.Function .*invalid gradient at index 0 - expected device jax:0"):
        torch.autograd.grad(_Elsewhere.apply(x).sum(), x)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_passes_from_edges(device: str) -> None:
    x, other = (torch.ones(3, device=device, requires_grad=True) for _ in range(2))
    edges = [(torch.autograd.graph.get_gradient_edge(x * 2),) for _ in range(3)]
    ones = (torch.ones(3, device=device),)
    first, none = torch.autograd.grad(edges[0], (x, other), ones, allow_unused=True)
    assert none is None and first.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="to not have been used"):
        torch.autograd.grad(edges[1], (x, other), ones)
    torch.autograd.backward(edges[2], ones)
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]
