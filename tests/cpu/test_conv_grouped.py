"""Convolutions of groups and of volumes with channels last: torch's values, infinities and NaNs where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaten_ops.cpu import conv_choice, conv_grouped, conv_volumes
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows
from jaten_ops.xla import cpu_features

from ..harness.convolutions import PARTS, convolved, parts_of
from ..harness.crossings import crossed


class Case(NamedTuple):
    """A convolution; each setting has a value for each spatial dimension."""

    channels: int
    outputs: int
    groups: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    batch: int = 2

    @property
    def windows(self) -> Windows:
        return Windows(self.kernel, self.stride, self.padding, self.dilation, self.groups)


def _flat(channels: int, outputs: int, groups: int, sizes: tuple[int, int], **changed: Any) -> Case:
    plain = Case(channels, outputs, groups, sizes, (3, 3), (1, 1), (1, 1), (1, 1))
    return plain._replace(**changed)


def _deep(channels: int, outputs: int, sizes: tuple[int, int, int], **changed: Any) -> Case:
    plain = Case(channels, outputs, 1, sizes, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    return plain._replace(**changed)


SUMS = {
    "of four channels": _flat(16, 16, 4, (9, 10)),
    "of eight channels": _flat(32, 32, 4, (7, 8)),
    "of few channels and more outputs": _flat(16, 32, 4, (6, 7)),
    "in several parts": _flat(64, 64, 8, (5, 6)),
    "with strides": _flat(16, 16, 2, (11, 8), stride=(2, 3), padding=(1, 2)),
    "with strides larger than the kernel": _flat(8, 8, 2, (9, 9), stride=(3, 4), padding=(0, 1), kernel=(2, 3)),
    "with dilation": _flat(16, 16, 2, (11, 9), dilation=(2, 3), padding=(2, 1)),
    "with strides and dilation": _flat(16, 16, 2, (13, 12), dilation=(2, 3), stride=(2, 2), padding=(0, 4)),
    "without padding": _flat(8, 8, 2, (5, 70), padding=(0, 0)),
    "of a kernel with one element": _flat(16, 16, 2, (5, 6), kernel=(1, 1), padding=(0, 0)),
    "of a large kernel": _flat(8, 8, 2, (4, 5), kernel=(5, 5), padding=(2, 3)),
    "of rows longer than a stretch": _flat(8, 8, 2, (5, 80)),
    "of a sequence": Case(16, 16, 2, (21,), (4,), (2,), (3,), (1,)),
}
ONE_BY_ONE = {
    "of sixteen channels": _flat(64, 64, 4, (9, 10)),
    "of many": _flat(160, 160, 10, (6, 7)),
    "of an uneven number of channels": _flat(36, 60, 3, (8, 7)),
    "of many channels, with strides": _flat(64, 32, 2, (11, 8), stride=(2, 3), padding=(1, 2)),
    "of many channels, with dilation": _flat(32, 64, 2, (11, 13), dilation=(2, 3), padding=(2, 1)),
    "of a sequence, with strides": Case(48, 48, 3, (21,), (7,), (2,), (3,), (1,)),
}
VOLUMES = {
    "of one channel": _deep(1, 8, (6, 7, 8)),
    "of few channels": _deep(3, 12, (5, 6, 7)),
    "of few channels and outputs": _deep(2, 3, (5, 6, 7)),
    "of channels": _deep(8, 12, (5, 6, 7)),
    "with strides and dilation": _deep(6, 10, (9, 6, 8), dilation=(2, 1, 2), stride=(3, 1, 2)),
    "with much padding": _deep(5, 9, (4, 6, 8), kernel=(2, 1, 3), padding=(3, 2, 1)),
    "of a kernel in depth alone": _deep(6, 10, (7, 6, 8), kernel=(3, 1, 1), padding=(1, 0, 0)),
    "of a flat kernel": _deep(6, 10, (7, 6, 8), kernel=(1, 3, 3), padding=(0, 1, 1)),
}
CASES = {
    f"{way} {name}": case
    for way, of in [("sums", SUMS), ("groups", ONE_BY_ONE), ("volumes", VOLUMES)]
    for name, case in of.items()
}
WAYS: dict[str, dict[str, Callable[..., jax.Array]]] = {
    "sums": {part: getattr(conv_grouped, part) for part in PARTS},
    "groups": dict(
        zip(
            PARTS,
            (conv_grouped.one_by_one, conv_grouped.gradient_one_by_one, conv_grouped.weight_one_by_one),
            strict=True,
        )
    ),
    "volumes": {part: conv_choice.VOLUMES.of(part) for part in PARTS},
}


def _operands(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    image = torch.randn(case.batch, case.channels, *case.sizes, dtype=torch.float64)
    weight = torch.randn(case.outputs, case.channels // case.groups, *case.kernel, dtype=torch.float64)
    return image, weight


def _computed(name: str, part: str, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor) -> np.ndarray:
    """A part as it is computed with channels last, in the program's order."""
    windows = CASES[name].windows
    *taken, left = conv_choice.orders(ConvCall(part, windows, ()), a.dim())
    shape = tuple(result.shape[d] for d in left)
    with jax.enable_x64(True):
        operands = [jnp.asarray(t.detach().numpy()).transpose(order) for t, order in zip((a, b), taken, strict=True)]
        found = jax.jit(lambda x, y: WAYS[name.split()[0]][part](x, y, windows, shape))(*operands)
        return np.asarray(found.transpose(np.argsort(left)))


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "part"), crossed(CASES, PARTS))
def test_parts(name: str, part: str) -> None:
    case = CASES[name]
    a, b, expected = parts_of(*_operands(case), case.windows)[part]
    np.testing.assert_allclose(_computed(name, part, a, b, expected), expected.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        *("sums of four channels", "sums with strides and dilation", "sums of a sequence"),
        *("groups of sixteen channels", "groups of many channels, with strides"),
        *("volumes of channels", "volumes of few channels", "volumes with strides and dilation"),
    ],
)
def test_what_is_not_finite_stays_in_its_group_and_under_its_windows(name: str) -> None:
    case = CASES[name]
    image, weight = _operands(case)
    image[0, 0, 3], image[-1, -1, 2] = float("inf"), float("nan")
    expected = convolved(image, weight, case.windows)
    assert not expected.isfinite().all()
    found = _computed(name, "forward", image, weight, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


FOLLOWS, LEADS, NEITHER = "where images come in that order", "by itself", "not at all"


@pytest.mark.parametrize(
    ("case", "part", "chosen"),
    [
        (_flat(64, 64, 8, (16, 16)), "forward", LEADS),
        (_flat(64, 64, 8, (16, 16)), "weight_gradient", LEADS),
        (_flat(128, 128, 32, (56, 56)), "forward", FOLLOWS),
        (_flat(128, 128, 32, (56, 56)), "weight_gradient", NEITHER),
        (_flat(32, 32, 8, (28, 28), kernel=(5, 5)), "weight_gradient", LEADS),
        (_flat(240, 240, 3, (28, 28), kernel=(1, 1), padding=(0, 0)), "forward", FOLLOWS),
        (_flat(512, 512, 32, (14, 14)), "input_gradient", LEADS),
        (_flat(512, 512, 32, (14, 14), batch=1), "input_gradient", LEADS),
        (_flat(512, 512, 32, (14, 14), batch=1), "weight_gradient", FOLLOWS),
        (_flat(512, 512, 32, (7, 7), batch=1), "input_gradient", FOLLOWS),
        (_flat(512, 512, 32, (14, 14), batch=0), "forward", NEITHER),
        (_flat(64, 64, 8, (14, 14), batch=0), "forward", NEITHER),
        (_flat(6, 6, 3, (14, 14), kernel=(5, 5)), "forward", NEITHER),
        (_deep(16, 32, (8, 16, 16)), "forward", LEADS),
        (_deep(1, 16, (8, 16, 16)), "weight_gradient", LEADS),
        (_deep(1, 16, (8, 16, 16)), "input_gradient", NEITHER),
        (_deep(8, 16, (8, 16, 16), kernel=(2, 2, 2), stride=(2, 2, 2), padding=(0, 0, 0)), "forward", NEITHER),
    ],
)
def test_the_choice(case: Case, part: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: False)
    given = [tuple(t.shape) for t in _operands(case)]
    out = (case.batch, case.outputs, *case.windows.positions(case.sizes))
    shapes = {"forward": given, "input_gradient": [out, given[1]], "weight_gradient": [given[0], out]}[part]
    result = {"forward": (), "input_gradient": given[0], "weight_gradient": given[1]}[part]
    operands = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    call = ConvCall(part, case.windows, result)
    found = [conv_choice.lowering(call, *operands, follows=follows) is not None for follows in (True, False)]
    assert found == {FOLLOWS: [True, False], LEADS: [True, True], NEITHER: [False, False]}[chosen]


def test_few_channels_are_sums() -> None:
    assert conv_volumes.are_sums_of_volumes("forward", (3, 3, 3), 1, 16)
    assert conv_volumes.are_sums_of_volumes("input_gradient", (3, 3, 3), 16, 1)
    assert not conv_volumes.are_sums_of_volumes("weight_gradient", (3, 3, 3), 1, 16)
    assert not conv_volumes.are_sums_of_volumes("forward", (3, 3, 3), 16, 32)
    assert conv_grouped.are_sums("forward", (3, 3), 8, 8)
    assert not conv_grouped.are_sums("forward", (3, 3), 16, 16)
    assert not conv_grouped.are_sums("forward", (3, 3), 8, 6)
