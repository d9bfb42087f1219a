"""`torch.vmap` over direct calls, against ATen: values, random numbers, gradients."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._vmap_internals import _vmap as older_vmap
from torch.autograd.functional import jacobian
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from jaten_ops.schema import FUNCTIONAL, READS_MEMORY

from ..harness.comparison import assert_same, in_float64
from ..harness.recorded import Call, op_named, reached_overloads, recorded_calls

jaten, aten = torch.ops.jaten, torch.ops.aten
x = torch.arange(12.0).reshape(3, 4) / 7
y = x.flip(0).contiguous()
DIFFERENT_SHAPES = "dynamic_output_shape"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _half(value: torch.Tensor) -> torch.Tensor:
    return value / 2 if value.is_floating_point() or value.is_complex() else value


def _batched(call: Call, op: Any) -> Any:
    """The call on a batch of its tensors and their halves, which lie in the last dim of every other one."""
    flat, tree = tree_flatten((call.args, call.kwargs))
    at = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
    dims = [-1 if rank % 2 else 0 for rank in range(len(at))]

    def one(*tensors: torch.Tensor) -> Any:
        values = dict(zip(at, tensors, strict=True))
        args, kwargs = tree_unflatten([values.get(i, v) for i, v in enumerate(flat)], tree)
        return op(*args, **kwargs)

    batches = [torch.stack([flat[i], _half(flat[i])], dim) for i, dim in zip(at, dims, strict=True)]
    return torch.vmap(one, in_dims=tuple(dims), randomness="different")(*batches)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("overload", "name"), reached_overloads().items())
def test_values(overload: str, name: str) -> None:
    """Each element of the batch has ATen's results of its own."""
    spec = FUNCTIONAL[overload]
    call = next(c for c in recorded_calls(name, torch.float32, 1) if c.overload == overload)
    tensors = spec.returns and all(r.startswith("Tensor") for r in spec.returns)
    if DIFFERENT_SHAPES in spec.tags or not tensors or spec.takes_no_tensors or overload in READS_MEMORY:
        pytest.skip("results that no batch can hold, or no batch that has the operand's memory")
    elements = (call.args, call.kwargs), tree_map_only(torch.Tensor, _half, (call.args, call.kwargs))
    expected = [call.aten(*args, **kwargs) for args, kwargs in elements]
    got = _batched(call, op_named(overload))
    for i, each in enumerate(expected):
        own = tree_map_only(torch.Tensor, lambda t, i=i: t[i], got)
        assert_same(overload, own, each, exact=functools.partial(in_float64, call.aten, *elements[i]))


