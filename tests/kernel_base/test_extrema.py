"""NaNs in what is reduced to its greatest or least element, in arrays as large as those that XLA's CPU takes apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaten_ops
from jaten_ops.kernel_base.extrema import reduce_max, reduce_min

from ..harness.crossings import crossed

_SHAPES = {"rows": (4096, 8), "long rows": (64, 4096), "one": (100_000,), "few rows": (5, 4096), "ten": (10, 4096)}
_OPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max.dim": lambda x: x.max(-1),
    "min.dim": lambda x: x.min(0),
    "aminmax": lambda x: torch.aminmax(x),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(),
    "norm of inf": lambda x: torch.linalg.vector_norm(x, float("inf"), -1),
    "norm of -inf": lambda x: torch.linalg.vector_norm(x, float("-inf")),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(0),
    "prod": lambda x: x.prod(-1),
    "var": lambda x: x.var(0),
}
_WAYS: dict[str, Callable[[Callable[[torch.Tensor], Any]], Callable[[torch.Tensor], Any]]] = {
    "eager": lambda op: lambda x: op(x.to("jax")),
    "compiled": lambda op: torch.compile(op, backend="jaten"),
    "as_jax": lambda op: lambda x: _under_jit(op, x),
}


def _under_jit(op: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """As a user has it, with the compiler options of JAX."""
    found = jax.jit(jaten_ops.as_jax(op))(jaten_ops.to_jax(x.to("jax")))
    return jax.tree.map(jaten_ops.from_jax, found)


def _plain(result: Any) -> list[torch.Tensor]:
    return [r.cpu() for r in (result if isinstance(result, tuple | list) else (result,))]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("op", "way", "shape", "dtype"), crossed(_OPS, _WAYS, _SHAPES, [torch.float32, torch.float64, torch.bfloat16])
)
def test_a_nan_is_not_lost(op: str, way: str, shape: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    x = torch.linspace(-2, 2, 300_000)[: torch.Size(_SHAPES[shape]).numel()].view(_SHAPES[shape]).to(dtype).clone()
    x.view(-1)[4::7] = torch.nan
    got, expected = _plain(_WAYS[way](_OPS[op])(x)), _plain(_OPS[op](x))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", _SHAPES)
def test_gradients_go_to_nans_as_atens_do(shape: str) -> None:
    grads = []
    for device in ("cpu", "jax"):
        x = torch.linspace(-2, 2, 300_000)[: torch.Size(_SHAPES[shape]).numel()].view(_SHAPES[shape]).clone()
        x.view(-1)[4::700] = torch.nan
        x = x.to(device).requires_grad_()
        (x.max() + x.amax(-1).sum() + x.min(0)[0].sum()).backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], equal_nan=True)


@pytest.mark.parametrize(("reduce", "plain"), [(reduce_max, np.max), (reduce_min, np.min)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (2,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("shape", [(3, 11, 160), (2, 70, 40), (9, 8, 128), (2, 3, 1031), (300, 7, 7)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", jnp.bfloat16], ids=str)
def test_columns_and_rows(reduce: Any, plain: Any, axes: tuple[int, ...], shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape, dtype="float32").astype(dtype)
    for nans in (slice(0), slice(5, None, 37), slice(-1, None)):
        x.flat[nans] = np.nan
        with np.errstate(invalid="ignore"):  # NumPy tells of a NaN
            found, expected = jax.jit(reduce, static_argnums=1)(x, axes), plain(x, axes)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))


def test_a_histogram_refuses_nans() -> None:
    x = torch.rand(100_000)
    x[5] = torch.nan
    with pytest.raises(RuntimeError, match="not finite"):
        torch.histc(x.to("jax"), 10)
