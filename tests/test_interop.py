"""PyTorch in JAX programs and JAX in PyTorch programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn

import jaten_ops
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.ops import called_functions


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn"])
def test_arrays_are_shared(dtype: str) -> None:
    array = jnp.ones((2, 3), dtype)
    tensors = jaten_ops.from_jax({"a": array, "n": 3})
    assert tensors["n"] == 3 and tensors["a"].dtype == getattr(torch, dtype)
    assert jaten_ops.to_jax(tensors["a"]) is array
    with pytest.raises(UnsupportedInputError, match=r"move it with \.to\('jax'\)"):
        jaten_ops.to_jax(torch.ones(2))


def test_weak_types_do_not_come_in() -> None:
    weak, half = jnp.full((3,), 2.0), torch.ones(3, dtype=torch.float16, device="jax")
    assert weak.weak_type and (jaten_ops.from_jax(weak) + half).dtype == torch.float32
    assert jax.jit(jaten_ops.as_jax(lambda a: a + half))(weak).dtype == "float32"
    with pytest.raises(UnsupportedInputError, match="key_data"):
        jaten_ops.from_jax(jax.random.key(0))


def test_sharded_arrays_stay_sharded() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    array = jax.device_put(jnp.arange(4.0), sharding)
    assert jaten_ops.to_jax(jaten_ops.from_jax(array) * 2).sharding == (array * 2).sharding


def _energy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.softmax(x @ y, -1).clone()
    z[0].mul_(2)
    return (z * x).sum()


def test_torch_functions_under_jax_transforms() -> None:
    function = jaten_ops.as_jax(_energy)
    x, y = jnp.linspace(0, 1, 9).reshape(3, 3), jnp.linspace(-1, 1, 9).reshape(3, 3)
    tx, ty = (torch.from_numpy(np.array(a)).requires_grad_() for a in (x, y))
    expected = _energy(tx, ty)
    gradients = torch.autograd.grad(expected, (tx, ty))
    for transformed in (function, jax.jit(function), jax.checkpoint(function)):
        np.testing.assert_allclose(transformed(x, y), expected.item(), rtol=1e-6)
        for got, gradient in zip(jax.grad(transformed, (0, 1))(x, y), gradients, strict=True):
            np.testing.assert_allclose(got, gradient, rtol=1e-5, atol=1e-6)
    batch = jax.vmap(function)(jnp.stack([x, y]), jnp.stack([y, x]))
    np.testing.assert_allclose(batch, [function(x, y), function(y, x)], rtol=1e-6)
    assert jnp.ones(2).dtype == "float32"


def test_values_are_checked_where_there_are_any() -> None:
    classes = jaten_ops.as_jax(lambda x: torch.nn.functional.one_hot(x, 3))
    given = jnp.asarray([2, 0], "int32")
    with pytest.raises(RuntimeError, match="index tensor of type LongTensor"):
        jax.jit(classes)(given)
    with jax.enable_x64(True):
        given = given.astype("int64")
        np.testing.assert_array_equal(jax.jit(classes)(given), [[0, 0, 1], [1, 0, 0]])
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            classes(given + 1)


def test_modules_take_their_parameters() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    module(x).square().sum().backward()
    expected = {n: p.grad.clone() for n, p in module.named_parameters()}
    module.to("jax")
    parameters = jaten_ops.to_jax(dict(module.named_parameters()))
    function = jaten_ops.as_jax(module)
    gradients = jax.jit(jax.grad(lambda p, x: jnp.square(function(p, x)).sum()))(parameters, jnp.asarray(x.numpy()))
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-5, atol=1e-6)


def test_random_operators_need_a_key() -> None:
    dropout = jaten_ops.as_jax(lambda x: nn.functional.dropout(x, 0.5))
    x = jnp.ones((20, 20))
    with pytest.raises(RuntimeError, match="needs a key"):
        dropout(x)
    jitted = jax.jit(dropout)
    first, second = (jitted(x, key=jax.random.key(i)) for i in (0, 1))
    assert not jnp.array_equal(first, second) and jnp.array_equal(first, jitted(x, key=jax.random.key(0)))


def _pair(x, y):
    return jnp.sin(x) * y, x.sum()


def _twice(x):
    return jnp.tanh(x) * 2


def _program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one, two = jaten_ops.call_jax(_pair, x * 2, y)
    return jaten_ops.call_jax(_twice, one).sum() + two


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("backend", [None, "aot_eager", "jaten"])
def test_jax_functions_in_torch_programs(backend: str | None, device: str) -> None:
    torch._dynamo.reset()
    x = torch.linspace(0, 1, 3, device=device).requires_grad_()
    y = torch.linspace(-1, 1, 3, device=device)
    run = _program if backend is None else torch.compile(_program, backend=backend, fullgraph=True)
    result = run(x, y)
    result.backward()
    plain = x.detach().cpu().requires_grad_()
    expected = (((plain * 2).sin() * y.cpu()).tanh() * 2).sum() + (plain * 2).sum()
    expected.backward()
    torch.testing.assert_close(result.detach().cpu(), expected.detach())
    torch.testing.assert_close(x.grad.cpu(), plain.grad)


def test_a_function_is_registered_once() -> None:
    jaten_ops.call_jax(_twice, torch.ones(2))
    count = len(called_functions.FILLERS)
    jaten_ops.call_jax(_twice, torch.ones(3))
    assert len(called_functions.FILLERS) == count


class Pair(NamedTuple):
    first: Any
    second: Any


STRUCTURES: dict[str, Callable[..., Any]] = {
    "by the call": lambda x: x * 2 if x.ndim == 1 else (x * 2, x + 1),
    "a list": lambda x: [x * 2],
    "nested": lambda x: {"a": x * 2, "b": [x + 1, (None, x.sum())], "c": None},
    "a named tuple": lambda x: Pair(x * 2, (x,)),
    "nothing": lambda x: None,
    "an empty tuple": lambda x: (),
    "a number": lambda x: (x, 1.5),
}
WAYS: dict[str, Callable[..., Callable[..., Any]]] = {
    "direct": lambda call: call,
    "device": lambda call: lambda x: call(x.to("jax")),
    "compiled": lambda call: torch.compile(call, backend="jaten", fullgraph=True),
    "any size": lambda call: torch.compile(call, backend="jaten", fullgraph=True, dynamic=True),
    "another backend": lambda call: torch.compile(call, backend="aot_eager", fullgraph=True),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STRUCTURES)
def test_results_have_the_structure_of_each_call(name: str, way: str) -> None:
    torch._dynamo.reset()
    fn = STRUCTURES[name]
    call = WAYS[way](lambda x: jaten_ops.call_jax(fn, x))
    for x in (torch.ones(3), torch.ones(3, 2), torch.ones(3)):
        expected, structure = jax.tree.flatten(fn(jnp.asarray(x.numpy())))
        got, found = jax.tree.flatten(call(x))
        assert found == structure
        for tensor, value in zip(got, expected, strict=True):
            np.testing.assert_array_equal(tensor.cpu().numpy(), np.asarray(value))


def test_gradients_by_each_part() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    parts = jaten_ops.call_jax(STRUCTURES["nested"], x)
    (parts["a"].sum() + parts["b"][1][1] * 3).backward()
    assert x.grad is not None and x.grad.unique().tolist() == [5]


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "vmap": torch.vmap,
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    "functionalize": torch.func.functionalize,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_arrays_of_tensors_that_a_transform_wraps(name: str) -> None:
    x = torch.ones(2, 3, device="jax")
    with pytest.raises(jaten_ops.UnsupportedInputError, match="call_jax"):
        TRANSFORMS[name](lambda z: jaten_ops.from_jax(jaten_ops.to_jax(z)) * 2)(x)
    TRANSFORMS[name](lambda z: jaten_ops.call_jax(jnp.sin, z) * 2)(x)
    TRANSFORMS[name](lambda z: jaten_ops.from_jax(jaten_ops.to_jax(x)).sum() * z)(x)
