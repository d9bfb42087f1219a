"""Fake quantization and its gradients, against ATen's CPU kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization import FusedMovingAvgObsFakeQuantize, get_default_qat_qconfig, prepare_qat

from ..harness.beside import Call, assert_same_gradients, assert_same_outcome

nan, inf = math.nan, math.inf


def t(*values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * 3
x[3:] = torch.tensor([[inf, -inf, nan, 0.5], [1.5, 2.5, -0.5, 1e10]])
grad = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
scales, zeros = t(0.1, 0.2, 0.3, 0.4, 0.5), t(0, 1, 2, 3, 4, dtype=torch.int32)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

TENSOR: dict[str, Call] = {
    "zero point outside": lambda ops: ops.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 11, 0, 10),
    "empty range": lambda ops: ops.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, 5, 2),
    "no scale": lambda ops: ops.fake_quantize_per_tensor_affine_cachemask(x, 0.0, 3, 0, 10),
    "integers": lambda ops: ops.fake_quantize_per_tensor_affine_cachemask(x.long(), 0.1, 3, 0, 10),
    "tensors": lambda ops: ops._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, t(0.1), torch.tensor(3.7), t(1), 0, 10
    ),
    "tensors, zero point outside": lambda ops: ops._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, t(0.1), t(30), t(2), 0, 10
    ),
    "tensors, off": lambda ops: ops._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, t(0.1).double(), t(3), t(0), 0, 10
    ),
    "tensors of two": lambda ops: ops._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, t(0.1, 0.2), t(3), t(1), 0, 10
    ),
    "learnable": lambda ops: ops._fake_quantize_learnable_per_tensor_affine(x, t(0.1), t(3.5), 0, 10),
    "learnable, outside": lambda ops: ops._fake_quantize_learnable_per_tensor_affine(x, t(0.1), t(-3.5), 0, 10, 0.5),
    "learnable, NaN": lambda ops: ops._fake_quantize_learnable_per_tensor_affine(x, t(0.1), t(nan), 0, 10),
    "learnable, 0-d": lambda ops: ops._fake_quantize_learnable_per_tensor_affine(x, t(0.1)[0], t(3.5)[0], 0, 10),
}

CHANNEL: dict[str, Call] = {
    "another axis": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x.t(), scales, zeros, 1, 0, 10),
    "float zeros": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales, zeros + 0.3, 0, 0, 10),
    "half zeros": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales, zeros.half() + 0.3, 0, 0, 10),
    "double, float zeros": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(
        x.double(), scales, zeros + 0.5, 0, 0, 10
    ),
    "double scales": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales.double(), zeros, 0, 0, 10),
    "long zeros": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales, zeros.long(), 0, 0, 10),
    "zeros outside": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales, zeros + 10, 0, 0, 10),
    "too few": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales[:4], zeros[:4], 0, 0, 10),
    "no axis": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales, zeros, 2, 0, 10),
    "negative axis": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales, zeros, -2, 0, 10),
    "2-d": lambda ops: ops.fake_quantize_per_channel_affine_cachemask(x, scales[None], zeros, 0, 0, 10),
    "learnable": lambda ops: ops._fake_quantize_learnable_per_channel_affine(x, scales, zeros + 8.5, 0, 0, 10),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    y = x.to(dtype)
    overload = "fake_quantize_per_tensor_affine_cachemask"
    assert_same_outcome(overload, lambda ops: ops.fake_quantize_per_tensor_affine_cachemask(y, 0.1, 3, 0, 10))
    overload = "fake_quantize_per_channel_affine_cachemask"
    assert_same_outcome(
        overload, lambda ops: ops.fake_quantize_per_channel_affine_cachemask(y, scales, zeros, 0, 0, 10)
    )


@pytest.mark.parametrize("name", TENSOR)
def test_per_tensor(name: str) -> None:
    assert_same_outcome("fake_quantize_per_tensor_affine_cachemask", TENSOR[name])


@pytest.mark.parametrize("name", CHANNEL)
def test_per_channel(name: str) -> None:
    assert_same_outcome("fake_quantize_per_channel_affine_cachemask", CHANNEL[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("zero_point", [3.6, 30.6])
def test_learnable_backward(dtype: torch.dtype, zero_point: float) -> None:
    y, g, one, zero = (v.to(dtype) for v in (x, grad, t(1.0), t(zero_point)))
    assert_same_outcome(
        "_fake_quantize_learnable_per_tensor_affine_backward",
        lambda ops: ops._fake_quantize_learnable_per_tensor_affine_backward(g, y, one, zero, 0, 10, 0.3),
    )
    steps, points = scales.to(dtype), (zeros + zero_point / 4).to(dtype)
    assert_same_outcome(
        "_fake_quantize_learnable_per_channel_affine_backward",
        lambda ops: ops._fake_quantize_learnable_per_channel_affine_backward(
            g.t(), y.t(), steps, points, 1, -3, 10, 0.5
        ),
    )


def test_learnable_backward_of_nothing() -> None:
    assert_same_outcome(
        "_fake_quantize_learnable_per_channel_affine_backward",
        lambda ops: ops._fake_quantize_learnable_per_channel_affine_backward(
            grad[:, :0], x[:, :0], scales, zeros.float(), 0, 0, 10
        ),
    )


GRADIENTS: dict[str, Any] = {
    "tensor": lambda ops, y, s, z: ops.fake_quantize_per_tensor_affine_cachemask(y + 0 * s[0] * z[0], 0.1, 3, 0, 10),
    "channel": lambda ops, y, s, z: ops.fake_quantize_per_channel_affine_cachemask(
        y + 0 * s[0] * z[0], scales[:3], zeros[:3], 0, 0, 10
    ),
    "learnable tensor": lambda ops, y, s, z: ops._fake_quantize_learnable_per_tensor_affine(y, s, z, 0, 10, 0.5),
    "learnable channel": lambda ops, y, s, z: ops._fake_quantize_learnable_per_channel_affine(y, s, z, 0, 0, 10, 0.5),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    size = 3 if "channel" in name else 1
    assert_same_gradients(GRADIENTS[name], x[:3], scales[:size], zeros[:size] + 0.2)


def _observed(low: torch.Tensor, high: torch.Tensor, range_: tuple[int, int], symmetric: bool, **on: int) -> Call:
    def call(ops: Any) -> Any:
        n = low.numel()
        y = torch.randn(max(n, 3), 2, generator=torch.Generator().manual_seed(3))
        state = (low.clone(), high.clone(), torch.ones(n), torch.zeros(n, dtype=torch.int32))
        switches = (t(on.get("observe", 1)), t(on.get("quantize", 1)))
        return ops._fused_moving_avg_obs_fq_helper_functional(y, *switches, *state, 0.01, *range_, 0, n != 1, symmetric)

    return call


STATES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "one": ((-1.0,), (2.0,)),
    "new": ((inf,), (-inf,)),
    "rows": ((-1.0, -2.0, -3.0), (1.0, 2.0, inf)),
    "new rows": ((), ()),
}


# ATen leaves a new state uninitialized where it does not observe
OBSERVED = [
    (name, on) for name in STATES for on in ({}, {"observe": 0}, {"quantize": 0}) if "new" not in name or not on
]


@pytest.mark.parametrize(("name", "on"), OBSERVED, ids=str)
def test_observer(name: str, on: dict[str, int]) -> None:
    low, high = (torch.tensor(v) for v in STATES[name])
    assert_same_outcome("_fused_moving_avg_obs_fq_helper_functional", _observed(low, high, (0, 255), False, **on))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("range_", "symmetric"), [((0, 255), False), ((-128, 127), True), ((0, 15), True)])
def test_chosen_scale_and_zero_point(range_: tuple[int, int], symmetric: bool) -> None:
    """Extrema of all magnitudes, down to those too small for a scale."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 200, generator=generator) * 10 ** (torch.rand(2, 200, generator=generator) * 12 - 9)
    call = _observed(torch.minimum(a, b), torch.maximum(a, b), range_, symmetric, observe=0)
    assert_same_outcome("_fused_moving_avg_obs_fq_helper_functional", call)


def test_module_compiled() -> None:
    y = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    eager, module = FusedMovingAvgObsFakeQuantize(), FusedMovingAvgObsFakeQuantize()
    expected, got = eager(y), torch.compile(module, backend="jaten")(y)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(dict(module.state_dict()), dict(eager.state_dict()))


@pytest.mark.exhaustive
def test_quantization_aware_training_on_the_device() -> None:
    """Statistics of each channel are empty before the first step, which gives them their sizes."""
    trained = []
    for device in ("cpu", "jax"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).train()
        model.qconfig = get_default_qat_qconfig("fbgemm")
        model = prepare_qat(model).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 32, device=device).view(2, 1, 4, 4)).square().sum().backward()
            optimizer.step()
        trained.append({name: value.cpu() for name, value in model.state_dict().items()})
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-4)
