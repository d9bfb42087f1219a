"""The primitive of a CPU's convolutions: values and derivatives under transformations, and found again after them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.cpu import conv_primitive
from jaten_ops.kernel_base import conv_parts as xla
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows

from ..harness.convolutions import calls_of

_RNG = np.random.default_rng(0)
_WINDOWS = Windows((3, 2), (2, 1), (1, 0), (1, 2), 1)
_X, _W = (_RNG.standard_normal(s).astype("float32") for s in ((2, 3, 9, 8), (4, 3, 3, 2)))
_G = _RNG.standard_normal((2, 4, *_WINDOWS.positions((9, 8)))).astype("float32")
CALLS: dict[str, tuple[ConvCall, Any, Any]] = {
    "forward": (ConvCall("forward", _WINDOWS, ()), _X, _W),
    "input_gradient": (ConvCall("input_gradient", _WINDOWS, _X.shape), _G, _W),
    "weight_gradient": (ConvCall("weight_gradient", _WINDOWS, _W.shape), _X, _G),
    "in groups": (ConvCall("forward", _WINDOWS._replace(groups=3), ()), _X, _W[:3, :1]),
}
_Function = Callable[[Any, Any], Any]


def _loss(f: _Function) -> _Function:
    return lambda a, b: (f(a, b) ** 3).sum()


def _hessian_product(f: _Function) -> _Function:
    return jax.grad(lambda a, b: sum((g**2).sum() for g in jax.grad(_loss(f), (0, 1))(a, b)), (0, 1))


def _stacked(a: Any) -> Any:
    return jnp.stack([a, 2 * a, -a])


WAYS: dict[str, Callable[[_Function], _Function]] = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "gradients": lambda f: jax.grad(_loss(f), (0, 1)),
    "second derivatives": _hessian_product,
    "tangents": lambda f: lambda a, b: jax.jvp(f, (a, b), (b.sum() * a, a.sum() * b)),
    "a batch of the first": lambda f: lambda a, b: jax.vmap(f, (0, None))(_stacked(a), b),
    "a batch of the second": lambda f: lambda a, b: jax.vmap(f, (None, 1), 2)(a, jnp.moveaxis(_stacked(b), 0, 1)),
    "a batch of both": lambda f: lambda a, b: jax.vmap(f)(_stacked(a), _stacked(b)),
    "gradients of a batch": lambda f: lambda a, b: jax.grad(_loss(jax.vmap(f, (0, None))))(_stacked(a), b),
    "a loop": lambda f: lambda a, b: jax.lax.map(lambda n: f(n * a, b), jnp.arange(3.0)),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_values(name: str, way: str) -> None:
    call, a, b = CALLS[name]
    run, expected = (WAYS[way](functools.partial(of.compute, call)) for of in (conv_primitive, xla))
    for got, want in zip(*(jax.tree.leaves(jax.jit(f)(a, b)) for f in (run, expected)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * float(jnp.abs(want).max()))
    if way == "eager":
        np.testing.assert_allclose(run(a, b), expected(a, b), rtol=2e-4, atol=2e-4)


WIDE_WAYS: dict[str, Callable[[_Function], _Function]] = {
    "jit": jax.jit,
    "gradients": lambda f: jax.grad(lambda a, b: f(a, b).sum(), (0, 1)),
    "tangents": lambda f: lambda a, b: jax.jvp(f, (a, b), (-a, 2 * b)),
    "a batch of both": WAYS["a batch of both"],
    "gradients of a batch": lambda f: jax.grad(lambda a, b: jax.vmap(f, (0, None))(_stacked(a), b).sum(), (0, 1)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("way", WIDE_WAYS)
@pytest.mark.parametrize("name", ["forward", "input_gradient", "in groups"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_results_that_are_not_rounded(name: str, way: str, dtype: Any) -> None:
    """They are float32 for half precision; derivatives by the operands are rounded, once for each."""
    call, *operands = CALLS[name]
    a, b = (jnp.asarray(x, dtype) for x in operands)
    wide = call._replace(is_wide=True)
    assert conv_primitive.compute(wide, a, b).dtype == np.float32
    run, expected = (WIDE_WAYS[way](functools.partial(of.compute, wide)) for of in (conv_primitive, xla))
    for got, want in zip(*(jax.tree.leaves(jax.jit(f)(a, b)) for f in (run, expected)), strict=True):
        assert got.dtype == want.dtype
        # sums of float32 in another order; what is rounded to half precision, each by half of its last place
        rounding = 2e-4 if got.dtype == np.float32 else 2 * float(jnp.finfo(dtype).eps)
        bound = rounding * float(jnp.abs(want).max())
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=rounding, atol=bound)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("forward", ["forward", "input_gradient", "weight_gradient"]),
        ("input_gradient", ["forward", "input_gradient", "weight_gradient"]),
        ("weight_gradient", ["forward", "input_gradient", "weight_gradient"]),
    ],
)
def test_derivatives_are_parts(name: str, found: list[str]) -> None:
    call, a, b = CALLS[name]
    program = jax.make_jaxpr(jax.jit(WAYS["gradients"](functools.partial(conv_primitive.compute, call))))(a, b)
    calls = calls_of(program.jaxpr)
    assert sorted(c.part for c in calls) == found
    assert {c.windows for c in calls} == {_WINDOWS}


def test_a_batch_is_no_call() -> None:
    """Its operands have a dimension more than a call's."""
    call, a, b = CALLS["forward"]
    program = jax.make_jaxpr(WAYS["a batch of the first"](functools.partial(conv_primitive.compute, call)))(a, b)
    assert calls_of(program.jaxpr) == []


def test_over_the_devices_of_a_mesh() -> None:
    """A result varies over the axes of a mesh that its operands do."""
    mesh = jax.make_mesh((1,), ("n",), axis_types=(jax.sharding.AxisType.Auto,))
    call, a, b = CALLS["forward"]
    spec = jax.P("n")
    run = jax.shard_map(
        functools.partial(conv_primitive.compute, call), mesh=mesh, in_specs=(spec, jax.P()), out_specs=spec
    )
    np.testing.assert_allclose(jax.jit(run)(a, b), xla.compute(call, a, b), rtol=1e-4, atol=1e-4)
    of_weight = jax.grad(lambda b: (run(a, b) ** 2).sum())(b)
    np.testing.assert_allclose(
        of_weight, jax.grad(lambda b: (xla.compute(call, a, b) ** 2).sum())(b), rtol=1e-3, atol=1e-3
    )
