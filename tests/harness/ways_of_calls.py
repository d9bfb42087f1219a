"""Ways in which a program calls and differentiates a function of tensors, to be compared with the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

Call = Callable[..., Tensor]


def made_of(sizes: Sequence[tuple[int, ...]], device: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Operands of some sizes, which require gradients: the same numbers in each call."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    return [x.to(dtype).to(device).requires_grad_() for x in made]


def loss(result: Tensor) -> Tensor:
    return result.sin().sum()


def backward(call: Call, operands: list[Tensor]) -> list[Any]:
    result = call(*operands)
    loss(result).backward()
    return [result, *[x.grad for x in operands]]


def of_expanded(call: Call, operands: list[Tensor]) -> list[Any]:
    return [*torch.autograd.grad(call(*operands).sum(), operands)]


def second(call: Call, operands: list[Tensor]) -> list[Any]:
    first = torch.autograd.grad(loss(call(*operands)), operands, create_graph=True)
    return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), operands)]


def one_by_one(call: Call, operands: list[Tensor]) -> list[Any]:
    """The gradient of each operand, with the others constant."""
    found = []
    for i, operand in enumerate(operands):
        others = [x if x is operand else x.detach() for x in operands]
        found += torch.autograd.grad(loss(call(*others)), operands[i])
    return found


def batched(call: Call, operands: list[Tensor]) -> list[Any]:
    result = call(*operands)
    grads = torch.stack([torch.ones_like(result), result.detach()])
    return [*torch.autograd.grad(result, operands, grads, is_grads_batched=True)]


def forward_mode(call: Call, operands: list[Tensor]) -> list[Any]:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, x.detach().cos()) for x in operands]
        return [*forward_ad.unpack_dual(call(*duals))]


def func_grad(call: Call, operands: list[Tensor]) -> list[Any]:
    at = tuple(range(len(operands)))
    return [*torch.func.grad(lambda *xs: loss(call(*xs)), at)(*[x.detach() for x in operands])]


def func_vmap(call: Call, operands: list[Tensor]) -> list[Any]:
    found = torch.func.vmap(call)(*[torch.stack([x, x.sin()]) for x in operands])
    return [found, *torch.autograd.grad(loss(found), operands)]


def func_hessian(call: Call, operands: list[Tensor]) -> list[Any]:
    return [torch.func.hessian(lambda x: loss(call(x, *operands[1:])))(operands[0].detach())]


def jacobian(call: Call, operands: list[Tensor]) -> list[Any]:
    return [*torch.autograd.functional.jacobian(call, tuple(operands), vectorize=True)]


def checkpointed(call: Call, operands: list[Tensor]) -> list[Any]:
    result = checkpoint(call, *operands, use_reentrant=False)
    return [result, *torch.autograd.grad(loss(result), operands)]


def kept_elsewhere(call: Call, operands: list[Tensor]) -> list[Any]:
    with torch.autograd.graph.save_on_cpu():
        result = call(*operands)
    return [result, *torch.autograd.grad(loss(result), operands)]


def no_grad(call: Call, operands: list[Tensor]) -> list[Any]:
    with torch.no_grad():
        return [call(*operands)]


def inference(call: Call, operands: list[Tensor]) -> list[Any]:
    with torch.inference_mode():
        return [call(*operands).clone()]


def autocast(call: Call, operands: list[Tensor]) -> list[Any]:
    with torch.autocast(operands[0].device.type, torch.bfloat16):
        result = call(*[x.float() for x in operands])
    return [result, *torch.autograd.grad(loss(result), operands)]


def compiled(call: Call, operands: list[Tensor]) -> list[Any]:
    return backward(torch.compile(call, backend="jaten", fullgraph=True), operands)


LAID_OUT = [backward, one_by_one, no_grad, inference, autocast, compiled]
"""Ways whose results lie in memory as ATen's do. In others rules of transforms decide, and the order of sums."""
WAYS = [
    backward, of_expanded, second, one_by_one, batched, forward_mode, func_grad, func_vmap, func_hessian,
    jacobian, checkpointed, kept_elsewhere, no_grad, inference, autocast, compiled,
]  # fmt: skip


def assert_alike(
    found: Sequence[Any], expected: Sequence[Any], *, check_stride: bool = True, **tolerances: Any
) -> None:
    for got, want in zip(found, expected, strict=True):
        assert (got is None) is (want is None)
        if want is not None:
            assert got.requires_grad is want.requires_grad
            in_order = check_stride and want.numel() > 0
            torch.testing.assert_close(got.detach().cpu(), want.detach(), check_stride=in_order, **tolerances)
