"""The lowering that the rules choose for a convolution."""

import pytest
import torch
from torch.nn import functional

from jaten_ops.cpu import conv_choice
from jaten_ops.cpu.conv_lowerings import EIGEN, PATCHES, TAPS, fits
from jaten_ops.kernel_base.conv_parts import Windows

PLAIN = Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)


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
    names = {"eigen": EIGEN, "taps": TAPS, "patches": PATCHES, "depth": conv_choice.DEPTH}
    names["taps, patches forward"] = conv_choice.STRIDED
    names["patches forward"] = conv_choice.PATCHED
    assert conv_choice.choose(windows, shape, outputs, fits(windows, shape[2:])) == names[chosen]


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
