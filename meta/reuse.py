"""The default fake of an op: ATen's own meta function, with the strides that a JAX kernel returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from jaten_ops import registry
from jaten_ops.errors import KernelResultError, UnsupportedInputError
from jaten_ops.schema import OpSpec


def as_contiguous(result: Any) -> Any:
    """A new row-major tensor like each tensor of `result`: what a kernel returns, also for a view op.

    Raises:
        UnsupportedInputError: one of them is sparse.
    """
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided:
            kind = str(result.layout).removeprefix("torch.")
            raise UnsupportedInputError("a result", f"a {kind} one", "a dense one, as with sparse=False")
        return torch.empty_like(result, memory_format=torch.contiguous_format)
    if isinstance(result, tuple | list):
        return (
            [as_contiguous(r) for r in result] if isinstance(result, list) else tuple(as_contiguous(r) for r in result)
        )
    return result


def masked(mask: Sequence[bool], *gradients: Any) -> tuple[Any, ...]:
    """Gradients, without those that the mask leaves out."""
    return tuple(g if on else None for g, on in zip(gradients, mask, strict=True))


def known_true(condition: bool | torch.SymBool) -> bool:
    """True if a condition on sizes holds, False where that depends on values (for others a guard is recorded).

    Source: `torch.fx.experimental.symbolic_shapes.guard_or_false`, whose module loads sympy, asked where it is loaded.
    """
    return condition.node.guard_or_false("", 0) if isinstance(condition, torch.SymBool) else condition


def aten_overload(overload: str) -> torch._ops.OpOverload | None:
    """The ATen operator of this name, if the installed torch has it."""
    packet, _, suffix = overload.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), suffix or "default", None)


def _with_results(spec: OpSpec, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A user's fake; one that forgets to return something is an error, and no result that is absent."""
    if not spec.returns or spec.returns == ("Tensor?",):
        return fn

    @functools.wraps(fn)
    def fake(*args: Any, **kwargs: Any) -> Any:
        results = fn(*args, **kwargs)
        if results is None:
            raise KernelResultError(spec.name, None, ", ".join(spec.returns), of="fake", by="schema")
        return results

    return fake


def fake_of(spec: OpSpec) -> Callable[..., Any] | None:
    """The fake of an op: the registered one, else ATen's meta function; None if there is neither."""
    key = spec.overload if spec.namespace == "jaten" else spec.name
    if key in registry.FAKES:
        fn = registry.FAKES[key].fn
        return fn if spec.namespace == "jaten" else _with_results(spec, fn)
    op = aten_overload(spec.overload) if spec.namespace == "jaten" else None
    if op is None:
        return None

    def fake(*args: Any, **kwargs: Any) -> Any:
        return as_contiguous(op(*args, **kwargs))

    return fake
