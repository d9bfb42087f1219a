"""Programs that a released XLA has miscompiled: each runs with every version, with and without a guard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

import jaten_ops
from jaten_ops.xla import compiler_bugs, compiler_options

TESTS = Path(__file__).parents[1]


def _products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.relu(F.relu(x.permute(0, 2, 3, 1) @ weight[:, :, 0, 0]) @ weight[:, :, 1, 1])


def _convolutions(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.relu(F.conv2d(F.relu(F.conv2d(x, weight, padding=1)), weight, padding=1)).permute(0, 2, 3, 1)


SLICES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "columns": lambda x, y: x[:, ::2].T @ y,
    "rows": lambda x, y: x[::3] @ y.T,
    "columns, after an offset": lambda x, y: y.T @ x[:, 1::2],
}
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda x: x.mean((1, 2)),
    "max": lambda x: x.amax((1, 2)),
    "sum": lambda x: x.sum(-1),
    "loss": lambda x: (x**2).mean(),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("layers", [_products, _convolutions])
def test_reductions_of_bfloat16_after_products(
    layers: Callable[..., torch.Tensor], reduction: str, fresh_dynamo: None
) -> None:
    """jaxlib 0.12.0.1 gave infinities and NaN, and ended the process with larger arrays."""
    x, weight = torch.randn(1, 64, 14, 14), torch.randn(64, 64, 3, 3) * 0.1

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return REDUCTIONS[reduction](layers(x, weight))

    found = torch.compile(program, backend="jaten")(x.bfloat16(), weight.bfloat16())
    # two products in bfloat16, of 8 bits, beside float32; the bug gave infinities and NaN
    torch.testing.assert_close(found.float(), program(x, weight), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_that_are_converted_to_float64(dim: int, fresh_dynamo: None) -> None:
    """jaxlib 0.10.0 ended the process."""
    x = torch.randn(64, 128, 256)
    found = torch.compile(lambda x: x.sum(dim).double(), backend="jaten")(x)
    torch.testing.assert_close(found, x.double().sum(dim), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SLICES)
def test_products_of_slices_with_steps(name: str, fresh_dynamo: None) -> None:
    """jaxlib 0.11.2 ended the process on a GPU, where tests/programs/accelerator.py runs such a program."""
    x, y = torch.randn(16, 5, requires_grad=True), torch.randn(16, 5)
    program = SLICES[name]
    found = torch.compile(program, backend="jaten")(x, y)
    torch.testing.assert_close(found, program(x, y))
    (grad,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(program(x, y).sum(), x)[0])
    function = jaten_ops.as_jax(program)
    arrays = [jnp.ones((16, 5)), jnp.ones((16, 5))]
    for traced in (function, jax.grad(lambda x, y: function(x, y).sum())):
        text = jax.jit(traced).lower(*arrays).as_text()
        assert compiler_bugs.options_around("gpu", text, "0.11.2") == {"xla_gpu_enable_triton_gemm": False}
        assert compiler_bugs.options_around("cpu", text, "0.11.2") == {}


TEXTS = (  # for each row, of a program that it is for
    "func.func @f(%arg0: tensor<2x3xbf16>) -> tensor<f32>",
    "%1 = stablehlo.convert %0 : (tensor<2x3xf32>) -> tensor<2x3xf64>",
    "%0 = stablehlo.slice %arg0 [0:16, 0:5:2] : (tensor<16x5xf32>) -> tensor<16x3xf32>",
)


@pytest.mark.parametrize(("bug", "text"), list(zip(compiler_bugs.BUGS, TEXTS, strict=True)))
def test_a_row_is_of_some_versions_alone(bug: compiler_bugs.Bug, text: str) -> None:
    def options(text: str, version: str) -> dict[str, str | bool]:
        return compiler_bugs.options_around(bug.platform, text, version)

    assert options(text, bug.first) == options(text, bug.last) == bug.options
    assert options(text.replace("bf16", "f32").replace("f64", "f32").replace(":2]", "]"), bug.last) == {}
    assert options(text, "0.9.0") == options(text, "99.0") == {}
    assert compiler_bugs.options_around("tpu", text, bug.last) == {}
    file, _, function = bug.test.partition("::")
    assert f"def {function}(" in (TESTS / file).read_text()


def test_a_program_gets_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come after all others, in graphs and kernels, but not in place of what the user has set."""
    bug = compiler_bugs.BUGS[0]._replace(first="0", last=jax.lib.__version__)
    monkeypatch.setattr(compiler_bugs, "BUGS", (bug,))
    text = "func.func @f(%arg0: tensor<2x3xbf16>) -> tensor<f32>"
    for options in (compiler_options.of_program("cpu", text).options, compiler_options.of_kernel("cpu", text)):
        assert options.items() >= bug.options.items()
    assert not compiler_options.of_program("tpu", text).options
    monkeypatch.setenv("XLA_FLAGS", "".join(f"--{name}=" for name in bug.options))
    assert compiler_options.of_program("cpu", text).options.keys().isdisjoint(bug.options)
