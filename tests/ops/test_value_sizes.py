"""Results whose sizes depend on values, on the device and of direct calls, beside ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import jaten_ops
from jaten_ops.ops import value_sizes

NAN = float("nan")
FLOATS = torch.tensor([2.0, NAN, -0.0, 0.0, 1e-40, 2.0, NAN, -1.0])
NORMAL = FLOATS[FLOATS.nan_to_num().abs() != 1e-40]  # without a denormal number, which XLA takes for zero
WHOLE = torch.tensor([[3, 0, 3], [7, 0, 1]])
CUBE = torch.arange(24.0).reshape(2, 3, 4)
ROWS = torch.tensor([[True, False, True], [False, False, True]])

# the operator by name, and its arguments
CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nonzero": ("nonzero", (FLOATS,)),
    "nonzero, matrix": ("nonzero", (WHOLE,)),
    "nonzero, a number": ("nonzero", (torch.tensor(4.0),)),
    "nonzero, zero": ("nonzero", (torch.tensor(0),)),
    "nonzero, empty": ("nonzero", (torch.ones(0, 3),)),
    "nonzero, complex": ("nonzero", (torch.tensor([0, 1j, 0, 1]),)),
    "nonzero, bfloat16": ("nonzero", (FLOATS.bfloat16(),)),
    "nonzero, transposed": ("nonzero", (WHOLE.t(),)),
    "masked_select": ("masked_select", (WHOLE, ROWS)),
    "masked_select, broadcast": ("masked_select", (CUBE, ROWS[:, :, None])),
    "masked_select, mask of another type": ("masked_select", (WHOLE, WHOLE)),
    "masked_select, mask of another shape": ("masked_select", (WHOLE, ROWS.t())),
    "index, mask": ("index.Tensor", (WHOLE, [ROWS])),
    "index, mask of the first dimensions": ("index.Tensor", (CUBE, [ROWS])),
    "index, mask of the last dimension": ("index.Tensor", (CUBE, [None, None, CUBE[0, 0] > 1])),
    "index, mask in the middle": ("index.Tensor", (CUBE, [None, ROWS[0]])),
    "index, mask that is false": ("index.Tensor", (CUBE, [ROWS & False])),
    "index, mask of a number": ("index.Tensor", (torch.tensor(2.0), [torch.tensor(True)])),
    "index, mask and index": ("index.Tensor", (CUBE, [ROWS[:, 0], torch.tensor([1])])),
    "index, mask of bfloat16": ("index.Tensor", (CUBE.bfloat16(), [ROWS])),
    "index, mask of another shape": ("index.Tensor", (CUBE, [ROWS.t()])),
    "bincount": ("bincount", (WHOLE.flatten(),)),
    "bincount, minlength": ("bincount", (WHOLE.flatten(), None, 12)),
    "bincount, bytes": ("bincount", (WHOLE.flatten().to(torch.uint8),)),
    "bincount, empty": ("bincount", (WHOLE[:0].flatten(), None, 3)),
    "bincount, weights": ("bincount", (WHOLE.flatten(), NORMAL[1:].nan_to_num())),
    "bincount, negative": ("bincount", (-WHOLE.flatten(),)),
    "bincount, matrix": ("bincount", (WHOLE,)),
    "bincount, floats": ("bincount", (FLOATS,)),
    "unique": ("_unique2", (WHOLE,)),
    "unique, all": ("_unique2", (WHOLE, True, True, True)),
    "unique, floats": ("_unique2", (FLOATS, True, True, True)),
    "unique, floats alone": ("_unique2", (FLOATS,)),
    "unique, bool": ("_unique2", (ROWS, True, True, True)),
    "unique, bytes": ("_unique2", (WHOLE.to(torch.uint8), True, False, True)),
    "unique, bfloat16": ("_unique2", (NORMAL.bfloat16(), True, True, True)),
    "unique, empty": ("_unique2", (FLOATS[:0], True, True, True)),
    "unique, a number": ("_unique2", (torch.tensor(4), True, True, True)),
    "unique, older": ("_unique", (WHOLE, True, True)),
    "unique_consecutive": ("unique_consecutive", (FLOATS,)),
    "unique_consecutive, all": ("unique_consecutive", (WHOLE, True, True)),
    "unique_consecutive, dim": ("unique_consecutive", (WHOLE, True, True, 1)),
    "repeat_interleave": ("repeat_interleave.Tensor", (torch.tensor([2, 0, 3]),)),
    "repeat_interleave, int32": ("repeat_interleave.Tensor", (torch.tensor([2, 0, 3], dtype=torch.int32),)),
    "repeat_interleave, empty": ("repeat_interleave.Tensor", (WHOLE[:0].flatten(),)),
    "repeat_interleave, size": ("repeat_interleave.Tensor", (torch.tensor([2, 0, 3]),)),
    "repeat_interleave, negative": ("repeat_interleave.Tensor", (torch.tensor([2, -1]),)),
    "repeat_interleave, matrix": ("repeat_interleave.Tensor", (WHOLE,)),
}
KEYWORDS = {"repeat_interleave, size": {"output_size": 5}}


def _result(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return call(*args, **kwargs)
    except (RuntimeError, IndexError, NotImplementedError) as error:
        return type(error)


def _moved(args: tuple[Any, ...], device: str) -> list[Any]:
    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return [[moved(v) for v in a] if isinstance(a, list) else moved(a) for a in args]


@pytest.mark.parametrize("way", ["device", "direct"])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_aten(name: str, way: str) -> None:
    operator, args = CALLS[name]
    keywords = KEYWORDS.get(name, {})
    base, _, overload = operator.partition(".")

    def op_of(namespace: Any) -> Any:
        return getattr(getattr(namespace, base), overload or "default")

    expected = _result(op_of(torch.ops.aten), *args, **keywords)
    on_device = way == "device"
    call, given = (op_of(torch.ops.aten), _moved(args, "jax")) if on_device else (op_of(torch.ops.jaten), list(args))
    got = _result(call, *given, **keywords)
    if isinstance(expected, type):
        assert got is expected
        return
    pairs = zip(expected, got, strict=True) if isinstance(expected, tuple) else [(expected, got)]
    for e, g in pairs:
        assert g.stride() == torch.empty(e.shape).stride()  # ATen's nonzero alone is otherwise
        assert g.dtype == e.dtype
        torch.testing.assert_close(g.cpu(), e, rtol=0, atol=0, equal_nan=True)


def test_results_keep_to_a_device_as_their_operands_do() -> None:
    """XLA compiles a program once more if one of its operands keeps to a device, where none did before."""
    tensor = torch.arange(4).to("jax")
    values, mask = jaten_ops.to_jax(tensor), jaten_ops.to_jax(tensor > 1)
    kept = jax.device_put(values, jax.local_devices()[0])
    for array in (values, kept):
        for found in (value_sizes.RUNS["nonzero"](array), value_sizes.RUNS["index.Tensor"](array, [mask])):
            assert found.committed == array.committed
    assert kept.committed and not values.committed


def test_large_floats_with_their_places_are_left_to_xla() -> None:
    large = torch.randn(2**14 + 1)
    array = jaten_ops.to_jax(large.to("jax"))
    assert value_sizes.RUNS["_unique2"](array, True, True, False) is None
    for e, g in zip(large.unique(return_inverse=True), large.to("jax").unique(return_inverse=True), strict=True):
        assert torch.equal(g.cpu(), e)
