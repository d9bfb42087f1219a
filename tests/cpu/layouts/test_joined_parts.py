"""Sums of padded parts, which become the parts side by side: in functions of JAX, and in whole training steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaten_ops
from jaten_ops.cpu.layouts.joined_parts import with_joined_parts

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((3, 6, 4)).astype("float32")


def _loop(x: Any) -> Any:
    state, total = jnp.zeros_like(x[:, 0]), 0
    for t in range(x.shape[1]):
        state = jnp.tanh(state * x[:, t]) + x[:, t]
        total += state.sum()
    return total


def _over_each_other(x: Any) -> Any:
    parts = jnp.sin(x[:, 0:3]) + jnp.cos(x[:, 1:4]) + jnp.exp(x[:, 2:5]) + jnp.tanh(x[:, 1:4])
    return (parts + x[:, 1:2]).sum()


def _along_two(x: Any) -> Any:
    rows, columns = sum(jnp.sin(x[i]).sum() for i in range(3)), sum(jnp.cos(x[:, j]).sum() for j in range(4))
    return rows + columns + (x * x).sum()


def _used_elsewhere(x: Any) -> tuple[Any, Any]:
    parts = [jnp.pad(x[:, i : i + 1] * 2, [(0, 0), (i, 5 - i), (0, 0)]) for i in range(4)]
    return sum(parts), parts[0]


def _padded_with_ones(x: Any) -> Any:
    return sum(jnp.pad(x[:, i : i + 1], [(0, 0), (i, 5 - i), (0, 0)], constant_values=1) for i in range(4))


def _cut(x: Any) -> Any:
    zero = jnp.zeros((), x.dtype)
    return sum(jax.lax.pad(x * i, zero, [(0, 0, 0), (-i, i, 0), (0, 0, 0)]) for i in range(1, 5))


def _in_steps(x: Any) -> Any:
    return sum(jax.lax.pad(x[:, i : i + 3], np.float32(0), [(0, 0, 0), (1, 0, 1), (0, 0, 0)]) for i in range(3))


def _nested(x: Any) -> Any:
    part = jax.jit(lambda x, i: jnp.pad(x * 2, [(0, 0), (i, 5 - i), (0, 0)]), static_argnums=1)
    return sum(part(x[:, i : i + 1], i) for i in range(6))


# name: the function, and how many padded arrays and how many concatenations the program has then
CASES: dict[str, tuple[Callable[..., Any], int, int]] = {
    "a loop": (jax.grad(_loop), 0, 1),
    "some": (jax.grad(lambda x: (jnp.sin(x[:, 1]) + jnp.cos(x[:, -2]) + jnp.exp(x[:, 3])).sum()), 0, 1),
    "over each other": (jax.grad(_over_each_other), 0, 3),
    "along two": (jax.grad(_along_two), 0, 2),
    "two": (jax.grad(lambda x: (x[:, 0] * x[:, 1]).sum()), 2, 0),
    "used elsewhere": (_used_elsewhere, 1, 1),
    "padded with ones": (_padded_with_ones, 4, 0),
    "cut": (_cut, 4, 0),
    "in steps": (_in_steps, 3, 0),
    "in functions": (_nested, 0, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_of_parts(name: str) -> None:
    fn, padded, joined = CASES[name]
    program = with_joined_parts(jax.make_jaxpr(fn)(_X))
    found = jax.jit(jax.extend.core.jaxpr_as_fun(program))(_X)
    for got, expected in zip(found, jax.tree.leaves(fn(_X)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)  # sums in another order
    counts = Counter(str(program).split())
    names = Counter(word.split("[")[0] for word in counts.elements())
    assert (names["pad"], names["concatenate"]) == (padded, joined)


def test_a_program_without_such_sums_is_the_same_object() -> None:
    program = jax.make_jaxpr(jax.grad(lambda x: (x[:, 0] * x[:, 1]).sum()))(_X)
    assert with_joined_parts(program) is program


def test_infinities_stay_where_they_are() -> None:
    program = with_joined_parts(jax.make_jaxpr(lambda x: _nested(1 / x))(_X * 0))
    (found,) = jax.extend.core.jaxpr_as_fun(program)(np.where(_X > 0, 0, _X).astype("float32"))
    assert np.isinf(found[_X > 0]).all()
    np.testing.assert_allclose(found[_X < 0], 2 / _X[_X < 0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_recurrence_in_a_training_step(device: str, dtype: torch.dtype) -> None:
    """As the same step gives eagerly, to a rounding of its sums."""
    torch.manual_seed(0)
    start, x = torch.randn(3, 6, 4, dtype=dtype), torch.randn(3, 6, 4, dtype=dtype)
    found = []
    for where in ("eager", device):
        place = "cpu" if where == "eager" else where
        weight = torch.nn.Parameter(start.clone().to(place))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x: torch.Tensor, weight: Any = weight, optimizer: Any = optimizer) -> torch.Tensor:
            y, state = weight * x, torch.zeros_like(x[:, 0])
            for t in range(x.shape[1]):
                state = state * y[:, t] + y[:, t].sin()
            loss = state.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = step if where == "eager" else jaten_ops.compile_step(step, [weight], optimizer)
        losses = [run(x.to(place)).cpu() for _ in range(4)]
        found.append([*losses, weight.detach().cpu()])
    close = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}  # eight bits, rounded after each operator
    torch.testing.assert_close(found[1], found[0], **close)
