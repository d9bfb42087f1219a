"""The derivative of an op, in both directions, as `autograd.make_autograd_kernel` takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .. import autograd
from ..schema import OpSpec
from . import companions
from .executor import Signature


class OpDerivative:
    """The derivative of an op: by the registered formula, else by its companion `_vjp` op.

    Args:
        spec: the op.
        vjp_op: the companion of an op.
    """

    def __init__(self, spec: OpSpec, vjp_op: Callable[[OpSpec], torch._ops.OpOverload]) -> None:
        self._spec, self._vjp_op = spec, vjp_op
        self._formula = companions.formula_of(spec)
        self._forward_formula = companions.formula_of(spec, one_by_one=True)
        self.needs_results = self._formula is not None
        self._signature = Signature(spec)
        self._has_optional_elements = any(
            a.type == "Tensor?[]" and a.name in spec.differentiable for a in spec.arguments
        )
        # looked up here, since Dynamo traces the functions that compiled autograd calls, and cannot trace a lock
        self._companion = vjp_op(spec) if spec.differentiable and self._formula is None else None

    def pull_back(self, grads: Sequence[Any], values: list[Any], results: Sequence[Any], mask: list[bool]) -> list[Any]:
        if not self._spec.differentiable:
            raise RuntimeError(f"derivative for {self._spec.name} is not implemented")  # as ATen says
        if self._formula is not None:
            return self._by_formula(self._formula, grads, values, results, mask)
        assert self._companion is not None
        args, kwargs = self._signature.split(values)
        got = self._companion(list(grads), mask, *args, **kwargs)
        return got if not self._has_optional_elements else self._spread(got, values, mask)

    def _spread(self, gradients: Sequence[Any], values: list[Any], mask: list[bool]) -> list[Any]:
        """Gradients with None for the elements of lists that are absent, of which a companion returns none."""
        each = iter(gradients)
        return [None if t is None else next(each) for t in self._tensors(values, mask)]

    def _tensors(self, values: list[Any], mask: list[bool]) -> list[Any]:
        """The tensors of the selected arguments one by one, with None for the elements of lists that are absent."""
        return tree_leaves([values[self._signature.index[n]] for n in self._selected(mask)])

    def _by_formula(
        self,
        formula: companions.Formula,
        grads: Sequence[Any],
        values: list[Any],
        results: Sequence[Any],
        mask: list[bool],
    ) -> list[Any]:
        wanted = self._selected(mask)
        by_name = formula(grads, values, results, wanted)
        return [g for n in wanted for g in self._each(by_name.get(n), n, values)]

    def _each(self, gradient: Any, name: str, values: list[Any]) -> Sequence[Any]:
        """The gradients of an argument, one for each of its tensors."""
        value = values[self._signature.index[name]]
        if not isinstance(value, list | tuple):
            return [gradient]
        return [None] * len(value) if gradient is None else gradient

    def push_forward(
        self, tangents: Sequence[Any], values: list[Any], results: Sequence[Any], mask: list[bool]
    ) -> Sequence[Any]:
        """Tangents of the results: the transpose of `pull_back`, which is linear in the gradients."""
        outputs = [
            r
            for i, r in enumerate(results)
            if i not in self._spec.nondifferentiable_outputs
            and isinstance(r, torch.Tensor)
            and (r.is_floating_point() or r.is_complex())
        ]
        if self._companion is not None:
            zeros = [torch.zeros_like(r) for r in outputs]
            transposed = self._vjp_op(autograd.vjp_spec(self._spec))
            args, kwargs = self._signature.split(values)
            by_grads_only = [True] + [False] * len(mask)
            present = [t for t in tangents if t is not None]
            return transposed(present, by_grads_only, zeros, mask, *args, **kwargs)
        recorded = autograd.is_recorded([*tree_leaves(values), *tangents])
        with torch.enable_grad():
            zeros = [autograd.leaf_like(r) for r in outputs]
            pulled = self._pulled(zeros, values, results, mask)
            pairs = [(p, t) for p, t in zip(pulled, tangents, strict=True) if t is not None and p.requires_grad]
            if not pairs:
                return zeros
            by, along = zip(*pairs, strict=True)
            return torch.autograd.grad(
                by, zeros, along, create_graph=recorded, allow_unused=True, materialize_grads=True
            )

    def _pulled(
        self, grads: Sequence[Any], values: list[Any], results: Sequence[Any], mask: list[bool]
    ) -> tuple[Any, ...]:
        """The gradients of the selected arguments, one for each tensor, in the form that autograd returns.

        They are zeros where the formula gives none, and summed if the operand was broadcast. An element of a list that
        is absent has None.
        """
        if self._forward_formula is None:
            pulled: Sequence[Any] = self.pull_back(grads, values, results, mask)
        else:
            pulled = self._by_formula(self._forward_formula, grads, values, results, mask)
        return tuple(
            None if t is None else torch.zeros_like(t) if g is None else g.sum_to_size(t.shape)
            for g, t in zip(pulled, self._tensors(values, mask), strict=True)
        )

    def _selected(self, mask: list[bool]) -> list[str]:
        return [n for n, on in zip(self._spec.differentiable, mask, strict=True) if on]
