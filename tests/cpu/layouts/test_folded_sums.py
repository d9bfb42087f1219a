"""Sums that are folded: which, and that results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from jax.extend import core

from jaten_ops.cpu.layouts.folded_sums import with_folded_sums
from jaten_ops.kernel_base.division import quotient

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

_RNG = np.random.default_rng(0)
_X, _Y = (_RNG.standard_normal((8, 24, 160), dtype="float32") for _ in range(2))
_Fn = Callable[[Any, Any], Any]

_FOLDED: dict[str, _Fn] = {
    "rows": lambda x, y: lax.reduce_sum(lax.square(x - y), (2,)),
    "columns": lambda x, y: lax.reduce_sum(x * y, (0, 1)),
    "everything": lambda x, y: lax.reduce_sum(lax.abs(x - y), (0, 1, 2)),
    "no neighbours": lambda x, y: lax.reduce_sum(x * y, (0, 2)),
    "quotients": lambda x, y: lax.reduce_sum(lax.neg(quotient(x, y)) * x, (2,)),
    "quotients, and of use elsewhere": lambda x, y: (lambda q: (lax.reduce_sum(q * x, (2,)), q))(quotient(x, y)),
    "quotients, not in stretches": lambda x, y: lax.reduce_sum(quotient(lax.exp(x), lax.exp(y)), (2,)),
    "very many quotients": lambda x, y: lax.reduce_sum(
        quotient(jnp.tile(x, (70, 1, 1)), 1 + jnp.tile(lax.abs(y), (70, 1, 1))), (2,)
    ),
    "other functions": lambda x, y: lax.reduce_sum(lax.logistic(x) * lax.tanh(y), (2,)),
    "of narrow numbers": lambda x, y: lax.reduce_sum(x.astype("bfloat16").astype("float32") * y, (2,)),
    "counted": lambda x, y: lax.reduce_sum((x > y).astype("float32"), (2,)),
    "light, and of use elsewhere": lambda x, y: (lax.reduce_sum(x - y, (2,)), x - y),
    "heavy, of what is light and of use elsewhere": lambda x, y: (lambda z: (lax.reduce_sum(lax.tanh(z) * z, (2,)), z))(
        x - y
    ),
    "few stored rows": lambda x, _: lax.reduce_sum(x, (0,)),
    "within": lambda x, y: lax.reduce_sum(jax.jit(lambda x: x * 2)(x) - y, (2,)),
}
_LEFT: dict[str, _Fn] = {
    "squares": lambda x, _: lax.reduce_sum(x * x, (2,)),
    "what is stored": lambda x, _: lax.reduce_sum(x, (2,)),
    "the library's functions": lambda x, y: lax.reduce_sum(lax.log1p(x * x) + y, (2,)),
    "exponentials": lambda x, y: lax.reduce_sum(lax.exp(x - y), (2,)),
    "few exponentials": lambda x, y: lax.reduce_sum(lax.exp(x - y), (0,)),
    "stored rows": lambda x, _: lax.reduce_sum(x.reshape(192, 160), (0,)),
    "integers": lambda x, y: lax.reduce_sum(lax.round(x * 8).astype("int32"), (2,)),
    "a bfloat16": lambda x, y: lax.reduce_sum((x - y).astype("bfloat16"), (2,)),
    "very many": lambda x, y: lax.reduce_sum(jnp.tile(x, (70, 1, 1)) * jnp.tile(y, (70, 1, 1)), (0, 1, 2)),
    "few": lambda x, y: lax.reduce_sum(x[0] * y[0], (1,)),
    "heavy, and of use elsewhere": lambda x, y: (lambda z: (lax.reduce_sum(z, (2,)), z))(lax.tanh(x) * y),
    "made of what is heavy, and of use elsewhere": lambda x, y: (lambda z: (lax.reduce_sum(z * y, (2,)), z))(
        lax.tanh(x)
    ),
}


@pytest.mark.parametrize("name", [*_FOLDED, *_LEFT])
def test_results(name: str) -> None:
    fn = (_FOLDED | _LEFT)[name]
    made = jax.make_jaxpr(fn)(_X, _Y)
    program = with_folded_sums(made)
    assert (program is not made) == (name in _FOLDED)
    for found, expected in zip(core.jaxpr_as_fun(program)(_X, _Y), jax.tree.leaves(fn(_X, _Y)), strict=True):
        # sums of float32 in another order; those of quotients are large
        close = 1e-5 * float(jnp.max(jnp.abs(expected))) if expected.dtype == np.float32 else 0
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=close)


@pytest.mark.parametrize("name", [n for n in _FOLDED if "quotients" in n])
def test_sums_of_quotients(name: str) -> None:
    program = with_folded_sums(jax.make_jaxpr(_FOLDED[name])(_X, _Y))
    names = [e.primitive.name for e in program.jaxpr.eqns]
    assert "reduce_sum" not in names
    # those that are not known to gain from stretches, or too many to be read at once, are one product as they are
    assert (names.count("slice") > 1) == (name not in ("quotients, not in stretches", "very many quotients"))


def test_open_sizes() -> None:
    (n,) = jax.export.symbolic_shape("n")
    made = jax.make_jaxpr(_FOLDED["rows"])(*[jax.ShapeDtypeStruct((n, 24, 160), np.float32)] * 2)
    assert with_folded_sums(made) is made


_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "huber": lambda x, y: torch.nn.functional.huber_loss(x, y),
    "cosine": lambda x, y: torch.nn.functional.cosine_similarity(x, y).mean(),
    "dice": lambda x, y: 1 - 2 * (x.sigmoid() * y).sum() / (x.sigmoid() + y).sum(),
    "total variation": lambda x, y: (x[..., 1:] - x[..., :-1]).abs().mean() + (y[:, 1:] - y[:, :-1]).abs().sum((1, 2)),
    "layer norm": lambda x, y: torch.nn.functional.layer_norm(x + y, (160,)),
    "batch norm": lambda x, y: torch.nn.functional.batch_norm(x * y, None, None, training=True),
    "group norm": lambda x, y: torch.nn.functional.group_norm(x, 4) * y,
    "standard deviation": lambda x, y: (x * y).std(0),
}


@pytest.mark.parametrize("name", _LOSSES)
def test_gradients(name: str) -> None:
    x, y = (torch.tensor(a, requires_grad=True) for a in (_X, _Y))
    fn = _LOSSES[name]
    found, expected = torch.compile(fn, backend="jaten")(x, y), fn(x, y)
    # sums of float32 in another order
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(expected)
    grads = torch.autograd.grad(found, (x, y), grad), torch.autograd.grad(expected, (x, y), grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)  # as above
