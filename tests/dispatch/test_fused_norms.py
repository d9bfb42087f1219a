"""`rms_norm` on the device, beside ATen's on the CPU, in every way that a program differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jaten_ops  # noqa: F401  # the device jax

from ..harness.crossings import crossed
from ..harness.ways_of_calls import LAID_OUT, WAYS, Call, assert_alike, autocast, backward, made_of

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

# Each call, the sizes of its operands, and whether it is one operator.
CALLS: dict[str, tuple[Call, list[tuple[int, ...]], bool]] = {
    "rows": (lambda x, w: F.rms_norm(x, (4,), w), [(3, 4), (4,)], True),
    "no weight": (lambda x: F.rms_norm(x, (4,), None, 1e-3), [(2, 3, 4)], True),
    "two dimensions": (lambda x, w: F.rms_norm(x, (3, 4), w, 0.1), [(2, 3, 4), (3, 4)], True),
    "all dimensions": (lambda x, w: F.rms_norm(x, (4,), w), [(4,), (4,)], True),
    "zeros": (lambda x, w: F.rms_norm(x * 0, (4,), w), [(3, 4), (4,)], True),
    "transposed": (lambda x, w: F.rms_norm(x.t(), (3,), w), [(3, 4), (3,)], False),
    "nothing": (lambda x, w: F.rms_norm(x, (4,), w), [(0, 4), (4,)], False),
}


def _operands(name: str, device: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return made_of(CALLS[name][1], device, dtype)


@pytest.mark.parametrize(("name", "way"), crossed([n for n in CALLS if n != "nothing"], WAYS))
def test_a_call_in_a_way(name: str, way: Callable[[Call, list[Tensor]], list[Any]]) -> None:
    expected, found = (way(CALLS[name][0], _operands(name, device)) for device in ("cpu", "jax"))
    tolerances = {"rtol": 1e-5, "atol": 1e-6} if way is autocast else {}  # float32, of which float64 is made
    assert_alike(found, expected, check_stride=way in LAID_OUT, **tolerances)


@pytest.mark.parametrize(("name", "dtype"), crossed(CALLS, (torch.float32, torch.bfloat16, torch.float16)))
def test_a_dtype(name: str, dtype: torch.dtype) -> None:
    """Gradients of halves within four units: ATen rounds the result of each of its operators."""
    tolerances = (
        {} if dtype is torch.float32 else {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
    )
    expected, found = (backward(CALLS[name][0], _operands(name, device, dtype)) for device in ("cpu", "jax"))
    assert_alike(found[:1], expected[:1])
    assert_alike(found[1:], expected[1:], **tolerances)


@pytest.mark.parametrize("name", CALLS)
def test_one_operator(name: str) -> None:
    call, _, is_fused = CALLS[name]
    node = call(*_operands(name, "jax")).grad_fn
    assert node is not None
    assert ("rms_norm" in node.name()) is is_fused


@pytest.mark.parametrize("sizes", [(3,), (), (4, 4)])
def test_wrong_sizes_are_refused_as_by_aten(sizes: tuple[int, ...]) -> None:
    messages = []
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError) as raised:
            torch.rms_norm(torch.ones(2, 4, device=device), sizes, torch.ones(sizes, device=device))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
