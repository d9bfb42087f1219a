"""In-place and out= overloads, derived from their schemas and the functional overload that computes the values."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..errors import KernelResultError
from ..schema import TOLD_BY_OUT, OpSpec
from .overlap import RANGES, distinct, has_arrays, has_memory, make_check

# Without a dtype, ATen computes these in the dtype of the out= tensor.
_COMPUTED_AS_OUT = frozenset({"cumprod", "cumsum", "mean.dim", "nansum", "prod.dim_int", "sum.dim_IntList"})


# ATen accepts expanded targets here, since all elements become equal.
_FILLING = frozenset({"fill.Scalar", "zero"})

# ATen resizes statistics that do not have one element for each channel to the sizes of their new values.
_RESIZING = frozenset({"_fused_moving_avg_obs_fq_helper_functional"})


def _flat(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_inplace(target: torch.Tensor, result: torch.Tensor) -> None:
    if target.dtype == result.dtype and target.shape == result.shape:
        return
    if target.is_complex() and result.is_floating_point():
        raise RuntimeError("In-place abs is not supported for complex tensors.")  # no other operator does this
    if target.shape != result.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(result.shape)}"
        )
    _check_cast(target, result)


def _hold_against(name: str, target: torch.Tensor, result: torch.Tensor) -> None:
    if target.dtype != result.dtype or target.shape != result.shape:
        got, wanted = ((tuple(t.shape), t.dtype) for t in (result, target))
        raise KernelResultError(name, got, wanted, by="written argument")


def _prepare_out(target: torch.Tensor, result: torch.Tensor) -> None:
    if target.device != result.device:
        raise RuntimeError(f"Expected out tensor to have device {result.device}, but got {target.device} instead")
    if target.shape != result.shape:
        if target.numel():
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(target.shape)}, which does"
                f" not match the required output shape {list(result.shape)}. Resize it to zero elements first with"
                " out.resize_(0).",
                stacklevel=3,
            )
        target.resize_(result.shape)


def _resize(target: torch.Tensor, result: torch.Tensor) -> None:
    if target.shape != result.shape:
        target.resize_(result.shape)


def _check_cast(target: torch.Tensor, result: torch.Tensor) -> None:
    if not torch.can_cast(result.dtype, target.dtype):
        given, wanted = map(_scalar_type, (result, target))
        raise RuntimeError(f"result type {given} can't be cast to the desired output type {wanted}")


def _scalar_type(tensor: torch.Tensor) -> str:
    """ATen's name of a tensor's dtype in its errors, such as "Float"."""
    return torch.empty(0, dtype=tensor.dtype, device="cpu").type().rpartition(".")[-1].removesuffix("Tensor")


def _require_grad(values: Iterable[Any]) -> bool:
    return any(t.requires_grad for v in values for t in _flat(v) if isinstance(t, torch.Tensor))


# Compositions that check themselves whether an argument requires a gradient.
_ASKING = frozenset({"matmul.out", "linalg_matmul.out"})


def _watched(spec: OpSpec, base: OpSpec, written: Sequence[str]) -> list[str]:
    """The arguments of an out= overload that must not require a gradient in ATen."""
    if spec.overload in _ASKING:
        return [a.name for a in spec.arguments]
    if spec.kind != "out" or "generated" in spec.tags or not base.differentiable:
        return []
    # overloads that ATen generates compose the functional one and a copy, as jaten does
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{spec.overload}", "Autograd"):
        return []
    outputs = [n for i, n in enumerate(written) if i not in base.nondifferentiable_outputs]
    return [a.name for a in spec.arguments if a.name in (*base.differentiable, *outputs)]


def mutated_arguments(spec: OpSpec) -> list[str]:
    """The arguments that an overload writes to, in the order of its functional overload's results: out= first.

    An out= overload that ATen generates writes to nothing else, even if its schema says so.
    """
    written = [a for a in spec.parsed.arguments if a.alias_info and a.alias_info.is_write]
    if spec.kind != "out":
        return [a.name for a in written]
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{spec.overload}", "CPU"):  # ATen generates it
        return [a.name for a in written if a.is_out]
    return [a.name for a in sorted(written, key=lambda a: not a.is_out)]


def _make_dtype_check(aten: Callable[..., Any] | None, written: Sequence[str], told: bool) -> Callable[..., None]:
    """A check that raises ATen's error for dtypes of outputs to which its kernel does not write such results.

    Some kernels cast and others do not, so ATen is called once for each combination of dtypes and options, with tensors
    of its own to write to, and with copies on the CPU of those of the device `jax`.

    Args:
        told: the outputs determine the dtype of the results, as in a factory: it does not differ then, and ATen may
            refuse it all the same.
    """
    refused: dict[Any, tuple[type[Exception], tuple[Any, ...]] | None] = {}

    def ask(bound: dict[str, Any]) -> tuple[type[Exception], tuple[Any, ...]] | None:
        try:
            with torch.no_grad(), warnings.catch_warnings(), torch.random.fork_rng(devices=()):
                warnings.simplefilter("ignore")
                there = {n: tree_map_only((torch.Tensor, torch.Generator), _in_memory, v) for n, v in bound.items()}
                own = {n: tree_map_only(torch.Tensor, lambda t: t.new_empty(t.shape), there[n]) for n in written}
                assert aten is not None
                aten(**there | own)
        except Exception as error:
            return type(error), error.args
        return None

    def check(bound: dict[str, Any], targets: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        if not told and all(t.dtype == r.dtype for t, r in zip(targets, results, strict=True)):
            return
        values = [v for value in bound.values() for v in _flat(value)]
        known = all(has_memory(v) or has_arrays(v) for v in values if isinstance(v, torch.Tensor))
        if aten is None or not known or torch._C._are_functorch_transforms_active():
            for target, result in zip(targets, results, strict=True):
                _check_cast(target, result)
            return
        key = tuple(map(_kind, values))
        if key not in refused:
            refused[key] = ask(bound)
        if (error := refused[key]) is not None:
            raise error[0](*error[1])

    return check


def _in_memory(value: torch.Tensor | torch.Generator) -> Any:
    """A tensor in torch's memory; for a generator the CPU's, whose state is restored."""
    if isinstance(value, torch.Generator):
        return value if value.device.type == "cpu" else None
    return value if has_memory(value) else value.detach().cpu()


def _kind(value: Any) -> Any:
    """The properties of a value by which ATen chooses the kernel for a call."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.numel() > 0
    return type(value) if isinstance(value, float | complex | torch.Generator) else value


