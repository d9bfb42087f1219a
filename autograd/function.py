"""The one factory of `autograd.Function` classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jaten_ops.schema import OpSpec

Gradients = Callable[[Sequence[torch.Tensor], list[Any], Sequence[torch.Tensor], list[bool]], Sequence[Any]]


def _flat_tensors(values: Sequence[Any], positions: Sequence[int]) -> list[torch.Tensor | None]:
    flat: list[torch.Tensor | None] = []
    for i in positions:
        value = values[i]
        flat.extend(value) if isinstance(value, list | tuple) else flat.append(value)
    return flat


def _needs_grad(values: Sequence[Any], positions: Sequence[int]) -> bool:
    for i in positions:
        value = values[i]
        if value is None:
            continue
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif any(t is not None and t.requires_grad for t in value):
            return True
    return False


class _Saved:
    """Values with the tensors taken out, so that those can go through `save_for_backward`."""

    def __init__(self, values: Sequence[Any], tensor_positions: Sequence[int]) -> None:
        self.values = list(values)
        self._positions = tensor_positions
        self._lengths = {i: len(values[i]) for i in tensor_positions if isinstance(values[i], list | tuple)}
        for i in tensor_positions:
            self.values[i] = None

    def restore(self, tensors: Sequence[torch.Tensor | None]) -> list[Any]:
        values = list(self.values)
        at = 0
        for i in self._positions:
            length = self._lengths.get(i)
            values[i] = tensors[at] if length is None else list(tensors[at : at + length])
            at += 1 if length is None else length
        return values


def make_function(spec: OpSpec, call: Callable[[Sequence[Any]], Any], gradients: Gradients) -> type:
    """The `autograd.Function` of one op. Its `apply` takes the call's values, then the differentiable tensors flat."""
    names = [a.name for a in spec.arguments]
    diff_positions = [names.index(n) for n in spec.differentiable]
    tensor_positions = [i for i, a in enumerate(spec.arguments) if a.is_tensor]
    returns_list = spec.returns == ("Tensor[]",)

    def forward(ctx: Any, values: list[Any], *diff_tensors: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            results = call(values)
        flat = list(results) if isinstance(results, tuple | list) else [results]
        saved = _Saved(values, tensor_positions)
        inputs = _flat_tensors(values, tensor_positions)
        ctx.saved, ctx.inputs_saved = saved, len(inputs)
        tensors = {i: r for i, r in enumerate(flat) if isinstance(r, torch.Tensor)}
        ctx.numbers = {i: r for i, r in enumerate(flat) if i not in tensors}  # lengths, and results that are absent
        ctx.save_for_backward(*inputs, *(map(tensors.get, range(len(flat))) if ctx_needs_results else ()))
        off = [
            r
            for i, r in tensors.items()
            if i in spec.nondifferentiable_outputs or not (r.is_floating_point() or r.is_complex())
        ]
        ctx.mark_non_differentiable(*off)
        ctx.differentiable_outputs = [i for i, r in tensors.items() if not any(r is o for o in off)]
        ctx.lengths = [len(v) if isinstance(v := values[i], list | tuple) else 1 for i in diff_positions]
        return tuple(flat) if returns_list or len(flat) > 1 else flat[0]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        values = ctx.saved.restore(tensors[: ctx.inputs_saved])
        needs = ctx.needs_input_grad[1:]
        mask, at = [], 0
        for length in ctx.lengths:
            mask.append(any(needs[at : at + length]))
            at += length
        wanted = [grads[i] for i in ctx.differentiable_outputs]
        results = [ctx.numbers.get(i, r) for i, r in enumerate(tensors[ctx.inputs_saved :])]
        got = iter(gradients(wanted, values, results, mask))
        out: list[Any] = [None]
        for on, length in zip(mask, ctx.lengths, strict=True):
            out.extend(next(got) if on else None for _ in range(length))
        return tuple(out)

    ctx_needs_results = getattr(gradients, "needs_results", False)
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{spec.packet}_{spec.overload.partition('.')[2] or 'default'}", (torch.autograd.Function,), body)


def make_autograd_kernel(
    spec: OpSpec,
    bind: Callable[[Sequence[Any], dict[str, Any]], list[Any]],
    call: Callable[[Sequence[Any]], Any],
    gradients: Gradients,
) -> Callable[..., Any]:
    """The op's kernel for the Autograd dispatch key.

    Args:
        spec: the op.
        bind: turns a call's arguments into values in schema order.
        call: the op itself, on values in schema order.
        gradients: from (grads of the differentiable results, values, results, output mask) the selected gradients.
    """
    names = [a.name for a in spec.arguments]
    diff_positions = [names.index(n) for n in spec.differentiable]
    function: type | None = None
    returns_list = spec.returns == ("Tensor[]",)

    def autograd_kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal function
        values = bind(args, kwargs)
        if not (torch.is_grad_enabled() and _needs_grad(values, diff_positions)):
            with torch._C._AutoDispatchBelowAutograd():
                return call(values)
        if function is None:
            function = make_function(spec, call, gradients)
        results = function.apply(values, *_flat_tensors(values, diff_positions))  # type: ignore[attr-defined]
        return list(results) if returns_list else results

    return autograd_kernel
