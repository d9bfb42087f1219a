"""Normalization in training: what is kept of it for the backward, and that nothing else changes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.utils.checkpoint import checkpoint

from jaten_ops.backend import capture

from ...harness.crossings import crossed
from ...harness.passes import golden, without


class Unmixed(nn.Module):
    """GroupNorm without weights, of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.group_norm(x * self.scale, 2).tanh()


def _convolved(norm: Callable[[], nn.Module], act: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm(), act(), nn.Conv2d(8, 8, 3), norm(), act(), nn.Conv2d(8, 2, 1))


_BATCH, _GROUP = functools.partial(nn.BatchNorm2d, 8), functools.partial(nn.GroupNorm, 4, 8)

# the model, its input, and the least factor by which less is kept
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "batch, hardtanh": (lambda: _convolved(_BATCH, nn.ReLU6), (4, 3, 16, 16), 1.5),
    "batch, relu": (lambda: _convolved(_BATCH, nn.ReLU), (4, 3, 16, 16), 1.3),
    "batch, without statistics": (
        lambda: _convolved(lambda: nn.BatchNorm2d(8, track_running_stats=False), nn.SiLU), (4, 3, 16, 16), 1.5,
    ),
    "batch, without weights": (
        lambda: _convolved(lambda: nn.BatchNorm2d(8, affine=False), nn.SiLU), (4, 3, 16, 16), 1.5,
    ),
    "batch, for inference": (lambda: _convolved(lambda: nn.BatchNorm2d(8).eval(), nn.SiLU), (4, 3, 16, 16), 1.0),
    "group": (lambda: _convolved(_GROUP, nn.SiLU), (4, 3, 16, 16), 1.5),
    "group, without weights": (Unmixed, (2, 4, 3, 4, 5), 1.0),
    "instance": (lambda: _convolved(lambda: nn.InstanceNorm2d(8, affine=True), nn.SiLU), (4, 3, 16, 16), 1.0),
    "rows": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 2)), (16, 6), 1.0),
    "no rows": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.SiLU()), (0, 3, 8, 8), 0.0),
}  # fmt: skip


def _kept(forward: torch.fx.GraphModule, results: int) -> int:
    """Bytes that are kept of what the forward graph computes."""
    (output,) = forward.graph.find_nodes(op="output")
    given = forward.graph.find_nodes(op="placeholder")
    values = [n.meta["val"] for n in output.args[0][results:] if n not in given]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "dtype"), crossed(CASES, [torch.float32, torch.float64, torch.bfloat16]))
def test_values_gradients_and_statistics(name: str, dtype: torch.dtype) -> None:
    make, shape, _ = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().to(dtype)
    x, other = torch.randn(shape, dtype=dtype), copy.deepcopy(model)
    weights = torch.randn_like(model(x), dtype=torch.float32)
    model.load_state_dict(other.state_dict())
    for m, run in ((model, torch.compile(model, backend="jaten")), (other, other)):
        (run(x) * weights).sum().backward()
        assert all(p.grad is not None for p in m.parameters())
    # half types are rounded between the layers in another order than ATen's
    close: Any = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        scale = max(1.0, 0.0 if q.grad is None or not q.numel() else float(q.grad.abs().max()))
        torch.testing.assert_close(p.grad / scale, q.grad / scale, **close)
    torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()), **close)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", CASES)