def make_variant(
    spec: OpSpec,
    base: OpSpec,
    call: Callable[..., Any],
    write: Callable[[torch.Tensor, torch.Tensor], Any] = torch.Tensor.copy_,
    aten: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The implementation of an in-place or out= overload, composed from the functional op and `copy_`.

    It is composite: gradients come from the two ops it is made of, where ATen has any.

    Args:
        spec: the overload, of kind "inplace" or "out".
        base: the functional overload.
        call: the functional op.
        write: writes the result, of the target's shape, to the target.
        aten: ATen's own overload, to check whether an out= tensor may have another dtype.
    """
    written = mutated_arguments(spec)
    told = _told(spec, base)
    complete = _completion(spec)
    check = _make_call_check(spec, base, written)
    check_dtypes = _make_dtype_check(aten, written, bool(told) or spec.base in _COMPUTED_AS_OUT)
    # an in-place op that writes to further arguments returns its own results, which come first
    own_results = len(base.returns) - len(written) if spec.kind == "inplace" else 0
    store, answer = _make_store(spec, base, write), _make_answer(spec)
    base_positional = [a.name for a in base.arguments if not a.kwarg_only]
    base_keywords = [a.name for a in base.arguments if a.kwarg_only]

    def variant(*args: Any, **kwargs: Any) -> Any:
        given = complete(args, kwargs)
        bound = told | given
        targets: Sequence[torch.Tensor] = [t for n in written for t in _flat(bound[n])]
        check(bound, targets)
        if told:  # the out= overload of a factory
            bound |= {n: getattr(targets[0], n) for n in ("dtype", "device") if n in told}
            check_dtypes(given, targets, targets)
        if spec.kind == "out" and spec.base in _COMPUTED_AS_OUT and bound["dtype"] is None:
            bound["dtype"] = targets[0].dtype
        if spec.kind == "inplace" and _is_differentiated(bound):
            # the gradient may need the values that the write replaces
            bound |= {n: tree_map_only(torch.Tensor, torch.clone, bound[n]) for n in written}
        results = call(*[bound[n] for n in base_positional], **{n: bound[n] for n in base_keywords})
        flat = [results] if len(base.returns) == 1 else list(results)
        values = [t for r in flat[own_results : own_results + len(written)] for t in _flat(r)]
        if spec.kind == "out" and not told:
            check_dtypes(given, targets, values)
        store(targets, values)
        return answer(flat, given)

    return variant


def _told(spec: OpSpec, base: OpSpec) -> dict[str, Any]:
    """The arguments of a functional overload, with their defaults, that the outputs of its out= form stand for."""
    names = {a.name for a in spec.arguments}
    told = {a.name: a.default for a in base.arguments if a.name not in names}
    assert told.keys() <= TOLD_BY_OUT, f"{spec.overload} does not tell {told.keys() - TOLD_BY_OUT} of {base.overload}"
    return told


def _completion(spec: OpSpec) -> Callable[[Sequence[Any], dict[str, Any]], dict[str, Any]]:
    """A function that gives all arguments of a call by name, defaults filled in."""
    positional = [a.name for a in spec.arguments if not a.kwarg_only]
    defaults = {a.name: a.default for a in spec.arguments if a.has_default}
    return lambda args, kwargs: defaults | dict(zip(positional, args, strict=False)) | kwargs


def _make_call_check(
    spec: OpSpec, base: OpSpec, written: Sequence[str]
) -> Callable[[dict[str, Any], Sequence[torch.Tensor]], None]:
    """A check that raises ATen's error for a call whose targets no values may be written to."""
    watched, check_overlap = _watched(spec, base, written), make_check(spec, base, written)
    wants_targets = spec.kind == "inplace" and spec.packet.startswith("_foreach_")

    def check(bound: dict[str, Any], targets: Sequence[torch.Tensor]) -> None:
        if wants_targets and not targets:
            raise RuntimeError("Tensor list must have at least one tensor.")
        if watched and torch.is_grad_enabled() and _require_grad(bound[n] for n in watched):
            raise RuntimeError(
                f"{spec.packet}(): functions with out=... arguments don't support automatic differentiation, but one of"
                " the arguments requires grad."
            )
        if check_overlap is not None:
            check_overlap(bound)

    return check


def _is_differentiated(bound: dict[str, Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    return torch._C._are_functorch_transforms_active() or _require_grad(bound.values())


def _make_store(
    spec: OpSpec, base: OpSpec, write: Callable[[torch.Tensor, torch.Tensor], Any]
) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]:
    """A function that gives each target its values, of their sizes where ATen lets it."""
    prepare = _resize if spec.base in _RESIZING else _prepare_out if spec.kind == "out" else _check_inplace
    if spec.namespace != "jaten":
        prepare = functools.partial(_hold_against, base.name)

    def store(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        if base.packet in RANGES and targets[0].numel() == values[0].numel():  # the shape may differ
            values = [values[0].view(targets[0].shape)]
        for target, result in zip(targets, values, strict=True):
            prepare(target, result)
            if spec.base in _FILLING and has_memory(target):  # it may write an element more than once
                result, target = distinct(result, target), distinct(target, target)
            write(target, result)

    return store


def _make_answer(spec: OpSpec) -> Callable[[list[Any], dict[str, Any]], Any]:
    """A function that gives what an overload returns: results of its own, and the arguments that it has written."""
    named = {frozenset(a.alias_info.before_set): a.name for a in spec.parsed.arguments if a.alias_info}
    returned = [named[frozenset(r.alias_info.before_set)] if r.alias_info else None for r in spec.parsed.returns]

    def answer(results: list[Any], given: dict[str, Any]) -> Any:
        own = iter(results)
        out = [next(own) if name is None else given[name] for name in returned]
        return (out[0] if len(out) == 1 else tuple(out)) if out else None

    return answer
