"""`torch.autocast("jax")`, by CUDA's policies."""

from __future__ import annotations

import copy

import jax
import pytest
import torch
from torch import nn

import jaten_ops
from jaten_ops.device import autocast


def test_tables_name_operators_of_this_torch() -> None:
    assert (autocast.LOWER | autocast.WIDEST | autocast.DTYPE_GIVEN | autocast.REFUSED.keys()) <= set(
        autocast.autocast_operators()
    )


def test_policies() -> None:
    x = torch.randn(4, 4, device="jax")
    half = x.bfloat16()
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert (x @ x).dtype == nn.functional.linear(x, x).dtype == torch.bfloat16
        assert torch.softmax(half, -1).dtype == half.sum().dtype == half.exp().dtype == torch.float32
        assert torch.log_softmax(half, -1, None).dtype == torch.float32
        assert torch.log_softmax(half, -1, torch.bfloat16).dtype == torch.bfloat16  # as cross_entropy calls it
        assert nn.functional.cross_entropy(half, torch.arange(4, device="jax")).dtype == torch.float32
        assert torch.dot(half[0], x[0]).dtype == torch.float32 and torch.dot(half[0], half[0]).dtype == torch.bfloat16
        assert (half + half).dtype == torch.bfloat16 and (x.double() @ x.double()).dtype == torch.float64
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.functional.binary_cross_entropy(x.sigmoid(), x.sigmoid())
        with torch.autocast("jax", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


WIDEST = {
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
    "dot": torch.dot,
    "vdot": torch.vdot,
    "atan2": torch.atan2,
}


@pytest.mark.parametrize("name", WIDEST)
def test_the_other_half_precision_is_refused(name: str) -> None:
    one, half, single = (torch.ones(3, dtype=d, device="jax") for d in (torch.bfloat16, torch.float16, torch.float32))
    with torch.autocast("jax", dtype=torch.float16):
        assert WIDEST[name](half, half).dtype == torch.float16
        assert WIDEST[name](half, single).dtype == WIDEST[name](single, one).dtype == torch.float32
        for other in (one, half, single):
            with pytest.raises(RuntimeError, match=r"Unexpected floating ScalarType.*bfloat16.*float16"):
                WIDEST[name](one, other)


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.LayerNorm(4), nn.Conv1d(4, 2, 3), nn.Bilinear(4, 4, 2)])
def test_modules_that_are_constant_in_jax_functions(layer: nn.Module) -> None:
    x = torch.randn(4, 4)
    on_device = copy.deepcopy(layer).to("jax")

    def call(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        with torch.autocast("jax", dtype=torch.bfloat16):
            return layer(x, x) if isinstance(layer, nn.Bilinear) else layer(x)

    found = jax.jit(jaten_ops.as_jax(lambda x: call(x, layer)))(x.numpy())
    expected = call(x.to("jax"), on_device)
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    torch.testing.assert_close(torch.tensor(found.astype("float32").tolist()), expected.detach().float().cpu())


def test_operands_on_two_devices_are_refused() -> None:
    with torch.autocast("jax", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, 2, device="jax") @ torch.ones(2, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_training_step_with_a_scaler(compiled: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = nn.Linear(4, 3).to("jax"), torch.randn(8, 4, device="jax")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("jax")
    run = torch.compile(model, backend="jaten") if compiled else model
    before = model.weight.detach().clone()
    with torch.autocast("jax", dtype=torch.float16):
        loss = run(x).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert loss.dtype == torch.float32 and model.weight.grad.dtype == torch.float32
    assert not torch.equal(model.weight, before)
    model.weight.grad.fill_(torch.inf)
    kept, scale = model.weight.detach().clone(), scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, kept) and scaler.get_scale() < scale
