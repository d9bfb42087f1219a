"""The lowerings of a convolution and of its gradients compute the same."""

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaten_ops.cpu import conv_choice
from jaten_ops.cpu.conv_choice import DIRECT, PATCHES, TAPS, Lowering
from jaten_ops.kernel_base.conv_parts import Windows
from jaten_ops.xla.x64 import Enabled

PLAIN = Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)
# windows, the input's shape, the number of output channels
CASES = {
    "plain": (PLAIN, (2, 3, 9, 10), 4),
    "images of many positions": (PLAIN, (2, 3, 9, 8), 4),
    "images of few positions": (PLAIN, (3, 5, 4, 4), 2),
    "stride, padding and dilation": (Windows((3, 2), (2, 3), (2, 0), (2, 1), 1), (2, 3, 11, 9), 4),
    "side by side": (Windows((2, 4), (2, 4), (0, 0), (1, 1), 1), (2, 3, 7, 9), 5),
    "one element": (Windows((1,), (1,), (0,), (1,), 1), (2, 3, 70), 5),
    "one element, strides": (Windows((1, 1), (2, 2), (0, 0), (1, 1), 1), (2, 3, 7, 7), 5),
    "groups": (PLAIN._replace(groups=2), (2, 6, 8, 8), 4),
    "a kernel for each channel, twice as many outputs": (PLAIN._replace(groups=3), (2, 3, 8, 8), 6),
    "a kernel for each channel": (PLAIN._replace(groups=3), (2, 3, 8, 8), 3),
    "two kernels for each channel": (Windows((3, 3), (2, 2), (2, 0), (1, 2), 3), (2, 3, 8, 9), 6),
    "a window larger than the input": (Windows((5,), (1,), (3,), (1,), 1), (2, 3, 2), 4),
    "three dimensions": (Windows((2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2), 1), (1, 2, 5, 6, 5), 3),
    "volumes": (Windows((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1), (2, 4, 5, 6, 7), 6),
    "volumes, strides": (Windows((3, 2, 3), (2, 2, 1), (2, 0, 1), (2, 1, 2), 1), (2, 3, 7, 6, 8), 4),
    "volumes, groups": (Windows((2, 2, 2), (1, 1, 1), (0, 1, 0), (1, 1, 1), 2), (1, 4, 4, 4, 4), 6),
    "elements at the end under no window": (Windows((2, 2), (3, 3), (0, 0), (1, 1), 1), (1, 2, 7, 7), 3),
}
LOWERINGS = {"taps": TAPS, "patches": PATCHES, "padded first": conv_choice.EIGEN, "depth": conv_choice.DEPTH}
ALL = [(case, lowering) for case in CASES for lowering in LOWERINGS if lowering != "depth" or len(CASES[case][1]) == 5]


@pytest.mark.sampled(2)
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("case", "lowering"), ALL)
def test_all_compute_the_same(case: str, lowering: str) -> None:
    windows, shape, outputs = CASES[case]
    draw = np.random.default_rng(0).standard_normal
    x, w = draw(shape), draw((outputs, shape[1] // windows.groups, *windows.kernel))
    grad = draw((shape[0], outputs, *windows.positions(shape[2:])))

    def parts(of: Lowering) -> list[jax.Array]:
        calls = (of.forward, (x, w, windows, grad.shape)), (of.input_gradient, (grad, w, windows, shape))
        every = (*calls, (of.weight_gradient, (x, grad, windows, w.shape)))
        return [np.asarray(jax.jit(lambda part=part, given=given: part(*given))()) for part, given in every]

    with Enabled():
        for got, expected in zip(parts(LOWERINGS[lowering]), parts(DIRECT), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("windows", "shape", "outputs", "chosen"),
    [
        (PLAIN, (1, 64, 56, 56), 64, "eigen"),
        (PLAIN, (4, 512, 2, 2), 512, "patches"),
        (PLAIN._replace(groups=96), (1, 96, 56, 56), 96, "taps"),
        (PLAIN._replace(groups=32), (1, 128, 56, 56), 128, "taps"),
        (PLAIN._replace(groups=32, stride=(2, 2)), (1, 128, 56, 56), 128, "taps, patches forward"),
        (PLAIN._replace(groups=16), (1, 128, 56, 56), 128, "patches"),
        (Windows((1, 1), (1, 1), (0, 0), (1, 1), 1), (8, 64, 28, 28), 256, "patches"),
        (Windows((16, 16), (16, 16), (0, 0), (1, 1), 1), (8, 3, 224, 224), 192, "patches"),
        (Windows((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1), (2, 32, 8, 28, 28), 32, "depth"),
        (Windows((5, 5), (2, 2), (2, 2), (1, 1), 1), (8, 3, 112, 112), 32, "patches forward"),
        (Windows((31, 31), (1, 1), (15, 15), (1, 1), 64), (1, 64, 32, 32), 64, "eigen"),
    ],
)
def test_the_choice_for_a_cpu(windows: Windows, shape: tuple[int, ...], outputs: int, chosen: str) -> None:
    names = {"eigen": conv_choice.EIGEN, "taps": TAPS, "patches": PATCHES, "depth": conv_choice.DEPTH}
    names["taps, patches forward"] = conv_choice.STRIDED
    names["patches forward"] = conv_choice.PATCHED
    assert conv_choice.choose(windows, shape, outputs, conv_choice.fits(windows, shape[2:])) == names[chosen]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("groups", [1, 4])
def test_a_mean_of_two_convolutions_of_bfloat16(device: str, memory_format: torch.memory_format, groups: int) -> None:
    """XLA's CPU library has it infinite or NaN in jaxlib 0.12.0.1; in any version it must not be so here."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(1, 8, 16, 16).to(memory_format=memory_format)
    weights = [torch.randn(32, n // groups, 3, 3) / (9 * n / groups) ** 0.5 for n in (8, 32)]

    def network(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = functional.conv2d(x, weight, padding=1, groups=groups).relu()
        return x.mean((2, 3))

    given = [t.to(device, torch.bfloat16).requires_grad_() for t in (x, *weights)]
    found = torch.compile(network, backend="jaten")(*given)
    found.square().sum().backward()
    plain = [t.detach().cpu().float().requires_grad_() for t in given]
    expected = network(*plain)
    expected.square().sum().backward()
    pairs = [(found.detach(), expected.detach()), *((g.grad, w.grad) for g, w in zip(given, plain, strict=True))]
    for got, wanted in pairs:
        assert got is not None and wanted is not None
        assert (got.cpu().float() - wanted).norm() < 0.03 * wanted.norm()  # 2**-8 at each of a few roundings
