"""New memory under torch's deterministic algorithms: the same values on the device, in programs and on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import jaten_ops
from jaten_ops.arrays import uninitialized_values

NEW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(2, 3, device=x.device, dtype=x.dtype),
    "empty.channels_last": lambda x: torch.empty(
        1, 2, 2, 2, device=x.device, dtype=x.dtype, memory_format=torch.channels_last
    ),
    "empty_like": torch.empty_like,
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0), device=x.device, dtype=x.dtype),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (1, 2), device=x.device, dtype=x.dtype),
    "new_empty": lambda x: x.new_empty(3),
    "new_empty_strided": lambda x: x.new_empty_strided((2,), (3,)),
    "in part": lambda x: x.new_empty(4)[:2].copy_(x),
}
RESIZED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "resize_": lambda x: x.resize_(5),
    "resize_ of a part": lambda x: x[1:].resize_(5),
    "resize_as_": lambda x: x.resize_as_(torch.ones(2, 2)),
    "smaller": lambda x: x.resize_(1),
}
DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", {**NEW, **RESIZED}.values(), ids={**NEW, **RESIZED})
def test_new_memory_is_filled(make: Callable[..., torch.Tensor], dtype: torch.dtype, deterministic: None) -> None:
    got, expected = make(torch.ones(2, dtype=dtype, device="jax")), make(torch.ones(2, dtype=dtype))
    assert isinstance(got, jaten_ops.Tensor) and got.stride() == expected.stride()
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_new_memory_is_filled_in_programs(device: str, deterministic: None, fresh_dynamo: None) -> None:
    program = torch.compile(lambda x: [make(x) for make in NEW.values()], backend="jaten", fullgraph=True)
    for dtype in (torch.float32, torch.int32):
        x = torch.ones(2, dtype=dtype)
        for got, make in zip(program(x.to(device)), NEW.values(), strict=True):
            torch.testing.assert_close(got.cpu(), make(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_setting_switches_it_off(
    device: str, deterministic: None, fresh_dynamo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    assert uninitialized_values.value_of(torch.float32) == 0
    assert torch.equal(
        torch.compile(torch.empty_like, backend="jaten")(torch.ones(2, device=device)).cpu(), torch.zeros(2)
    )
    assert torch.equal(torch.ones(1, device="jax").resize_(2).cpu(), torch.tensor([1.0, 0.0]))
