"""Indexing by masks: values, shapes and errors as ATen's, and no program for each number of true elements."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest
import torch

import jaten_ops  # noqa: F401  # the device jax

_EVENTS: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: _EVENTS.append(name))

_BY_MASK: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda x, m: x[m],
    "columns": lambda x, m: x.movedim(0, 1)[:, m],
    "bytes": lambda x, m: x[m.byte()],
    "two dimensions": lambda x, m: x[m[:, None].expand(x.shape[:2])],
    "with indices": lambda x, m: x[m, torch.zeros((), dtype=torch.long, device=m.device)],
    "masked_select": lambda x, m: x.masked_select(m[:, None, None]),
    "of a view": lambda x, m: x[:, 1:, ::2].transpose(1, 2)[m],
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", _BY_MASK)
def test_values_are_those_of_aten(name: str, dtype: torch.dtype) -> None:
    x = torch.arange(120).reshape(6, 4, 5).to(dtype)
    for true in ([], [2], [0, 1, 2, 3, 4, 5]):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[true] = True
        expected, found = _BY_MASK[name](x, mask), _BY_MASK[name](x.to("jax"), mask.to("jax"))
        assert found.device.type == "jax" and found.shape == expected.shape
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def test_gradients_go_to_the_chosen_elements() -> None:
    mask = torch.tensor([True, False, True])
    leaves = [torch.ones(3, 2).requires_grad_(), torch.ones(3, 2, device="jax").requires_grad_()]
    for x, m in zip(leaves, (mask, mask.to("jax")), strict=True):
        (x[m] * 3).sum().backward()
    assert leaves[0].grad is not None and leaves[1].grad is not None
    torch.testing.assert_close(leaves[1].grad.cpu(), leaves[0].grad)


def test_a_result_has_memory_of_its_own() -> None:
    x = torch.arange(4.0, device="jax")
    chosen = x[torch.ones(4, dtype=torch.bool, device="jax")]
    x += 1
    assert chosen.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_no_program_for_each_number_of_true_elements() -> None:
    x = torch.randn(300, 301, device="jax")
    masks = [torch.arange(300, device="jax") < n for n in (1, 50, 99, 300)]
    _EVENTS.clear()
    for mask in masks:
        x[mask]
        x.masked_select(mask[:, None])
    assert "/jax/core/compile/backend_compile_duration" not in _EVENTS
    torch.exp(x[:, :7])
    assert "/jax/core/compile/backend_compile_duration" in _EVENTS


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(IndexError, match="shape of the mask"):
        torch.ones(3, device="jax")[torch.ones(2, dtype=torch.bool, device="jax")]


@pytest.mark.parametrize("shape", [(3, 0, 2), (2, 3), (0,), ()])
def test_nonzero_static_fills(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    expected, got = (torch.nonzero_static(y, size=3, fill_value=-1) for y in (x, x.to("jax")))
    assert torch.equal(got.cpu(), expected)
