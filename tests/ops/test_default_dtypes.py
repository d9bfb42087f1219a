"""The dtypes of arrays that a user's kernel makes: those that plain JAX gives outside jaten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo
from jax import lax
from torch.testing import assert_close

import jaten_ops
from jaten_ops.xla import x64

from ..harness.crossings import crossed

NAMESPACE = "jaten_test_defaults"
OPS = getattr(torch.ops, NAMESPACE)


def _key() -> Any:
    return jax.random.key(0)


MADE: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda x: jnp.zeros(3),
    "full": lambda x: jnp.full((2,), 1.5),
    "full of ints": lambda x: jnp.full((2,), 1),
    "arange": lambda x: jnp.arange(3),
    "linspace": lambda x: jnp.linspace(0, 1, 4),
    "normal": lambda x: jax.random.normal(_key(), (3,)),
    "randint": lambda x: jax.random.randint(_key(), (3,), 0, 5),
    "asarray": lambda x: jnp.asarray(1.5),
    "of ints": lambda x: jnp.array([1, 2]),
    "of numpy": lambda x: jnp.asarray(np.ones(2)),
    "times numpy": lambda x: x * np.ones(x.shape[-1]),
    "times a NumPy number": lambda x: np.float64(1.5) * x,
    "eye": lambda x: jnp.eye(2),
    "argmax": lambda x: jnp.argmax(x),
    "sum of bools": lambda x: jnp.sum(x > 0),
    "astype": lambda x: (x > 0).astype(float),
    "one_hot": lambda x: jax.nn.one_hot(jnp.array([0, 1]), 3),
    "where": lambda x: jnp.where(x > 0, 1.5, 2.5),
    "complex": lambda x: jnp.asarray(1j) + jnp.zeros(2),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c + i, 0),
    "bits": lambda x: jax.random.bits(_key(), (2,)),
    "times a number": lambda x: x * 0.1,
    "interp": lambda x: jnp.interp(x, jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0])),
    "a jitted function": jax.jit(lambda x: jnp.zeros(3) + x[0]),
    "a number": lambda x: 1.5,
}


def _op(name: str) -> Callable[..., Any]:
    packet = name.replace(" ", "_")
    if not hasattr(OPS, packet):
        jaten_ops.op(f"{NAMESPACE}::{packet}(Tensor x) -> Tensor", differentiable=["x"])(MADE[name])
    return getattr(OPS, packet)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "wide"), crossed(MADE, [False, True]))
def test_as_in_plain_jax(name: str, wide: bool) -> None:
    x = torch.tensor([0.1, 0.7, -0.3])
    with jax.enable_x64(wide):
        expected = jax.jit(MADE[name])(jnp.asarray(x.numpy()))
        for got in (_op(name)(x), _op(name)(x.to("jax")), jaten_ops.call_jax(MADE[name], x)):
            assert str(got.dtype) == f"torch.{expected.dtype}"
            np.testing.assert_array_equal(got.cpu().numpy(), np.asarray(expected))


def _gradient(op: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    result = op(x)
    result.sum().backward()
    assert x.grad is not None and x.grad.dtype == x.dtype
    return result


def _step(op: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    kept = x.to("jax")
    step = jaten_ops.compile_step(lambda: op(kept), kept)
    step()
    return step()


def _compiled(backend: str, run: Callable[..., Any] = lambda op, x: op(x), **options: Any) -> Callable[..., Any]:
    def call(op: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.reset()
        return run(torch.compile(lambda x: op(x), backend=backend, **options), x)

    return call


def _in_a_program_of_jax(op: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    return jaten_ops.from_jax(jax.jit(jaten_ops.as_jax(op))(jnp.asarray(x.numpy())))


WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "gradient": _gradient,
    "vmap": lambda op, x: torch.vmap(op)(x[None]),
    "compiled": _compiled("jaten"),
    "compiled, any size": _compiled("jaten", dynamic=True),
    "compiled, trained": _compiled("jaten", _gradient),
    "another backend": _compiled("aot_eager"),
    "step": _step,
    "as_jax": _in_a_program_of_jax,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wide", [False, True], ids=["x64 off", "x64 on"])
@pytest.mark.parametrize("way", WAYS)
def test_on_every_path(way: str, wide: bool) -> None:
    x = torch.tensor([0.1, 0.7, -0.3])
    with jax.enable_x64(wide):
        got = WAYS[way](_op("a jitted function"), x)
    assert got.dtype == (torch.float64 if wide else torch.float32)


@jaten_ops.op(f"{NAMESPACE}::scaled(Tensor x, float beta, Scalar gamma) -> Tensor", differentiable=["x"])
def scaled(x, beta, gamma):
    return x * beta + jnp.full(x.shape, beta) * gamma


def test_numbers_are_weak_and_have_the_default_width() -> None:
    x = torch.ones(2)
    compiled = torch.compile(lambda x: OPS.scaled(x, 0.1, 3), backend="jaten", fullgraph=True)
    for got in (OPS.scaled(x, 0.1, 3), compiled(x)):
        assert_close(got, torch.full((2,), 0.4))
    with pytest.raises(OverflowError, match="int32"):
        OPS.scaled(x, 0.1, 2**40)


def test_float64_stays_exact() -> None:
    """Numbers and constants are not rounded to 32 bits on their way into such a computation."""
    x = torch.tensor([0.1, 0.7], dtype=torch.float64)
    op = jaten_ops.op(f"{NAMESPACE}::gelu(Tensor x) -> Tensor", differentiable=["x"])
    op(lambda x: jax.nn.gelu(x) * np.float64(0.1))
    expected = torch.nn.functional.gelu(x, approximate="tanh") * 0.1
    assert_close(OPS.gelu(x), expected, rtol=1e-15, atol=0)
    assert_close(OPS.scaled(x, 0.1, 0.3), x * 0.1 + 0.1 * 0.3, rtol=1e-15, atol=0)
    assert torch.autograd.gradcheck(OPS.gelu, x.requires_grad_())


@jaten_ops.op(f"{NAMESPACE}::taken(Tensor x, Tensor at) -> (Tensor, Tensor)", differentiable=["x"])
def taken(x, at):
    return x[at] + jnp.zeros(at.shape), at + 1


def test_indices_of_64_bits_stay_and_widen_nothing() -> None:
    values, indices = OPS.taken(torch.ones(3), torch.tensor([0, 2]))
    assert values.dtype == torch.float32 and indices.dtype == torch.int64
    far = OPS.taken(torch.ones(3), torch.tensor([2**40]))[1]
    assert far.item() == 2**40 + 1


def test_the_setting_may_change() -> None:
    x = torch.ones(3)
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            assert _op("zeros")(x).dtype == (torch.float64 if wide else torch.float32)
    assert not jax.config.jax_enable_x64


def test_jax_has_what_is_private() -> None:
    """Without it kernels of users have 64-bit defaults."""
    assert x64.CAN_NARROW
    with x64.narrow_defaults():
        assert jnp.zeros(2).dtype == np.float32 and jnp.zeros(2, np.float64).dtype == np.float64
    with x64.tracing():
        assert jax.config.jax_enable_x64 and not x64.outside()
