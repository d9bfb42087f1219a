"""Products: in half precision with all that a model puts around them, by every way to run it; exchanged factors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jaten_ops
from jaten_ops.cpu import dot_reductions
from jaten_ops.xla import cpu_features

from ..harness.compiled_texts import programs
from ..harness.paths import compile_whole, randn, run


def _pooled(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bkhd->bqhd", torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1), v)


PROGRAMS: dict[str, tuple[Callable[..., Tensor], list[Callable[[int], tuple[int, ...]]]]] = {
    "matmul": (torch.matmul, [lambda n: (n, 3, 8), lambda n: (8, 5)]),
    "transposed": (lambda x, y: (x.relu().mT @ y.exp()).tanh(), [lambda n: (n, 3, 8), lambda n: (n, 3, 5)]),
    "linear": (F.linear, [lambda n: (n, 3, 8), lambda n: (5, 8), lambda n: (5,)]),
    "bmm": (torch.bmm, [lambda n: (n, 3, 8), lambda n: (n, 8, 5)]),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->kbi", x, y), [lambda n: (n, 3, 8), lambda n: (n, 5, 8)]),
    "vectors": (lambda x, y: (x @ y) @ x, [lambda n: (n, 8), lambda n: (8, n)]),
    "mean, linear": (lambda x, w: F.linear(x.mean((2, 3)), w), [lambda n: (n, 8, 4, 4), lambda n: (5, 8)]),
    "1x1, pool, linear": (
        lambda x, k, w, b: F.linear(_pooled(F.conv2d(x, k)), w, b),
        [lambda n: (n, 8, 4, 4), lambda n: (16, 8, 1, 1), lambda n: (10, 16), lambda n: (10,)],
    ),
    "3x3, pool, linear": (
        lambda x, k, w: F.linear(_pooled(F.conv2d(x, k, padding=1).relu()), w),
        [lambda n: (n, 8, 4, 4), lambda n: (16, 8, 3, 3), lambda n: (10, 16)],
    ),
    "two 3x3, mean": (
        lambda x, k, m: F.conv2d(F.conv2d(x, k, padding=1).relu(), m, padding=1).relu().mean(),
        [lambda n: (n, 8, 8, 8), lambda n: (16, 8, 3, 3), lambda n: (16, 16, 3, 3)],
    ),
    "attention": (_attention, [lambda n: (n, 6, 2, 8)] * 3),
    "attention by hand": (_by_hand, [lambda n: (n, 6, 2, 8)] * 3),
}
"""A function, and the shape of each operand for a batch."""


def _in_half(name: str, batch: int, dtype: torch.dtype) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    fn, shapes = PROGRAMS[name]
    return fn, tuple(randn(shape(batch)).to(dtype) for shape in shapes)


def _assert_near(found: list[Any], fn: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> None:
    """Results, and perhaps gradients, against float64: within a few times what eager PyTorch is away from it."""
    exact, eager = run(fn, tuple(x.double() for x in operands), True), run(fn, operands, True)
    for got, want, other in zip(found, exact, eager, strict=False):
        assert got.dtype == other.dtype
        rounding = 8 * torch.finfo(got.dtype).eps * max(1.0, want.abs().max().item())
        away = (other.double() - want).abs().max().item()
        torch.testing.assert_close(got.double(), want, rtol=0, atol=4 * away + rounding)


_OFTEN = [(name, 2, torch.bfloat16) for name in ("1x1, pool, linear", "transposed")]
_CASES = [
    pytest.param(name, batch, dtype, marks=[] if (name, batch, dtype) in _OFTEN else pytest.mark.exhaustive)
    for name in PROGRAMS
    for batch in (1, 2, 3)
    for dtype in (torch.bfloat16, torch.float16)
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("multiplies", [False, True])
@pytest.mark.parametrize(("name", "batch", "dtype"), _CASES)
def test_compiled(name: str, batch: int, dtype: torch.dtype, multiplies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda: multiplies)
    fn, operands = _in_half(name, batch, dtype)
    compiled = compile_whole(fn)
    _assert_near(run(compiled, operands, True), fn, operands)
    with torch.no_grad():
        found = run(compiled, operands, False)[:1]
    _assert_near(found, fn, operands)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_for_a_batch_that_changes(name: str) -> None:
    """Programs with open sizes, which are traced for any platform, are not folded into such products, either."""
    torch._dynamo.reset()
    compiled = compile_whole(PROGRAMS[name][0])
    for batch in (2, 3, 4, 6):
        fn, operands = _in_half(name, batch, torch.bfloat16)
        _assert_near(run(compiled, operands, True), fn, operands)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "batch", "dtype"), _CASES)
def test_on_the_device(name: str, batch: int, dtype: torch.dtype) -> None:
    fn, operands = _in_half(name, batch, dtype)
    _assert_near(run(fn, operands, True, "jax"), fn, operands)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "batch", "dtype"), _CASES)
def test_in_jax(name: str, batch: int, dtype: torch.dtype) -> None:
    """By the options that the user's `jax.jit` has."""
    fn, operands = _in_half(name, batch, dtype)
    arrays = jaten_ops.to_jax([x.to("jax") for x in operands])
    function = jaten_ops.as_jax(fn)

    def loss(*arrays: jax.Array) -> jax.Array:
        return jax.numpy.sin(function(*arrays).astype("float32")).sum()

    results = [jax.jit(function)(*arrays), *jax.jit(jax.grad(loss, tuple(range(len(arrays)))))(*arrays)]
    _assert_near([jaten_ops.from_jax(r).cpu() for r in results], fn, operands)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "batch", "dtype"), _CASES)
