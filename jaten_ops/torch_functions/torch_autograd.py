"""Derivatives of torch functions by torch's autograd, as torch functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jaten_ops.tensor.operand_values import is_traced
from jaten_ops.tensor.tensor import array_of, from_array

FlatFunction = Callable[[list[torch.Tensor]], list[torch.Tensor]]
_Tensors = list[torch.Tensor]

# JAX lets a function write to its arguments, which autograd refuses for leaves. A function may also differentiate with
# respect to its arguments, or register hooks, where JAX does not differentiate. These are torch's errors then.
_WRITES_TO_LEAF = "leaf Variable that requires grad"
_NEEDS_GRADIENT = ("doesn't require grad", "does not require grad")


def run_with_leaves(fn: FlatFunction, operands: _Tensors, wrt: Sequence[int] = ()) -> tuple[_Tensors, _Tensors]:
    """A function's results; and the operands `wrt`, which require gradients.

    They are leaves, or clones of leaves if the function writes to one. The function is run again with clones, or with
    gradients for all operands, if torch raises an error that asks for it: functions that need leaves are as frequent.
    """
    arrays = [None if is_traced(x) else array_of(x) for x in operands]
    clones = needs_all = False
    while True:
        given = [x if x.requires_grad else _fresh(x, a) for x, a in zip(operands, arrays, strict=True)]
        for i, x in enumerate(given):
            if i in wrt or (needs_all and is_continuous(x)):
                x.requires_grad_()
        try:
            return fn([x.clone() if clones and x.requires_grad else x for x in given]), [given[i] for i in wrt]
        except RuntimeError as error:
            if not clones and _WRITES_TO_LEAF in str(error):
                clones = True
            elif not needs_all and any(words in str(error) for words in _NEEDS_GRADIENT):
                needs_all = True
            else:
                raise


def _fresh(tensor: torch.Tensor, array: Any) -> torch.Tensor:
    """A tensor with its values, which are an array, or None while torch captures a program, and memory of its own."""
    return tensor.detach().clone() if array is None else from_array(array)


def is_continuous(tensor: torch.Tensor) -> bool:
    """True if a tensor's dtype can have gradients."""
    return tensor.is_floating_point() or tensor.is_complex()


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """The conjugates: torch's gradients are the conjugates of JAX's."""
    return tensor.conj_physical() if tensor.is_complex() else tensor


def gradients(
    results: Sequence[torch.Tensor],
    along: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    *,
    create_graph: bool = False,
) -> _Tensors:
    """The gradients of leaves; zeros if a result does not depend on one, or the program has detached it."""
    pairs = [(r, a) for r, a in zip(results, along, strict=True) if r.requires_grad]
    reached = [x for x in leaves if x.requires_grad]
    found: list[torch.Tensor | None] = [None] * len(reached)
    if pairs and reached:
        by, weights = zip(*pairs, strict=True)
        found = list(torch.autograd.grad(by, reached, weights, create_graph=create_graph, allow_unused=True))
    each = iter(found)
    taken = [next(each) if x.requires_grad else None for x in leaves]
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, taken, strict=True)]


def pulled_back(fn: FlatFunction, wrt: tuple[int, ...], by: tuple[int, ...]) -> FlatFunction:
    """A function from operands, then JAX's gradients of the results `by`, to gradients of the operands `wrt`."""

    def pull(operands: _Tensors) -> _Tensors:
        count = len(operands) - len(by)
        results, leaves = run_with_leaves(fn, operands[:count], wrt)
        along = [conjugated(c) for c in operands[count:]]
        found = gradients([results[i] for i in by], along, leaves, create_graph=True)
        return [conjugated(g) for g in found]

    return pull


def pushed_forward(fn: FlatFunction, wrt: tuple[int, ...], by: tuple[int, ...]) -> FlatFunction:
    """A function from operands, then tangents of the operands `wrt`, to tangents of the results `by`.

    It is the transpose of the gradients, which are linear in those of the results.
    """

    def push(operands: _Tensors) -> _Tensors:
        count = len(operands) - len(wrt)
        parts = _Parts(fn, wrt, by, count)
        return list(_PushedForward.apply(parts, *operands))

    return push


class _Parts:
    """A function, and the operands and results between which tangents are carried."""

    def __init__(self, fn: FlatFunction, wrt: tuple[int, ...], by: tuple[int, ...], count: int) -> None:
        self.fn, self.wrt, self.by, self.count = fn, wrt, by, count

    def differentiated(self, operands: Sequence[torch.Tensor]) -> tuple[_Tensors, _Tensors]:
        results, leaves = run_with_leaves(self.fn, list(operands[: self.count]), self.wrt)
        return [results[i] for i in self.by], leaves


class _PushedForward(torch.autograd.Function):
    """Tangents of results. Their own derivative needs no more than the gradient's, of which there is mostly a formula.

    With t the tangents, and u gradients of the results, which `pulled_back` turns into p(x, u): by x it is the gradient
    of the product of p and t, and by t it is p.
    """

    @staticmethod
    def forward(ctx: Any, parts: _Parts, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.parts = parts
        ctx.save_for_backward(*operands)
        with torch.enable_grad():
            results, leaves = parts.differentiated([x.detach() for x in operands])
            zeros = [torch.zeros_like(r).requires_grad_() for r in results]
            pulled = gradients(results, zeros, leaves, create_graph=True)
            return tuple([x.detach() for x in gradients(pulled, operands[parts.count :], zeros)])

    @staticmethod
    def backward(ctx: Any, *along: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        operands, parts, graph = ctx.saved_tensors, ctx.parts, torch.is_grad_enabled()
        found: list[torch.Tensor | None] = [None] * (1 + len(operands))
        with torch.enable_grad():
            # the function must not hook the operand itself: the hook would run again in the outer backward pass
            results, leaves = parts.differentiated([x.view_as(x) if x.requires_grad else x for x in operands])
            pulled = gradients(results, along, leaves, create_graph=True)
            by = [i for i in range(parts.count) if ctx.needs_input_grad[1 + i]]
            tangents = operands[parts.count :]
            moved = gradients(pulled, tangents, [operands[i] for i in by], create_graph=graph) if by else []
        for i, gradient in (*zip(by, moved, strict=True), *enumerate(pulled, parts.count)):
            found[1 + i] = gradient
        return tuple(found)
