"""Copies between tensors of other shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo

import jaten_ops
from jaten_ops.kernel_base import promotion

from ..harness.beside import assert_same_outcome

OPS = torch.ops.jaten


def test_copy_from_takes_shape_and_dtype_of_the_target() -> None:
    source, target = torch.tensor([1.5, 2.5]), torch.zeros(3, 2, dtype=torch.float16)
    torch.testing.assert_close(OPS._copy_from(source, target), source.half().expand(3, 2).contiguous())
    torch.testing.assert_close(OPS._copy_from_and_resize(source, target), source.half())


@pytest.mark.filterwarnings("ignore:.*was resized")  # ATen's meta function warns, once
def test_resize_output() -> None:
    got = OPS._resize_output(torch.ones(2), [3], torch.device("cpu"))
    assert got.shape == (3,)
    assert got[:2].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64, torch.bool], ids=str)
def test_dequantize_of_a_plain_tensor(dtype: torch.dtype) -> None:
    assert_same_outcome("dequantize.self", lambda ops: ops.dequantize.self(torch.tensor([0, 3]).to(dtype)))


MASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "bool": lambda x, mask: x * mask,
    "float": lambda x, mask: x * mask.float(),
    "complex": lambda x, mask: x * mask.to(torch.complex64),
    "half": lambda x, mask: x.half() * mask,
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_times_nan_is_nan(name: str) -> None:
    """XLA takes a product with a converted bool for a choice, whose other side is 0."""
    x, mask = torch.tensor([torch.nan, torch.inf, 1.0, -1.0]), torch.tensor([False, False, True, False])
    expected = MASKED[name](x, mask)
    torch._dynamo.reset()
    compiled = torch.compile(MASKED[name], backend="jaten", fullgraph=True)
    for got in (compiled(x, mask), MASKED[name](x.to("jax"), mask.to("jax")).cpu()):
        torch.testing.assert_close(got, expected, equal_nan=True)


def test_bfloat16_is_widened_bit_by_bit() -> None:
    """Each of them, and as often differentiated as one likes."""
    every = jnp.asarray(np.arange(2**16, dtype=np.uint16)).view(jnp.bfloat16)
    wide = np.asarray(jax.jit(lambda x: promotion.widened(x, np.dtype("float32")))(every))
    assert np.array_equal(wide, np.asarray(every).astype(np.float32), equal_nan=True)

    def cubed(x: jax.Array) -> jax.Array:
        return promotion.widened(x, np.dtype("float32")) ** 3

    x = jnp.asarray(2, jnp.bfloat16)
    assert jax.grad(cubed)(x) == 12 and jax.grad(jax.grad(cubed))(x) == 12
    assert jax.jvp(cubed, (x,), (x,))[1] == 24 and jax.vmap(cubed)(x[None])[0] == 8


@pytest.mark.parametrize("number", [True, 2, 2.5])
def test_a_number_as_a_tensor_where_jax_differentiates_around_it(number: float) -> None:
    """Programs that give their operand back: JAX may pass it through as Python's number."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for dtype in (torch.bool, torch.int64, torch.float32, torch.float64):
            for _ in range(2):
                made = torch.full((), number, dtype=dtype, device=x.device)
                assert made.dtype == dtype and made.item() == torch.full((), number, dtype=dtype).item()
        return x * 2

    torch.full((), number, dtype=torch.bool, device="jax")
    assert jax.grad(jaten_ops.as_jax(program))(1.0) == 2
