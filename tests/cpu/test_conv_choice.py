"""The lowering that the rules choose for a convolution."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaten_ops.cpu import conv_choice
from jaten_ops.cpu.conv_lowerings import EIGEN, ONEDNN, ONEDNN_FIRST, PATCHES, TAPS, Way, fits, possible
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows
from jaten_ops.xla import cpu_features, onednn

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
        (Windows((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1), (1, 256, 2, 8, 8), 256, "patches"),
        (Windows((1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1), 1), (1, 256, 2, 8, 8), 256, "patches"),
        (Windows((5, 5), (2, 2), (2, 2), (1, 1), 1), (8, 3, 112, 112), 32, "patches forward"),
        (Windows((31, 31), (1, 1), (15, 15), (1, 1), 64), (1, 64, 32, 32), 64, "eigen"),
    ],
)
def test_the_choice_for_a_cpu(
    windows: Windows, shape: tuple[int, ...], outputs: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: True)
    names = {"eigen": EIGEN, "taps": TAPS, "patches": PATCHES, "depth": conv_choice.DEPTH}
    names["taps, patches forward"] = conv_choice.STRIDED
    names["patches forward"] = conv_choice.PATCHED
    assert conv_choice.choose(windows, shape, outputs, fits(windows, shape[2:])) == names[chosen]


STRIDED, ONE = Windows((3, 3), (2, 2), (1, 1), (1, 1), 1), Windows((1, 1), (1, 1), (0, 0), (1, 1), 1)
PAIRS = Windows((2, 2), (2, 2), (0, 0), (1, 1), 1)


def _call(part: str, windows: Windows, shape: tuple[int, ...], outputs: int, dtype: Any) -> tuple[Any, Any, Any]:
    """A part of a convolution, with its operands' shapes and dtypes."""
    x, grad, weight = (
        jax.ShapeDtypeStruct(s, dtype)
        for s in (
            *(shape, (shape[0], outputs, *windows.positions(shape[2:]))),
            (outputs, shape[1] // windows.groups, *windows.kernel),
        )
    )
    result, *operands = {
        "forward": ((), x, weight),
        "input_gradient": (x.shape, grad, weight),
        "weight_gradient": (weight.shape, x, grad),
    }[part]
    return (ConvCall(part, windows, result), *operands)


@pytest.mark.parametrize(
    ("part", "windows", "shape", "outputs", "follows", "fast", "chosen"),
    [
        ("forward", PLAIN, (8, 64, 28, 28), 64, True, False, "tiles, channels last"),
        ("forward", PLAIN, (8, 64, 28, 28), 64, True, True, "direct, channels last"),
        ("weight_gradient", PLAIN, (8, 64, 28, 28), 64, True, False, "direct, channels last"),
        ("weight_gradient", PLAIN, (1, 128, 28, 28), 128, True, False, "tiles, channels last"),
        ("forward", PLAIN, (8, 3, 64, 64), 32, False, False, "patches"),
        ("forward", PLAIN, (8, 16, 64, 64), 8, True, False, "blocks, channels last"),
        ("forward", PLAIN, (8, 3, 64, 64), 16, False, False, "taps"),
        ("forward", PLAIN, (8, 16, 64, 64), 3, True, False, "taps"),
        ("input_gradient", PLAIN, (8, 16, 64, 64), 3, True, False, "taps"),
        ("forward", STRIDED, (8, 3, 64, 64), 8, False, False, "patches"),
        ("weight_gradient", STRIDED, (1, 64, 56, 56), 128, True, False, "blocks, channels last"),
        ("weight_gradient", STRIDED, (1, 64, 56, 56), 128, False, False, "patches"),
        ("weight_gradient", STRIDED, (8, 64, 56, 56), 128, True, False, "direct, channels last"),
        ("weight_gradient", STRIDED, (8, 64, 56, 56), 128, True, True, "blocks, channels last"),
        ("forward", ONE, (8, 64, 28, 28), 128, True, False, "product, channels last"),
        ("forward", ONE, (8, 64, 28, 28), 128, False, False, "patches"),
        ("forward", ONE._replace(stride=(2, 2)), (8, 64, 28, 28), 128, True, False, "product, channels last"),
        ("input_gradient", ONE._replace(stride=(2, 2)), (8, 64, 28, 28), 128, True, False, "direct, channels last"),
        ("forward", PAIRS, (8, 64, 28, 28), 128, True, False, "direct, channels last"),
        ("forward", PAIRS, (8, 64, 28, 28), 128, False, False, "patches"),
        ("forward", PLAIN._replace(groups=64), (8, 64, 28, 28), 64, True, False, "depthwise, channels last"),
        ("weight_gradient", PLAIN._replace(groups=32), (8, 32, 28, 28), 32, True, False, "depthwise, channels last"),
        ("weight_gradient", STRIDED._replace(groups=32), (8, 32, 28, 28), 32, True, False, "taps"),
        ("forward", PLAIN._replace(groups=16), (8, 128, 28, 28), 128, False, False, "sums, channels last"),
        ("forward", PLAIN._replace(groups=5), (1, 50, 28, 28), 50, False, False, "taps"),
        ("forward", PLAIN._replace(groups=5), (1, 50, 28, 28), 50, False, True, "patches"),
    ],
)
def test_the_choice_in_a_program(
    part: str, windows: Windows, shape: tuple[int, ...], outputs: int, follows: bool, fast: bool, chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: fast)
    monkeypatch.setattr(cpu_features, "halves_vectors", lambda: False)
    call, *operands = _call(part, windows, shape, outputs, np.float32)
    found = conv_choice.ruled(call, *operands, follows=follows)
    assert found.computes_as(possible(call, *operands)[chosen], call)


@pytest.mark.parametrize("part", ["forward", "input_gradient"])
@pytest.mark.parametrize(
    ("channels", "outputs", "halves", "others"),
    [
        (16, 16, "direct", "blocks"),
        (32, 8, "direct", "blocks"),
        (8, 8, "blocks", "blocks"),
        (12, 16, "blocks", "blocks"),
        (16, 12, "blocks", "blocks"),
        (24, 24, "direct", "direct"),
    ],
)
def test_the_choice_for_few_channels(
    part: str, channels: int, outputs: int, halves: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products with zeros take longer than stretches that are full, where vectors are computed in halves."""
    if part == "input_gradient":  # which slides over the outputs
        channels, outputs = outputs, channels
    call, *operands = _call(part, PLAIN, (2, channels, 112, 112), outputs, np.float32)
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: False)
    for are_halved, chosen in ((True, halves), (False, others)):
        monkeypatch.setattr(cpu_features, "halves_vectors", lambda are_halved=are_halved: are_halved)
        found = conv_choice.ruled(call, *operands, follows=True)
        assert found.computes_as(possible(call, *operands)[f"{chosen}, channels last"], call)


@pytest.mark.parametrize(
    ("part", "windows", "shape", "outputs", "chosen"),
    [
        ("forward", PLAIN, (8, 64, 28, 28), 64, "rows, channels last"),
        ("input_gradient", PLAIN, (8, 64, 28, 28), 64, "rows, channels last"),
        ("weight_gradient", PLAIN, (8, 64, 28, 28), 64, "rows, channels last"),
        ("forward", STRIDED, (8, 64, 28, 28), 64, "rows, channels last"),
        ("input_gradient", STRIDED, (8, 64, 28, 28), 64, "direct, channels last"),
        ("weight_gradient", STRIDED, (1, 64, 56, 56), 128, "rows, channels last"),
        ("forward", PLAIN, (8, 16, 64, 64), 8, "blocks, channels last"),
        ("forward", PLAIN, (16, 64, 112, 112), 64, "tiles, channels last"),
        ("forward", PLAIN, (1, 512, 7, 7), 512, "patches"),
        ("forward", ONE, (8, 64, 28, 28), 128, "product, channels last"),
        ("input_gradient", ONE._replace(stride=(2, 2)), (8, 64, 28, 28), 128, "product, channels last"),
        ("forward", PLAIN._replace(groups=64), (8, 64, 28, 28), 64, "depthwise, channels last"),
    ],
)
def test_the_choice_for_bfloat16_that_the_processor_multiplies(
    part: str, windows: Windows, shape: tuple[int, ...], outputs: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(cpu_features, "halves_vectors", lambda: False)
    monkeypatch.setattr(onednn, "is_there", lambda _: False)  # it may end the process where it has no bfloat16
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: False)
    call, *operands = _call(part, windows, shape, outputs, jax.numpy.bfloat16)
    found = conv_choice.ruled(call, *operands, follows=True)
    assert found.computes_as(possible(call, *operands)[chosen], call)


PATCH, VOLUME = Windows((4, 4), (4, 4), (0, 0), (1, 1), 1), Windows((3,) * 3, (1,) * 3, (1,) * 3, (1,) * 3, 1)
LARGE = Windows((7, 7), (1, 1), (3, 3), (1, 1), 64)


@pytest.mark.parametrize(
    ("part", "windows", "shape", "outputs", "follows", "chosen"),
    [
        ("forward", PLAIN, (8, 64, 28, 28), 64, True, "onednn, channels last"),
        ("forward", PLAIN, (8, 3, 64, 64), 64, True, "onednn, channels last"),
        ("forward", PLAIN, (8, 3, 64, 64), 64, False, "patches"),
        ("forward", PLAIN, (8, 64, 28, 28), 64, False, "onednn, channels last"),
        ("input_gradient", PLAIN, (8, 64, 28, 28), 64, True, "onednn, channels last"),
        ("input_gradient", STRIDED, (8, 64, 28, 28), 64, True, "direct, channels last"),
        ("weight_gradient", PLAIN, (8, 64, 28, 28), 64, True, "onednn, channels last"),
        ("weight_gradient", PLAIN, (8, 64, 7, 7), 64, True, "rows, channels last"),
        ("weight_gradient", PLAIN, (1, 64, 56, 56), 64, True, "rows, channels last"),
        ("weight_gradient", STRIDED, (8, 64, 28, 28), 64, True, "rows, channels last"),
        ("forward", STRIDED, (8, 64, 56, 56), 64, True, "onednn, channels last"),
        ("forward", PLAIN, (1, 512, 7, 7), 512, True, "patches"),
        ("forward", PLAIN, (1, 8, 9, 9), 8, True, "blocks, channels last"),
        ("forward", ONE, (8, 64, 28, 28), 128, True, "product, channels last"),
        ("forward", PATCH, (8, 64, 28, 28), 128, True, "product, channels last"),
        ("input_gradient", PATCH, (8, 64, 28, 28), 128, True, "product, channels last"),
        ("weight_gradient", PATCH, (8, 64, 28, 28), 128, True, "product, channels last"),
        ("forward", PLAIN._replace(groups=64), (8, 64, 28, 28), 64, True, "onednn, channels last"),
        ("forward", PLAIN._replace(groups=64), (8, 64, 28, 28), 64, False, "taps"),
        ("forward", LARGE, (8, 64, 28, 28), 64, False, "onednn, channels last"),
        ("forward", PLAIN._replace(groups=8), (8, 64, 28, 28), 64, False, "onednn, channels last"),
        ("forward", VOLUME, (2, 16, 16, 16, 16), 16, False, "onednn, channels last"),
    ],
)
def test_the_choice_where_a_library_may_be_called(
    part: str,
    windows: Windows,
    shape: tuple[int, ...],
    outputs: int,
    follows: bool,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(onednn, "is_there", lambda _: True)
    call, *operands = _call(part, windows, shape, outputs, jax.numpy.bfloat16)

    def found() -> Way:
        return conv_choice.ruled(call, *operands, follows=True) if follows else conv_choice.ruled_first(call, *operands)

    with onednn.calling(is_allowed=True):
        assert found().computes_as(possible(call, *operands)[chosen], call)
    assert found() != conv_choice.BY_LIBRARY


@pytest.mark.parametrize(
    ("part", "windows", "shape", "outputs", "follows", "is_chosen"),
    [
        ("forward", PLAIN._replace(groups=6), (1, 144, 28, 28), 144, True, True),
        ("forward", PLAIN._replace(groups=6), (1, 144, 28, 28), 144, False, True),
        ("input_gradient", PLAIN._replace(groups=6), (1, 144, 28, 28), 144, True, True),
        ("weight_gradient", PLAIN._replace(groups=6), (1, 144, 28, 28), 144, True, False),
        ("forward", PLAIN._replace(groups=32), (1, 128, 28, 28), 128, True, False),  # four channels each
        ("forward", PLAIN._replace(groups=64), (8, 64, 28, 28), 64, True, False),
        ("forward", PLAIN, (8, 64, 28, 28), 64, True, False),
        ("forward", ONE._replace(groups=2), (8, 64, 28, 28), 64, True, False),
        ("forward", VOLUME, (2, 16, 16, 16, 16), 16, False, True),
        ("forward", VOLUME, (2, 64, 16, 16, 16), 64, False, False),
        ("input_gradient", VOLUME, (2, 16, 16, 16, 16), 16, True, True),
    ],
)
def test_the_choice_for_float32_where_a_library_may_be_called(
    part: str, windows: Windows, shape: tuple[int, ...], outputs: int, follows: bool, is_chosen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(onednn, "is_there", lambda _: True)
    call, *operands = _call(part, windows, shape, outputs, np.float32)
    for is_allowed, is_new in ((True, True), (True, False), (False, True)):
        monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda is_new=is_new: is_new)
        with onednn.calling(is_allowed):
            way = (
                conv_choice.ruled(call, *operands, follows=True)
                if follows
                else conv_choice.ruled_first(call, *operands)
            )
        assert (way.lowering in (ONEDNN, ONEDNN_FIRST)) == (is_chosen and is_allowed and is_new)


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
