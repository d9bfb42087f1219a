"""JAX's functions in functions that torch compiles: Dynamo calls them between its graphs, also for tensors."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._dynamo

import jaten_ops

_ARRAY = jnp.arange(12.0).reshape(3, 4)
_SQUARED = jaten_ops.as_jax(lambda x: x * x)

ON_THE_DEVICE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to_jax and from_jax": lambda x: jaten_ops.from_jax(jaten_ops.to_jax(x)) * 2,
    "of a result": lambda x: jaten_ops.from_jax(jaten_ops.to_jax(x * 2)) * 2,
    "in a tree": lambda x: jaten_ops.from_jax(jaten_ops.to_jax({"of": [x, 1]}))["of"][0] * 2,
    "a function": lambda x: jaten_ops.from_jax(jnp.sin(jaten_ops.to_jax(x))) * 2,
    "an operator": lambda x: jaten_ops.from_jax(jaten_ops.to_jax(x) * 2 + 1) * 2,
    "a shape": lambda x: x * jaten_ops.to_jax(x).shape[0],
    "jit": lambda x: jaten_ops.from_jax(jax.jit(lambda a: a * 3)(jaten_ops.to_jax(x))) * 2,
    "as_jax": lambda x: jaten_ops.from_jax(_SQUARED(jaten_ops.to_jax(x))) * 2,
    "as_jax of a new function": lambda x: (
        jaten_ops.from_jax(jaten_ops.as_jax(lambda y: y * y)(jaten_ops.to_jax(x))) * 2
    ),
    "grad of as_jax": lambda x: jaten_ops.from_jax(jax.grad(lambda a: _SQUARED(a).sum())(jaten_ops.to_jax(x))) * 2,
    "a function of a tensor": lambda x: jaten_ops.from_jax(jnp.sin(x)) * 2,
    "a function of a result": lambda x: jaten_ops.from_jax(jnp.sin(x * 2)) * 2,
    "an operator of a tensor": lambda x: jaten_ops.from_jax(_ARRAY * x) * 2,
}
BESIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a function": lambda x: x * float(jnp.sin(_ARRAY).sum()),
    "an operator": lambda x: x * (_ARRAY @ _ARRAY.T).shape[0],
    "jit": lambda x: x * float(jax.jit(lambda a: a.sum())(_ARRAY)),
    "grad": lambda x: x * float(jax.grad(lambda a: (a * 3).sum())(_ARRAY)[0, 0]),
    "an index": lambda x: x * _ARRAY[1, 2].item(),
    "at": lambda x: x * float(_ARRAY.at[0].set(3)[0, 1]),
}


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()  # all rows are one code object for Dynamo, which gives up after a few


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_of_tensors_on_the_device(name: str) -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to("jax")
    compiled = torch.compile(ON_THE_DEVICE[name], backend="jaten")
    for _ in range(2):
        torch.testing.assert_close(compiled(x).cpu(), ON_THE_DEVICE[name](x).cpu())


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_beside_tensors(device: str, name: str) -> None:
    x = torch.linspace(-1, 1, 3).to(device)
    torch.testing.assert_close(torch.compile(BESIDE[name], backend="jaten")(x).cpu(), BESIDE[name](x).cpu())
