"""Convolutions with fewer products: the values of plain ones, zeros, infinities and NaNs where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaten_ops.cpu import conv_choice, conv_winograd
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows
from jaten_ops.xla import cpu_features

from ..harness.convolutions import PARTS, parts_of
from ..harness.crossings import crossed

# images, channels, outputs, image, padding
CASES: dict[str, tuple[Any, ...]] = {
    "of even images": (2, 16, 24, (8, 12), (1, 1)),
    "of uneven images": (3, 16, 8, (7, 9), (1, 1)),
    "without padding": (2, 8, 16, (9, 6), (0, 0)),
    "with two paddings": (1, 5, 3, (6, 5), (2, 0)),
    "of one window": (4, 3, 5, (3, 3), (0, 0)),
    "of a sequence": (2, 6, 7, (11,), (1,)),
    "of volumes": (2, 4, 6, (5, 4, 7), (1, 0, 1)),
    "in blocks": (3, 64, 64, (32, 32), (1, 1)),
}


def _operands(case: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, Windows]:
    images, channels, outputs, sizes, padding = CASES[case]
    torch.manual_seed(0)
    n = len(sizes)
    ones = (1,) * n
    x = torch.randn(images, channels, *sizes, dtype=dtype)
    weight = torch.randn(outputs, channels, *(3,) * n, dtype=dtype)
    return x, weight, Windows((3,) * n, ones, padding, ones, 1)


def _computed(part: str, windows: Windows, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor) -> np.ndarray:
    """A part with channels last, in the program's order; the plain convolution would give NaN."""
    call = ConvCall(part, windows, () if part == "forward" else tuple(result.shape))
    first, second, left = conv_choice.orders(call, a.dim())
    shape = tuple(result.shape[d] for d in left)

    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        def plain(*_: Any) -> jax.Array:
            return jnp.full(shape, jnp.nan, x.dtype)

        if part == "weight_gradient":
            return conv_winograd.weight_gradient(x, y, windows, shape, plain)
        if part == "input_gradient":
            return conv_winograd.input_gradient(x, y, windows, shape, plain)
        return conv_winograd.forward(x, y, windows, shape, plain)

    with jax.enable_x64(True):
        x, y = (jnp.asarray(t.detach().numpy()) for t in (a, b))
        return np.asarray(jax.jit(run)(x.transpose(first), y.transpose(second)).transpose(np.argsort(left)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "part"), crossed(CASES, PARTS))
def test_parts(case: str, part: str) -> None:
    x, weight, windows = _operands(case)
    a, b, expected = parts_of(x, weight, windows)[part]
    found = _computed(part, windows, a, b, expected)
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-10, atol=1e-10)


def test_what_has_only_zeros_under_its_window_is_zero() -> None:
    x, weight, windows = _operands("of even images", torch.float32)
    x = torch.zeros_like(x)
    x[0, :, 2, 3], x[1, 4, 7, 11] = torch.randn(x.shape[1]), 3e14
    expected = torch.conv2d(x, weight, padding=1)
    found = _computed("forward", windows, x, weight, expected)
    np.testing.assert_array_equal(found == 0, expected.detach() == 0)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30], ids=str)
@pytest.mark.parametrize("part", PARTS)
def test_what_would_not_cancel_is_computed_plainly(part: str, value: float) -> None:
    x, weight, windows = _operands("of even images", torch.float32)
    parts = parts_of(x, weight, windows)
    for which in (0, 1):
        operands = [t.detach().clone() for t in parts[part]]
        operands[which].view(-1)[5] = value
        assert np.isnan(_computed(part, windows, *operands)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_compiled_program(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities, too, where eager has them."""
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: False)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Tanh()),
        torch.nn.Conv2d(64, 32, 3),
    ).to(dtype)
    compiled = torch.compile(net, backend="jaten")
    x = torch.randn(2, 3, 26, 26, dtype=dtype)
    assert conv_winograd.transforms_pay(2, (24, 24), 64, 64, of_weight=False)
    for value in (0.0, float("inf")):
        x[1, 2, 5, 5] = value
        expected, found = net(x), compiled(x)
        # elements of inner layers round to neighbours of ATen's, a 256th away
        bounds = {"rtol": 1.6e-2, "atol": 2e-4} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(found, expected, equal_nan=True, **bounds)
        by_eager, by_jaten = (torch.autograd.grad(y.square().mean(), [*net.parameters()]) for y in (expected, found))
        torch.testing.assert_close(by_jaten, by_eager, equal_nan=True)


@pytest.mark.parametrize("fast", [False, True])
def test_it_pays_where_products_take_long(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: fast)
    assert conv_winograd.transforms_pay(8, (56, 56), 64, 64, of_weight=False) is not fast


@pytest.mark.parametrize(
    ("text", "fast", "short", "halves"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: fma avx2 avx512f avx512dq\n", True, False, False),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fma avx2 avx512f avx512_bf16 amx_bf16\n", True, True, False),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fma avx2\n", False, False, False),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fma avx2 avx512f avx512dq\n", False, False, False),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fma avx2 avx512f avx512_bf16\n", False, True, False),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n", False, False, True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 49\nmodel name\t: AMD EPYC\n", False, False, False),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n", False, False, False),
        (None, False, False, False),
    ],
)
def test_what_the_processor_is(
    text: str | None, fast: bool, short: bool, halves: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(cpu_features, "_DESCRIPTION", file)
    assert cpu_features.multiplies_fast.__wrapped__() is fast
    assert cpu_features.multiplies_bfloat16.__wrapped__() is short
    assert cpu_features.halves_vectors.__wrapped__() is halves