# a call of a namespace of operators for each element of x and y
LISTS: dict[str, Callable[..., Any]] = {
    "cat": lambda ops, a, b: ops.cat([a, b.sin()]),
    "stack": lambda ops, a, b: ops.stack([a, b], 1),
    "index": lambda ops, a, b: ops.index.Tensor(a.view(2, 2), [None, b.view(2, 2).argsort(1)[0]]),
    "index_put": lambda ops, a, b: ops.index_put(a, [b.argsort()], b),
    "einsum": lambda ops, a, b: ops.einsum("i,j->ji", [a, b]),
    "split": lambda ops, a, b: ops.split.Tensor(a, 3),
    "foreach": lambda ops, a, b: ops._foreach_mul.List([a, b], [b, b]),
    "block_diag": lambda ops, a, b: ops.block_diag([a, b]),
    "broadcast_tensors": lambda ops, a, b: ops.broadcast_tensors([a, b[:1]]),
    "in place": lambda ops, a, b: ops.add_.Tensor(a.clone(), b),
    "linear": lambda ops, a, b: ops.linear(a, torch.ones(2, 4), b[:2]),
    "one batched": lambda ops, a, b: ops.cat([a, torch.ones(2)]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists(name: str) -> None:
    call = LISTS[name]
    got = torch.vmap(lambda a, b: call(jaten, a, b))(x, y)
    each = [call(aten, a, b) for a, b in zip(x, y, strict=True)]
    if isinstance(got, torch.Tensor):
        assert_close(got, torch.stack(each))
    else:
        assert_close(list(got), [torch.stack(results) for results in zip(*each, strict=True)])


@pytest.mark.parametrize("name", LISTS)
def test_gradients(name: str) -> None:
    """Gradients of each element's results by the element, and of all results by all elements."""

    def total(ops: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        results = LISTS[name](ops, a, b)
        return sum((r**2).sum() for r in ([results] if isinstance(results, torch.Tensor) else results))

    def inner(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.vmap(lambda a, b: total(jaten, a, b))(a, b).sum()

    each = [torch.func.grad(total, (1, 2))(aten, a, b) for a, b in zip(x, y, strict=True)]
    expected = tuple(torch.stack(grads) for grads in zip(*each, strict=True))
    assert_close(torch.vmap(torch.func.grad(lambda a, b: total(jaten, a, b), (0, 1)))(x, y), expected)
    assert_close(torch.func.grad(inner, (0, 1))(x, y), expected)


def test_jacobians() -> None:
    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        got, expected = (transform(lambda a, ops=ops: ops.cat([a, a**3]))(x[0]) for ops in (jaten, aten))
        assert_close(got, expected)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "like": lambda a: jaten.rand_like(a),
    "values": lambda a: jaten.bernoulli(a * 0 + 0.5),
    "factory": lambda a: jaten.rand([20]),
    "composite": lambda a: jaten.dropout(a * 0 + 1, 0.5, True),
    "in place": lambda a: jaten.uniform_(a.clone()),
    "of nothing batched": lambda a: jaten.native_dropout(torch.ones(20), 0.5, True)[0],
    "lists": lambda a: jaten.cat([jaten.rand_like(a), a * 0]),
}


@pytest.mark.parametrize("name", RANDOM)
def test_randomness(name: str) -> None:
    call, batch = RANDOM[name], torch.ones(3, 20)
    with pytest.raises(RuntimeError, match="randomness error mode"):
        torch.vmap(call)(batch)
    one, two, three = torch.vmap(call, randomness="same")(batch)
    assert torch.equal(one, two) and torch.equal(one, three)
    one, two, three = torch.vmap(call, randomness="different")(batch)
    assert not torch.equal(one, two) and not torch.equal(two, three)
    first = torch.vmap(call, randomness="same")(batch)
    assert not torch.equal(first, torch.vmap(call, randomness="same")(batch)), "the generator stands still"


def test_randomness_of_two_levels() -> None:
    inner = torch.vmap(lambda a: jaten.rand_like(a), randomness="different")
    got = torch.vmap(inner, randomness="same")(x)
    assert torch.equal(got[0], got[1]) and len(set(got[0].tolist())) == 4


def test_no_randomness_to_tell_of() -> None:
    assert_close(torch.vmap(lambda a: jaten.dropout(a, 0.5, False))(x), x)


def test_empty_batch() -> None:
    assert torch.vmap(lambda a: jaten.cat([a, a]))(x[:0]).shape == (0, 8)


# what has no results for a batch
REFUSED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "number": lambda ops, a: ops.equal(a, a),
    "item": lambda ops, a: ops.item(ops.sum(a)),
    "shapes": lambda ops, a: ops.nonzero(ops.lt(a, 0.7)),
    "written": lambda ops, a: ops.add_.Tensor(torch.ones(4), a),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    for ops in (aten, jaten):
        with pytest.raises(RuntimeError):
            torch.vmap(lambda a, ops=ops: REFUSED[name](ops, a))(x)


# whose gradients are ops that take a list
DIFFERENTIATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "derived": lambda a: jaten.special_i1e(a),
    "list": lambda a: jaten.cat([a, a.sin()]),
    "several": lambda a: jaten.std_mean.correction(a, [1])[0],
    "recurrent": lambda a: torch.nn.functional.gelu(_lstm.to(a.device)(a)[0]),
}
_lstm = torch.nn.LSTM(4, 2, bidirectional=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DIFFERENTIATED)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_batched_gradients(device: str, name: str) -> None:
    fn, a = DIFFERENTIATED[name], x.to(device)
    expected = jacobian(fn, a)
    assert_close(jacobian(fn, a, vectorize=True), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_batched_second_gradients(device: str) -> None:
    fn, a = DIFFERENTIATED["derived"], x[0, :2].to(device)
    got = jacobian(lambda a: jacobian(fn, a, create_graph=True, vectorize=True).sum(0), a, vectorize=True)
    assert_close(got, jacobian(lambda a: jacobian(fn, a, create_graph=True).sum(0), a))


def test_batches_of_batches() -> None:
    """Batches of batches under the older vmap, in which each operator's rule removes one level."""
    got = older_vmap(older_vmap(lambda a, b: jaten.cat([a[None], b[None]])), in_dims=(0, None))(x, x[0])
    assert_close(got, torch.stack([x, x[:1].expand_as(x)], -1))
    got = older_vmap(lambda b: older_vmap(lambda a: jaten.cat([a[None], b[None]]))(x[0]))(x[:, 0])
    assert_close(got, torch.stack(torch.broadcast_tensors(x[:1], x[:, :1]), -1))


def test_compiled() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda a, b: jaten.cat([a, jaten.sin(b)]))(a, b)

    assert_close(torch.compile(fn, backend="jaten", fullgraph=True)(x, y), torch.cat([x, y.sin()], 1))


# of one element, a number of no dimension, and of Python's numbers
NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float": lambda t: t * 3.14,
    "int": lambda t: 2 - t + 1,
    "bool": lambda t: t * True,
    "complex": lambda t: t * (1 + 2j),
    "of integers": lambda t: t.long() * 2.5,
    "half": lambda t: t.bfloat16() * 3.14 + 1,
    "quotient": lambda t: 1 / t + torch.div(t, 0.3, rounding_mode="floor"),
    "scaled": lambda t: torch.add(t, 3, alpha=2),
    "chosen": lambda t: torch.where(t > 0, t, 0.1),
    "interpolated": lambda t: torch.lerp(t, t * 2, 0.3),
    "written": lambda t: t.clone().mul_(3.0).add_(1).div_(2),
    "gradient": torch.func.grad(lambda t: (t.sin() * 2.5 + 1) / 3),
    "tangent": lambda t: torch.func.jvp(lambda s: s * 2.5 / 3, (t,), (t * 2,))[1],
    "batch of a batch": lambda t: torch.vmap(lambda s: 2 * s + 1)(torch.stack([t, t])),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_compiled_numbers(device: str) -> None:
    def each(a: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: torch.vmap(fn)(a) for name, fn in NUMBERS.items()}

    got = torch.compile(each, backend="jaten", fullgraph=True)(x[0].to(device))
    assert_close({name: value.cpu() for name, value in got.items()}, each(x[0]))


def test_compiled_randomness() -> None:
    fn = torch.compile(torch.vmap(lambda a: jaten.rand_like(a), randomness="different"), backend="jaten")
    one, two, _ = fn(x)
    assert not torch.equal(one, two)
    same = torch.compile(torch.vmap(lambda a: jaten.rand_like(a), randomness="same"), backend="jaten", fullgraph=True)
    with pytest.raises(Exception, match="draw them out of vmap"):
        same(x)


def test_on_the_device_jax() -> None:
    got = torch.vmap(lambda a, b: jaten.cat([a, b]))(x.to("jax"), y.to("jax"))
    assert got.device.type == "jax"
    assert_close(got.cpu(), torch.cat([x, y], 1))
