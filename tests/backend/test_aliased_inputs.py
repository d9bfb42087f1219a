"""Compiled programs whose inputs are not contiguous, or lie in one memory: as eager torch, on both devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.testing import CompileCounterWithBackend

from ..harness.crossings import crossed

DEVICES = ("cpu", "jax")
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "columns": lambda x: x[..., 1:],
    "every other row": lambda x: x[::2],
    "selected": lambda x: x[:, 1],
    "expanded": lambda x: x.expand(2, *x.shape),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "windows": lambda x: x.unfold(2, 2, 1),
    "flipped twice": lambda x: x.flip(0).transpose(1, 2)[1:],
    "channels last": lambda x: x.expand(2, *x.shape).contiguous(memory_format=torch.channels_last),
}


def _base(device: str) -> torch.Tensor:
    return torch.arange(60.0, dtype=torch.float64).reshape(4, 3, 5).to(device)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("device", "view", "dynamic"), crossed(DEVICES, VIEWS, [False, None, True]))
def test_any_strides_are_taken(device: str, view: str, dynamic: bool | None) -> None:
    compiled = torch.compile(lambda x: (x * 2 + x.sum(-1, keepdim=True)).sin(), backend="jaten", dynamic=dynamic)
    for base in (_base(device), torch.cat([_base(device)] * 2)):  # the second with another size
        expected = VIEWS[view](base.cpu()).requires_grad_()
        given = VIEWS[view](base).requires_grad_()
        result, truth = compiled(given), (expected * 2 + expected.sum(-1, keepdim=True)).sin()
        torch.testing.assert_close(result.cpu(), truth)
        result.sum().backward()
        truth.sum().backward()
        torch.testing.assert_close(given.grad.cpu(), expected.grad)


def _write_first(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return b + 1


def _write_both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    b.add_(a.sum())
    return a - b.mean()


def _read(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.sum() + b


PAIRS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "whole and part": lambda x: (x, x[::2]),
    "part and whole": lambda x: (x[1:], x),
    "two names": lambda x: (x, x.view_as(x)),
    "detached": lambda x: (x.detach(), x),
    "apart": lambda x: (x[:2], x[2:]),
    "columns that interleave": lambda x: (x[..., ::2], x[..., 1::2]),
    "other dtype": lambda x: (x.view(torch.int64), x),
    "strangers": lambda x: (x, x.clone()),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("device", "program", "pair", "dynamic"),
    crossed(DEVICES, [_write_first, _write_both, _read], PAIRS, [None, True], strength=3),
)
def test_inputs_may_share_memory(device: str, program: Any, pair: str, dynamic: bool | None) -> None:
    torch._dynamo.reset()  # torch's guards mistake plain inputs that share nothing for some that did
    compiled = torch.compile(program, backend="jaten", dynamic=dynamic)
    x, truth = _base(device), _base("cpu")
    if device == "cpu" and pair in ("other dtype", "detached") and program is not _read:
        with pytest.raises(BackendCompilerFailed, match=r"does not yet handle .*input mutations"):  # AOTAutograd's
            compiled(*PAIRS[pair](x))
        return
    for _ in range(2):
        torch.testing.assert_close(compiled(*PAIRS[pair](x)).cpu(), program(*PAIRS[pair](truth)))
        torch.testing.assert_close(x.cpu(), truth)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("program", "pair", "count"),
    [
        (_write_first, "whole and part", 1),
        (_write_first, "apart", 0),
        (_write_first, "strangers", 0),
        (_read, "whole and part", 0),
    ],
)
def test_only_calls_that_need_it_run_operator_by_operator(
    program: Any, pair: str, count: int, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="jaten", dynamic=dynamic)
    with caplog.at_level(logging.INFO, logger="jaten_ops.backend.aliased_inputs"):
        compiled(*PAIRS[pair](_base("jax")))
    assert len(caplog.records) == count


def _written(b: torch.Tensor) -> torch.Tensor:
    b.mul_(2)
    return b.sin() + 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("device", "is_used", "view", "dynamic"),
    crossed(DEVICES, [False, True], ["whole", "columns", "transposed", "every other row"], [None, True]),
)
def test_what_is_written_has_a_gradient(device: str, is_used: bool, view: str, dynamic: bool | None) -> None:
    torch._dynamo.reset()  # of itself, Dynamo would make the sizes dynamic
    gradients = []
    for where, run in ((device, torch.compile(_written, backend="jaten", dynamic=dynamic)), ("cpu", _written)):
        x = (_base(where) / 60).requires_grad_()
        y = x * 1
        result = run(VIEWS[view](y))
        (result.sum() + (y.square().sum() if is_used else 0)).backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_what_is_written_may_change_its_strides() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(_written, backend="jaten")
    for view in ("columns", "transposed"):  # the second has other sizes and strides: Dynamo makes them dynamic
        gradients = []
        for device, run in (("jax", compiled), ("cpu", _written)):
            x = (_base(device) / 60).requires_grad_()
            run(VIEWS[view](x * 1)).sum().backward()
            assert x.grad is not None
            gradients.append(x.grad.cpu())
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("device", DEVICES)
def test_a_slice_that_moves_is_compiled_once(device: str) -> None:
    counter = CompileCounterWithBackend("jaten")
    compiled = torch.compile(lambda x: x * 2, backend=counter)
    x = _base(device)
    for i in range(3):
        torch.testing.assert_close(compiled(x[:, :, i : i + 2]).cpu(), x.cpu()[:, :, i : i + 2] * 2)
    assert counter.frame_count == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", DEVICES)
def test_a_stride_is_a_number_of_the_program(device: str) -> None:
    compiled = torch.compile(lambda x: (x * x.stride(0), x.expand(2, *x.shape) * 2), backend="jaten", dynamic=True)
    for size in (2, 3, 4):
        for view in (_base(device)[..., :size], _base(device)[..., :size].contiguous()):
            product, expanded = compiled(view)
            torch.testing.assert_close(product.cpu(), view.cpu() * view.stride(0))
            torch.testing.assert_close(expanded.cpu(), view.cpu().expand(2, *view.shape) * 2)


def _cosines(x: torch.Tensor) -> torch.Tensor:
    return x[:2].cos()


PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a view": lambda x: x.as_strided((2,), (1,), 3) * 2,
    "the first element": lambda x: x[1:].as_strided((2,), (1,), storage_offset=0) * 2,
    "its own": lambda x: x.as_strided((2,), (1,)) * 2,
    "a copy": lambda x: torch.as_strided_copy(x, (2,), (1,), 1).sin(),
    "a scatter": lambda x: torch.as_strided_scatter(x, x[:2], (2,), (1,), 3),
    "a write": lambda x: (x * 2, x.as_strided((2,), (1,), 3).mul_(2))[0],
    "another memory": lambda x: (x * 2).as_strided((2,), (1,), 1),
    "in a branch": lambda x: torch.cond(x.sum() > 0, lambda x: x.as_strided((2,), (1,), 3).sin(), _cosines, (x,)),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_is_one_of_memory(name: str) -> None:
    """Also if an input begins later in it, which a program of the device does not know."""
    torch._dynamo.reset()
    call = PLACES[name]
    compiled = torch.compile(call, backend="jaten")
    for start in (0, 2, 3, 0):
        one, other = (torch.arange(10.0).to(device) for device in ("cpu", "jax"))
        torch.testing.assert_close(compiled(other[start:]).cpu(), call(one[start:]))
        torch.testing.assert_close(other.cpu(), one)
