"""The ways to compute a convolution and its gradients compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.cpu import conv_choice
from jaten_ops.cpu.conv_lowerings import Orders, Way, orders, possible, program_orders, usual_orders
from jaten_ops.kernel_base import conv_parts
from jaten_ops.kernel_base.conv_parts import ConvCall, Windows
from jaten_ops.xla import cpu_features, onednn
from jaten_ops.xla.x64 import Enabled

PLAIN = Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)
# windows, the input's shape, the number of output channels
CASES = {
    "plain": (PLAIN, (2, 3, 9, 10), 4),
    "images of many positions": (PLAIN, (2, 3, 9, 8), 4),
    "images of few positions": (PLAIN, (3, 5, 4, 4), 2),
    "stride, padding and dilation": (Windows((3, 2), (2, 3), (2, 0), (2, 1), 1), (2, 3, 11, 9), 4),
    "many positions, stride, padding and dilation": (Windows((3, 2), (2, 3), (2, 0), (2, 1), 1), (2, 3, 21, 29), 4),
    "many positions, stride and groups": (Windows((3, 3), (2, 1), (1, 1), (1, 1), 2), (1, 4, 17, 9), 6),
    "side by side": (Windows((2, 4), (2, 4), (0, 0), (1, 1), 1), (2, 3, 7, 9), 5),
    "one element": (Windows((1,), (1,), (0,), (1,), 1), (2, 3, 70), 5),
    "one element, strides": (Windows((1, 1), (2, 2), (0, 0), (1, 1), 1), (2, 3, 7, 7), 5),
    "groups": (PLAIN._replace(groups=2), (2, 8, 8, 8), 8),
    "a kernel for each channel, twice as many outputs": (PLAIN._replace(groups=3), (2, 3, 8, 8), 6),
    "a kernel for each channel": (PLAIN._replace(groups=3), (2, 3, 8, 8), 3),
    "two kernels for each channel": (Windows((3, 3), (2, 2), (2, 0), (1, 2), 3), (2, 3, 8, 9), 6),
    "a window larger than the input": (Windows((5,), (1,), (3,), (1,), 1), (2, 3, 2), 4),
    "three dimensions": (Windows((2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2), 1), (1, 2, 5, 6, 5), 3),
    "volumes": (Windows((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1), (2, 4, 5, 6, 7), 6),
    "volumes, strides": (Windows((3, 2, 3), (2, 2, 1), (2, 0, 1), (2, 1, 2), 1), (2, 3, 7, 6, 8), 4),
    "volumes, groups": (Windows((2, 2, 2), (1, 1, 1), (0, 1, 0), (1, 1, 1), 2), (1, 4, 4, 4, 4), 6),
    "more padding than window": (Windows((1, 3), (1, 1), (2, 2), (1, 2), 2), (1, 4, 9, 8), 4),
    "elements at the end under no window": (Windows((2, 2), (3, 3), (0, 0), (1, 1), 1), (1, 2, 7, 7), 3),
}

# which parts oneDNN has no kernel of its own for, and what it computes instead may not return with several threads
NOT_BY_ONEDNN = {"a window larger than the input": {0, 1, 2}, "three dimensions": {2}, "more padding than window": {0}}


def _calls(case: str) -> list[tuple[ConvCall, np.ndarray, np.ndarray]]:
    """The three parts of a convolution, with their operands."""
    windows, shape, outputs = CASES[case]
    draw = np.random.default_rng(0).standard_normal
    x, w = draw(shape), draw((outputs, shape[1] // windows.groups, *windows.kernel))
    grad = draw((shape[0], outputs, *windows.positions(shape[2:])))
    return [
        (ConvCall("forward", windows, ()), x, w),
        (ConvCall("input_gradient", windows, x.shape), grad, w),
        (ConvCall("weight_gradient", windows, w.shape), x, grad),
    ]


@pytest.mark.sampled(96)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("number", range(3))
def test_all_compute_the_same(case: str, number: int) -> None:
    call, a, b = _calls(case)[number]
    ways = possible(call, a, b)
    if len(call.windows.kernel) == 3 and call.windows.groups == 1:
        ways |= {"depth": Way(conv_choice.DEPTH, last=False), "volumes": Way(conv_choice.VOLUMES, last=True)}
    with Enabled():
        for name, way in ways.items():
            given = orders(call, a.ndim) if way.last else program_orders(a.ndim)
            _check(way, given, call, a, b, name)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("number", range(3))
def test_onednn_computes_the_same(case: str, number: int) -> None:
    assert onednn.is_there()
    call, *operands = _calls(case)[number]
    a, b = (x.astype(np.float32) for x in operands)
    names, ways = {"onednn", "onednn, channels last"}, possible(call, a, b)
    groups, strides = call.windows.groups, call.windows.stride
    is_taken = {"forward": True, "input_gradient": max(strides) == 1, "weight_gradient": groups == 1}[call.part]
    is_taken = is_taken and number not in NOT_BY_ONEDNN.get(case, ())
    assert names & ways.keys() == (names if is_taken else set())
    for name in names & ways.keys():
        for given in (orders(call, a.ndim), program_orders(a.ndim)):
            _check(ways[name], given, call, a, b, name, tolerance=1e-5)  # sums of float32 in another order


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("is_short", [False, True], ids=["as it is", "with products of bfloat16"])
@pytest.mark.parametrize("is_wide", [False, True], ids=["rounded", "wide"])
def test_bfloat16_is_rounded_once(
    case: str, number: int, is_short: bool, is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every way that takes it, also where the processor multiplies it: terms are added up in float32.

    Results that stay wide are not rounded, but weights' gradients, which nothing is added to.
    """
    if is_short:
        monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda: True)
        monkeypatch.setattr(onednn, "is_there", lambda _: False)  # it may end the process where it has no bfloat16
    call, *operands = _calls(case)[number]
    call = call._replace(is_wide=is_wide and number < 2)
    a, b = (jnp.asarray(x, jnp.bfloat16) for x in operands)
    ways = possible(call, a, b)
    groups, strides = call.windows.groups, call.windows.stride
    takes_rows = groups == 1 and (number != 1 or max(strides) == 1)
    assert not is_short or any("rows" in name for name in ways) == takes_rows
    expected = np.asarray(conv_parts.compute(call, *(jnp.asarray(x, jnp.float32) for x in (a, b))))
    for name, way in ways.items():
        for given in (orders(call, a.ndim), program_orders(a.ndim)):
            run = jax.jit(way.run(call, a, b, given))
            found = run(a.transpose(given.first), b.transpose(given.second))
            assert found.dtype == call.dtype(a)
            wanted = expected.transpose(given.result)
            # half of the last place, and what sums of float32 in another order differ by
            rounding = 1e-5 if call.is_wide else 2**-8
            np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=rounding, atol=1e-4, err_msg=name)


def _check(
    way: Way, given: Orders, call: ConvCall, a: np.ndarray, b: np.ndarray, name: str = "", tolerance: float = 1e-11
) -> None:
    run = jax.jit(way.run(call, a, b, given))
    found = np.asarray(run(a.transpose(given.first), b.transpose(given.second)))
    expected = np.asarray(conv_parts.compute(call, a, b)).transpose(given.result)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["patches", "direct, channels last"])
@pytest.mark.parametrize("number", range(3))
def test_operands_in_other_orders_are_transposed(number: int, name: str) -> None:
    call, a, b = _calls("plain")[number]
    with Enabled():
        for given in (program_orders(a.ndim), usual_orders(call, a.ndim), orders(call, a.ndim)):
            _check(possible(call, a, b)[name], given, call, a, b)