def test_in_a_step(name: str, batch: int, dtype: torch.dtype) -> None:
    fn, operands = _in_half(name, batch, dtype)
    on_device = [x.to("jax").requires_grad_() for x in operands]

    def step() -> list[Tensor]:
        result = fn(*on_device)
        return [result, *torch.autograd.grad(result.float().sin().sum(), on_device)]

    compiled = jaten_ops.compile_step(step, *on_device)
    compiled()
    _assert_near([x.detach().cpu() for x in compiled()], fn, operands)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_head_under_autocast(device: str) -> None:
    fn, shapes = PROGRAMS["1x1, pool, linear"]
    operands = tuple(randn(shape(2)) for shape in shapes)

    @compile_whole
    def compiled(*operands: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return fn(*operands)

    found = run(compiled, operands, True, device)
    for got, want in zip(found, run(fn, operands, True), strict=True):
        torch.testing.assert_close(got.float(), want, rtol=0, atol=0.06 * want.abs().max().item())


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_product_in_float32_is_transposed(batch: tuple[int, ...]) -> None:
    """XLA exchanges the factors of a transposed product, and has none of bfloat16 then."""
    x, y = randn((*batch, 64, 96)).bfloat16(), randn((*batch, 96, 48)).bfloat16()
    multiply = torch.bmm if batch else torch.mm

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return multiply(x, y, out_dtype=torch.float32).mT.contiguous()

    expected = (x.float() @ y.float()).mT
    for found in (compile_whole(fn)(x, y), fn(x.to("jax"), y.to("jax")).cpu()):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)  # sums of 96 terms in another order


_PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "matrices": (torch.matmul, (64, 96), (96, 48)),
    "the first transposed": (lambda x, y: x.mT @ y, (96, 64), (96, 48)),
    "the second transposed": (lambda x, y: x @ y.mT, (64, 96), (48, 96)),
    "odd, the first transposed": (lambda x, y: x.mT @ y, (96, 63), (96, 48)),
    "batch": (torch.bmm, (4, 64, 96), (4, 96, 48)),
    "batch, the first transposed": (lambda x, y: x.mT @ y, (4, 96, 64), (4, 96, 48)),
    "batch, the second transposed": (lambda x, y: x @ y.mT, (4, 64, 96), (4, 48, 96)),
    "linear": (F.linear, (64, 96), (48, 96)),
}


def _factors(program: str) -> list[str]:
    """The dtypes of the factors of the products of matrices in a program that XLA has compiled."""
    types = dict(re.findall(r"(%[\w.-]+) = (\w+)\[", program))
    products = re.findall(r" dot\((%[\w.-]+), (%[\w.-]+)\), .*contracting", program)
    return [types[factor] for product in products for factor in product]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", ["compiled", "step"])
@pytest.mark.parametrize("name", _PRODUCTS)
def test_a_processor_that_multiplies_bfloat16_does(name: str, way: str) -> None:
    """Forward and backward; XLA's CPU compiler widens what its library does not take as it stands."""
    fn, *shapes = _PRODUCTS[name]
    operands = [randn(shape).bfloat16().requires_grad_() for shape in shapes]
    with programs() as texts:
        if way == "compiled":
            run(compile_whole(fn), tuple(operands), True)
        else:
            given = randn(fn(*operands).shape).bfloat16()  # no sum, which is a product, too
            step = jaten_ops.compile_step(lambda: [y := fn(*operands), *torch.autograd.grad(y, operands, given)])
            _ = step(), step()  # the first call may only find out what the step needs
    factors = [dtype for text in texts for dtype in _factors(text)]
    assert len(factors) == 6
    assert set(factors) == {"bf16"} or not cpu_features.multiplies_bfloat16()


# rows, columns, terms, dtype, and whether the factors are exchanged
_OVER_ROWS = {
    "wide by narrow": (96, 16, 600, "float32", True),
    "narrow by wide": (16, 96, 600, "float32", False),
    "few terms": (1024, 512, 16, "float32", False),
    "another size": (250, 10, 600, "float32", True),
    "a small one of another size": (100, 10, 600, "float32", False),
    "a column": (128, 1, 600, "float32", False),
    "bfloat16": (96, 16, 600, "bfloat16", False),
}


@pytest.mark.parametrize("name", _OVER_ROWS)
def test_product_over_rows(name: str) -> None:
    rows, columns, terms, dtype, is_exchanged = _OVER_ROWS[name]
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.integers(-3, 4, (terms, n)), dtype) for n in (rows, columns))
    found = jax.jit(dot_reductions.product_over_rows)(a, b)
    np.testing.assert_array_equal(found, np.asarray(a, np.float32).T @ np.asarray(b, np.float32))  # whole numbers
    wide = [e for e in jax.make_jaxpr(dot_reductions.product_over_rows)(a, b).eqns if e.primitive.name == "transpose"]
    assert any(e.params["permutation"] == (1, 0) and e.outvars[0].aval.shape == (rows, columns) for e in wide) == (
        is_exchanged
    )


def test_open_sizes_are_not_exchanged() -> None:
    (rows,) = jax.export.symbolic_shape("n")
    assert not dot_reductions.is_better_exchanged(rows, 8, 600)
    assert not dot_reductions.is_better_exchanged(96, 8, rows)


def test_open_sizes_of_small_products_are_not_compared() -> None:
    (size,) = jax.export.symbolic_shape("n")
    assert not dot_reductions.is_better_turned_in_batch(size, 8, 8, 16)
    assert not dot_reductions.is_better_turned_in_batch(8, 8, size, 16)
    assert dot_reductions.is_better_turned_in_batch(8, 8, 8, size)
