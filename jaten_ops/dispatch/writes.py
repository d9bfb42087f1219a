"""Operators that write to tensors of the device `jax`: the in-place and out= forms of functional ones."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import registry
from ..arrays import attributes, carrier
from ..arrays.storage_views import lock_of
from ..meta import aten_overload
from ..ops import define, variants
from ..registry.handlers import ABOVE_AUTOGRAD, HANDLERS, Handler, handler
from ..schema import COMPOSITE, VARIANTS
from ..tensor.operand_values import constant_written, is_constant, is_traced
from ..tensor.tensor import array_of
from . import in_place
from .functional import aten_op, functional
from .operands import to_carrier


@functools.cache
def variant(overload: str) -> Handler:
    """An in-place or out= overload."""
    spec = VARIANTS[overload]
    write, aten = _store_counted if in_place.counts_writes(spec) else store, aten_overload(overload)
    if spec.base in COMPOSITE:
        return variants.make_variant(spec, COMPOSITE[spec.base], aten_op(spec.base), write, aten)
    base = registry.SPECS[spec.base]
    run = HANDLERS[f"aten::{spec.base}"].run if spec.base in _OF_MEMORY else functional(spec.base)
    general = variants.make_variant(spec, base, run, write, aten)
    found = in_place.with_fast_path(spec, base, general)
    return _one_at_a_time(found) if spec.kind == "inplace" and spec.packet in _TO_SOME_ELEMENTS else found


_OF_MEMORY = {"as_strided_copy", "as_strided_scatter"}
"""Functional operators that read an operand's memory, which their handlers have, and kernels have not."""

_TO_SOME_ELEMENTS = {
    *("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_fill_", "index_reduce_", "put_"),
    *("scatter_", "scatter_add_", "scatter_reduce_", "masked_fill_", "masked_scatter_"),
}


def _one_at_a_time(write: Handler) -> Handler:
    """A write to some elements of its first argument, to others of which threads may write at the same time."""

    def call(*args: Any, **kwargs: Any) -> Any:
        view = attributes.view_or_none(args[0]) if args and isinstance(args[0], torch.Tensor) else None
        if view is None:
            return write(*args, **kwargs)
        with lock_of(view.storage):
            return write(*args, **kwargs)

    return call


def _store_counted(target: torch.Tensor, result: torch.Tensor) -> None:
    if not is_traced(target):
        in_place.count_writes([target])
    store(target, result)


def store(target: torch.Tensor, result: torch.Tensor) -> None:
    """Writes new values to a tensor, which all tensors that share its storage see."""
    view = attributes.view_or_none(target)
    if view is None and is_traced(target):  # AOTAutograd turns the write into a new value of the graph
        to_carrier(target).copy_(to_carrier(result))
        return
    if result.dtype != target.dtype:
        result = functional("_to_copy")(result, dtype=target.dtype)
    if view is None and is_constant(target):
        raise constant_written()
    (view or carrier.view_of(target)).write(array_of(result))


@handler("aten::native_batch_norm")
def native_batch_norm(*args: Any, **kwargs: Any) -> Any:
    """The operator, which also writes to the running statistics, as in ATen against its schema."""
    values = define.Signature(registry.SPECS["native_batch_norm"]).bind(args, kwargs)
    input, weight, bias, running_mean, running_var, training, momentum, eps = values
    if not training or running_mean is None:
        return functional("native_batch_norm")(*values)
    normalize = functional("_native_batch_norm_legit_functional")
    *results, mean, var = normalize(input, weight, bias, running_mean, running_var, training, momentum, eps)
    store(running_mean, mean)
    store(running_var, var)
    return tuple(results)


@handler("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None, momentum: float, eps: float, counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The operator of `SyncBatchNorm`, which also writes to the running statistics, as in ATen against its schema."""
    gather: Any = functional("batch_norm_gather_stats_with_counts")
    average, inverse = gather(input, mean, invstd, running_mean, running_var, momentum, eps, counts)
    total = counts.sum()
    if running_mean is not None:
        store(running_mean, torch.lerp(running_mean, average.to(running_mean.dtype), momentum))
    if running_var is not None:
        unbiased = (inverse.square().reciprocal() - eps) * (total / (total - 1))
        store(running_var, torch.lerp(running_var, unbiased.to(running_var.dtype), momentum))
    return average, inverse


# With tensors of a subclass, ATen's compositions do not write to out, or copy it to itself in another shape.
_NOT_ATENS = frozenset({"linalg_matrix_rank", "matmul", "linalg_matmul"})


def _written_out(overload: str) -> Handler:
    def write(*args: Any, **kwargs: Any) -> Any:
        return variant(overload)(*args, **kwargs)

    return write


for _spec in VARIANTS.values():
    if _spec.packet in _NOT_ATENS and _spec.kind == "out":
        handler(f"aten::{_spec.overload}", keys=(ABOVE_AUTOGRAD,))(_written_out(_spec.overload))
