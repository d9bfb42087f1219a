"""Products of batches, and what is computed between them: in stretches, each matrix with the same values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

from jaten_ops.cpu.layouts import tile_batches
from jaten_ops.cpu.layouts.tile_batches import in_batches
from jaten_ops.xla.x64 import Enabled

SIZE = 8
# batch, heads, queries and keys; of the second several batches make a stretch
SIZES = {"long": (2, 6, 160, 144), "short": (72, 3, 40, 36)}


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")


def _operands(sizes: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch, heads, queries, keys = SIZES[sizes]
    k, v = np.random.default_rng(0).standard_normal((2, batch, heads, keys, SIZE)).astype("float32")
    return _normal(batch, heads, queries, SIZE), k, v


def _scores(q: Any, k: Any) -> Any:
    """As a program has them that ATen's `matmul` is decomposed in."""
    flat = lax.dot_general(
        q.reshape(-1, *q.shape[2:]), jnp.swapaxes(k, 2, 3).reshape(-1, SIZE, k.shape[2]), (((2,), (1,)), ((0,), (0,)))
    )
    return flat.reshape(*q.shape[:3], k.shape[2])


def _values(weights: Any, v: Any) -> Any:
    flat = lax.dot_general(
        weights.reshape(-1, *weights.shape[2:]), v.reshape(-1, *v.shape[2:]), (((2,), (1,)), ((0,), (0,)))
    )
    return flat.reshape(*weights.shape[:3], v.shape[3])


def _softmax(scores: Any) -> Any:
    exps = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
    return exps / jnp.sum(exps, -1, keepdims=True)


def _of_heads(q: Any, k: Any, v: Any) -> Any:
    return _values(_softmax(_scores(q, k) * 0.3), v)


def _causal(q: Any, k: Any, v: Any) -> Any:
    seen = lax.iota(np.int32, q.shape[2])[:, None] >= lax.iota(np.int32, k.shape[2])
    return _values(_softmax(jnp.where(seen[None, None], _scores(q, k), -jnp.inf)), v)


def _nothing_is_seen(q: Any, k: Any, v: Any) -> Any:
    """NaN, as without a loop."""
    return _values(_softmax(jnp.where(jnp.zeros((q.shape[2], 1), bool), _scores(q, k), -jnp.inf)), v)


def _biased(*dims: str) -> Callable[..., Any]:
    """With a bias that differs along these dimensions, and along the keys."""

    def biased(q: Any, k: Any, v: Any) -> Any:
        sizes = zip(("batch", "heads", "queries"), q.shape[:3], strict=True)
        bias = _normal(*[n if name in dims else 1 for name, n in sizes], k.shape[2])
        return _values(_softmax(_scores(q, k) + bias), v)

    biased.__name__ = "_".join(("biased", *dims))
    return biased


def _in_one_batch(q: Any, k: Any, v: Any) -> Any:
    return _of_heads(*(x.reshape(1, -1, *x.shape[2:]) for x in (q, k, v)))


