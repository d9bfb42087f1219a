"""Executors: when kernels are traced anew, and what is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from jaten_ops import meta, registry
from jaten_ops.errors import KernelResultError
from jaten_ops.kernel_base import checks
from jaten_ops.ops.executor import Executor
from jaten_ops.ops.op_call import make_call
from jaten_ops.schema import FUNCTIONAL


def _executor(overload: str, fn, **options) -> tuple[Callable[..., Any], list[int]]:
    """A call of a substitute kernel on arrays, and a list that grows at each trace."""
    traces: list[int] = []

    def traced(*args, **kwargs):
        traces.append(1)
        return fn(*args, **kwargs)

    spec = FUNCTIONAL[overload]
    executor = Executor(spec, registry.Entry(traced, "here", **options), meta.fake_of(spec))
    return make_call(spec, executor, lambda array: array, lambda array: array), traces


def test_changing_scalar_does_not_recompile() -> None:
    run, traces = _executor("mul.Scalar", lambda self, other: self * other)
    x = jnp.ones(3, jnp.float32)
    for step in range(5):
        assert run(x, step / 7).tolist() == pytest.approx([step / 7] * 3)
    assert len(traces) == 1
    run(x, 2)  # another type of number
    run(jnp.ones(4, jnp.float32), 0.5)  # another shape
    assert len(traces) == 3


def test_static_scalars_are_python_numbers() -> None:
    seen = []
    run, _ = _executor(
        "mul.Scalar", lambda self, other: seen.append(other) or self * other, static=frozenset({"other"})
    )
    run(jnp.ones(3, jnp.float32), 2.5)
    assert seen == [2.5]


def test_results_are_not_weakly_typed() -> None:
    run, _ = _executor("mul.Scalar", lambda self, other: jnp.full(self.shape, 1.0))
    with jax.enable_x64(True):
        x = jnp.ones(3, jnp.float64)
    assert not run(x, 2.0).weak_type


def test_wrong_dtype_or_shape_of_a_kernel_is_caught() -> None:
    run, _ = _executor("relu", lambda self: self.astype(jnp.float16))
    with pytest.raises(
        KernelResultError, match=r"jaten::relu: its kernel returned .*float16.* its fake says .*float32"
    ):
        run(jnp.ones(3, jnp.float32))


def test_conditions_raise_after_the_call_and_the_next_call_works() -> None:
    def kernel(self):
        checks.require(self >= 0, ValueError, "negative")
        checks.require(self < 9, IndexError, "too large")
        return self + 0

    run, _ = _executor("relu", kernel)
    for bad, error in ((-1.0, ValueError), (10.0, IndexError)):
        with pytest.raises(error, match=r"negative|too large"):
            run(jnp.array([1.0, bad], jnp.float32))
    assert run(jnp.array([1.0], jnp.float32)).tolist() == [1.0]


def test_atens_error_for_bad_shapes() -> None:
    with pytest.raises(RuntimeError):
        torch.ops.jaten.mm(torch.ones(2, 3), torch.ones(4, 5))
    torch.testing.assert_close(torch.ops.jaten.mm(torch.ones(2, 3), torch.ones(3, 5)), torch.full((2, 5), 3.0))


def test_default_dtype_is_followed() -> None:
    x = torch.arange(3)
    assert torch.ops.jaten.sin(x).dtype == torch.float32
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.ops.jaten.sin(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_x64_is_untouched_outside() -> None:
    before = jax.config.jax_enable_x64
    torch.ops.jaten.add.Tensor(torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    with pytest.raises(RuntimeError):
        torch.ops.jaten.add.Tensor(torch.ones(2), torch.ones(3))
    assert jax.config.jax_enable_x64 == before
    assert jnp.ones(2).dtype == jnp.float32 and jnp.arange(2).dtype == jnp.int32