def test_less_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape, factor = CASES[name]
    torch._dynamo.reset()
    kept: list[int] = []
    partition = capture._partition

    def told(layouts: Any, joint: Any, inputs: Any, **options: Any) -> Any:
        forward, backward = partition(layouts, joint, inputs, **options)
        kept.append(_kept(forward, options["num_fwd_outputs"]))
        return forward, backward

    monkeypatch.setattr(capture, "_partition", told)
    monkeypatch.setenv("JATEN_CACHE", "0")
    model, x = make(), torch.randn(shape)
    torch.compile(model, backend="jaten")(x)
    monkeypatch.setattr(capture, "_has_images", lambda graph: False)
    torch._dynamo.reset()
    with without("recompute_norms"):
        torch.compile(model, backend="jaten")(x)
    less, more = kept
    assert less * factor <= more


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_checkpointed_layers(device: str) -> None:
    """The backward computes them again, when their running statistics have been written to."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(_convolved(_BATCH, nn.SiLU), nn.BatchNorm2d(2, momentum=None), nn.GroupNorm(2, 2)).to(device)
    other, x = copy.deepcopy(model), torch.randn(4, 3, 16, 16).to(device)

    def loss(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(m, x, use_reentrant=False).square().sum()

    for _ in range(2):
        torch.compile(loss, backend="jaten")(model, x).backward()
        loss(other, x).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        scale = max(1.0, float(q.grad.abs().max()))
        torch.testing.assert_close(p.grad / scale, q.grad / scale, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()), rtol=1e-4, atol=1e-4)


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_group_norm(self) -> None:
        got = golden(
            "recompute_norms", lambda x: torch.nn.functional.group_norm(x, 2), torch.ones(1, 4, 2, requires_grad=True)
        )
        self.assertExpectedInline(
            got,
            """\
--- joint
primals_1: float32[1, 4, 2]
tangents_1: float32[1, 4, 2]
native_group_norm = aten::native_group_norm(primals_1, None, None, 1, 4, 2, 2, 1e-05)
getitem: float32[1, 4, 2] = getitem(native_group_norm, 0)
getitem_1: float32[1, 2] = getitem(native_group_norm, 1)
getitem_2: float32[1, 2] = getitem(native_group_norm, 2)
detach: float32[1, 2] = aten::detach(getitem_1)
detach_1: float32[1, 2] = aten::detach(getitem_2)
detach_2: float32[1, 2] = aten::detach(detach)
detach_3: float32[1, 2] = aten::detach(detach_1)
native_group_norm_backward = aten::native_group_norm_backward(tangents_1, primals_1, detach_2, detach_3, None, 1, 4, 2, 2, [True, False, False])
getitem_3: float32[1, 4, 2] = getitem(native_group_norm_backward, 0)
return [getitem, getitem_3]

=>

primals_1: float32[1, 4, 2]
tangents_1: float32[1, 4, 2]
native_group_norm = aten::native_group_norm(primals_1, None, None, 1, 4, 2, 2, 1e-05)
getitem_6: float32[1, 2] = getitem(native_group_norm, 1)
getitem_7: float32[1, 2] = getitem(native_group_norm, 2)
view_default: float32[1, 2, 1] = aten::view(getitem_6, [1, 2, 1])
expand_default: float32[1, 2, 2] = aten::expand(view_default, [1, 2, 2])
clone_default: float32[1, 2, 2] = aten::clone(expand_default)
view_default_1: float32[1, 4, 1] = aten::view(clone_default, [1, 4, 1])
view_default_2: float32[1, 2, 1] = aten::view(getitem_7, [1, 2, 1])
expand_default_1: float32[1, 2, 2] = aten::expand(view_default_2, [1, 2, 2])
clone_default_1: float32[1, 2, 2] = aten::clone(expand_default_1)
view_default_3: float32[1, 4, 1] = aten::view(clone_default_1, [1, 4, 1])
sub_tensor: float32[1, 4, 2] = aten::sub.Tensor(primals_1, view_default_1)
mul_tensor: float32[1, 4, 2] = aten::mul.Tensor(sub_tensor, view_default_3)
detach: float32[1, 2] = aten::detach(getitem_6)
detach_1: float32[1, 2] = aten::detach(getitem_7)
detach_2: float32[1, 2] = aten::detach(detach)
detach_3: float32[1, 2] = aten::detach(detach_1)
native_group_norm_backward = aten::native_group_norm_backward(tangents_1, primals_1, detach_2, detach_3, None, 1, 4, 2, 2, [True, False, False])
getitem_3: float32[1, 4, 2] = getitem(native_group_norm_backward, 0)
return [mul_tensor, getitem_3]""",
        )