def _flat(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    scores = jnp.einsum("nik,njk->nij", q, k) + lax.iota(np.float32, k.shape[1])
    return jnp.einsum("nij,njk->nik", _softmax(scores), v)


def _einsum(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("bhij,bhjk->bhik", _softmax(jnp.einsum("bhik,bhjk->bhij", q, k)), v)


def _in_torchs_einsum(q: Any, k: Any, v: Any) -> Any:
    """With dimensions of one element that come and go."""
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    scores = jnp.einsum("nik,njk->nij", q, k)[None, :, :, None]
    values = jnp.swapaxes(v, 1, 2)[None, :, None]
    weights = _softmax(jnp.transpose(scores, (1, 2, 4, 0, 3)).reshape(-1, q.shape[1], k.shape[1]))
    return jnp.einsum("nij,njk->nik", weights, jnp.transpose(values, (1, 4, 0, 3, 2)).reshape(v.shape))


def _without_softmax(q: Any, k: Any, v: Any) -> Any:
    return _values(jnp.tanh(_scores(q, k)).astype(jnp.bfloat16).astype(jnp.float32), v)


def _three_products(q: Any, k: Any, v: Any) -> Any:
    return _values(_scores(_of_heads(q, k, v), k), v)


def _two_layers(q: Any, k: Any, v: Any) -> Any:
    return _of_heads(_of_heads(q, k, v)[:1].repeat(len(q), 0) + q, k, v)


def _kept(q: Any, k: Any, v: Any) -> Any:
    """The weights are a result, as in training."""
    weights = _softmax(_scores(q, k))
    return weights, _values(weights, v)


def _across(q: Any, k: Any, v: Any) -> Any:
    """Each matrix needs others."""
    scores = _scores(q, k)
    return _values(scores / jnp.sum(jnp.abs(scores), 1, keepdims=True), v)


def _turned(q: Any, k: Any, v: Any) -> Any:
    """The heads of the weights are those of another batch."""
    return _values(_scores(q, k)[::-1], v)


def _few(q: Any, k: Any, v: Any) -> Any:
    return _of_heads(jnp.tile(q[:, :, :8], (30, 1, 1, 1)), jnp.tile(k, (30, 1, 1, 1)), jnp.tile(v, (30, 1, 1, 1)))


def _small(q: Any, k: Any, v: Any) -> Any:
    return _of_heads(q[:, :, :18], k, v)


PROGRAMS: dict[Callable[..., Any], int] = {
    _of_heads: 1, _causal: 1, _nothing_is_seen: 1, _in_one_batch: 1, _flat: 1, _einsum: 1,
    _in_torchs_einsum: 1, _without_softmax: 1,
    _biased(): 1, _biased("queries"): 1, _biased("batch"): 1, _biased("heads"): 1,
    _biased("batch", "queries"): 1, _biased("batch", "heads", "queries"): 1, _three_products: 1, _two_layers: 2,
    _kept: 0, _across: 0, _turned: 0, _few: 0, _small: 0,
}  # fmt: skip


def _id(value: Any) -> str:
    return value if isinstance(value, str) else value.__name__.strip("_")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("sizes", "program"), [*itertools.product(SIZES, PROGRAMS)], ids=_id)
def test_values_are_the_same(sizes: str, program: Callable[..., Any]) -> None:
    given = _operands(sizes)
    with Enabled():
        plain = jax.make_jaxpr(program)(*given)
        looped = in_batches(plain)
        got, expected = (jax.jit(jax.extend.core.jaxpr_as_fun(p))(*given) for p in (looped, plain))
    assert sum(e.primitive is lax.scan_p for e in looped.jaxpr.eqns) == PROGRAMS[program]
    assert (looped is plain) is (PROGRAMS[program] == 0)
    for a, b in zip(got, expected, strict=True):
        # XLA's CPU may add the terms of a row in another order where other operators are in the same kernel
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("length", "forms", "expected"),
    [
        (2, [(2, 6), (12,)], [(1, 2), (2,)]),
        (6, [(2, 6), (12,)], [(1, 6), (6,)]),
        (12, [(4, 6), (24,)], [(2, 6), (12,)]),
        (8, [(4, 6)], [None]),
        (4, [(2, 6)], [None]),
        (24, [(8, 3, 4)], [(2, 3, 4)]),
        (3, [(8, 3, 1)], [(1, 3, 1)]),
    ],
)
def test_a_stretch_is_a_block_of_each_form(length: int, forms: list[Any], expected: list[Any]) -> None:
    assert [tile_batches._sizes_of(length, form) for form in forms] == expected


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
@pytest.mark.usefixtures("fresh_dynamo")
def test_attention_that_is_written_out(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[int] = []
    run = tile_batches._Loop.run
    monkeypatch.setattr(tile_batches._Loop, "run", lambda *args: (loops.append(1), run(*args))[1])

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-2, -1)) / SIZE**0.5
        scores = scores.masked_fill(torch.ones(q.shape[2], k.shape[2]).tril() == 0, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    compiled = torch.compile(attention, backend="jaten", dynamic=dynamic)
    given = [torch.from_numpy(x) for x in _operands("long")]
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), attention(*given))
    for x in given:
        x.requires_grad_()
    gradients = [torch.autograd.grad(f(*given).square().sum(), given) for f in (compiled, attention)]
    torch.testing.assert_close(*gradients)
    assert len(loops) == 1  # in training the weights are kept
