"""Compositions on the device: tangents of views lie as their primals do, and values are checked when compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.func import jacfwd, jvp

import jaten_ops  # noqa: F401  # the device jax
from tests.harness.crossings import crossed

Function = Callable[[torch.Tensor], torch.Tensor]

PRIMALS: dict[str, Function] = {
    "transposed": lambda a: a.mT,
    "columns": lambda a: a[:, ::2],
    "rows": lambda a: a[1:],
    "permuted": lambda a: a.reshape(2, 3, 2).permute(2, 0, 1),
}
FUNCTIONS: dict[str, Function] = {
    "transpose": lambda w: w.mT.sin(),
    "row": lambda w: w[0].sin(),
    "flat": lambda w: w.reshape(-1).sin(),
    "write": lambda w: torch.select_scatter(w, w[0] * 2, 0, 0).mul_(2),
    "sum": lambda w: (w * w).sum(-1),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("primal", "function"), crossed(PRIMALS, FUNCTIONS))
def test_forward_mode_of_views(primal: str, function: str) -> None:
    found = []
    for device in ("cpu", "jax"):
        x = PRIMALS[primal](torch.arange(12.0, device=device).reshape(3, 4))
        pushed = jvp(FUNCTIONS[function], (x,), (torch.full(x.shape, 0.5, device=device),))
        found.append([*pushed, jacfwd(FUNCTIONS[function])(x)])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu(), expected)


def test_combinations() -> None:
    for size, length, repeats in [
        (0, 2, False),
        (1, 1, True),
        (5, 2, False),
        (5, 3, True),
        (2, 3, False),
        (4, 0, False),
    ]:
        x = torch.arange(float(size))
        expected = torch.combinations(x, length, repeats)
        assert torch.equal(torch.combinations(x.to("jax"), length, repeats).cpu(), expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc_loss_of_lengths_that_are_numbers(reduction: str, dynamic: bool) -> None:
    def loss(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = torch.nn.functional.ctc_loss(
            x, targets, (20, 7, 20), (15, 15, 0), reduction=reduction, zero_infinity=True
        )
        return losses.sum()

    generator = torch.Generator().manual_seed(0)
    given = torch.randn(20, 3, 6, generator=generator).log_softmax(2), torch.randint(1, 6, (3, 15), generator=generator)
    found = []
    for fn, device in ((loss, "cpu"), (loss, "jax"), (torch.compile(loss, backend="jaten", dynamic=dynamic), "jax")):
        x = given[0].to(device, copy=True).requires_grad_()
        result = fn(x, given[1].to(device))
        result.backward()
        assert x.grad is not None
        found.append((result.detach().cpu(), x.grad.cpu()))
    for got in found[1:]:
        torch.testing.assert_close(got, found[0], rtol=1e-4, atol=1e-5)  # sums of exponentials, in another order


def _asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() < 5, "too much")
    return x * 2


CHECKED: dict[str, tuple[Function, str]] = {
    "a class too high": (lambda i: F.one_hot(i, 3), "must be smaller than num_classes"),
    "a class too high, unused": (lambda i: (F.one_hot(i, 3), i * 2)[1], "must be smaller than num_classes"),
    "a negative class": (lambda i: F.one_hot(i - 1, 6), "must be non-negative"),
    "in a branch": (
        lambda i: torch.cond(i.sum() > 9, lambda i: F.one_hot(i, 3), lambda i: F.one_hot(i, 3) * 2, (i,)),
        "must be smaller than num_classes",
    ),
    "an assertion": (_asserted, "too much"),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", CHECKED)
def test_values_are_checked_in_compiled_functions(name: str) -> None:
    function, message = CHECKED[name]
    with pytest.raises(RuntimeError, match=message):
        torch.compile(function, backend="jaten")(torch.tensor([0, 5], device="jax"))


def test_classes_that_fit() -> None:
    classes = torch.tensor([0, 2])
    got = torch.compile(lambda i: F.one_hot(i, 3), backend="jaten")(classes.to("jax"))
    torch.testing.assert_close(got.cpu(), F.one_hot(classes, 3))


def test_gradient_of_fake_quantization_with_open_sizes() -> None:
    def quantized(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -8, 7).sin()

    x = torch.linspace(-2.0, 2.0, 24).reshape(4, 6)
    scale, zero = torch.full((4,), 0.125), torch.tensor([0, 1, -1, 2], dtype=torch.int32)
    found = []
    for fn, device in ((quantized, "cpu"), (torch.compile(quantized, backend="jaten", dynamic=True), "jax")):
        leaf = x.to(device).clone().requires_grad_()
        fn(leaf, scale.to(device), zero.to(device)).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1].cpu(), found[0])


def test_mask_of_fake_quantization_is_checked() -> None:
    gradient = torch.ops.aten.fake_quantize_per_channel_affine_cachemask_backward
    grad, mask = torch.ones(2, 3), torch.ones(2, 3)
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match=r"(?i)mask"):
            gradient(grad.to(device), mask.to(device))
