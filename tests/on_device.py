"""PyTorch's samples on the device `jax`, as a user would call them, beside the same calls on the CPU.

Function, method, operator, in-place and out= forms, with autograd above `__torch_dispatch__`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import jaten_ops

from .checks import WITH_BACKWARD, Found, assert_same_derivatives, gradients_of
from .replay import OP_INFOS, describe, describe_call, differentiable, samples

# What these return is not specified, or is about memory.
_UNSPECIFIED = ("empty", "new_empty", "resize_")


def _to(device: str, tree: Any) -> Any:
    """The same arguments on a device, the tensors in new memory."""

    def move(t: torch.Tensor) -> torch.Tensor:
        return t.detach().clone().to(device).requires_grad_(t.requires_grad)

    return tree_map_only(torch.device, lambda d: torch.device(device), tree_map_only(torch.Tensor, move, tree))


def _arguments(sample: Any, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = _to(device, ((sample.input, *sample.args), sample.kwargs))
    return args, kwargs | ({"device": device} if kwargs.get("device") is not None else {})


def _forms(name: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[..., Any]]]:
    op = OP_INFOS[name]
    yield "function", op.op
    for form, call in (("method", op.method_variant), ("operator", op.operator_variant)):
        if call is not None and call is not op.op:
            yield form, call
    for form, call in (("in-place", op.inplace_variant), ("in-place operator", op.inplace_operator_variant)):
        if call is not None:
            yield form, _on_clone(call)


def _on_clone(call: Callable[..., Any]) -> Callable[..., Any]:
    """An in-place form that leaves the sample's tensor, which may be a leaf, as it is; returns what was written."""

    def run(first: Any, *args: Any, **kwargs: Any) -> Any:
        target = tree_map_only(torch.Tensor, torch.clone, first)
        call(target, *args, **kwargs)
        return target

    return run


def _outcome(call: Callable[..., Any], sample: Any, device: str, seed: int = 0) -> tuple[Any, Any]:
    """What a call returns or raises, and its arguments."""
    args, kwargs = _arguments(sample, device)
    torch.manual_seed(seed)
    try:
        return call(*args, **kwargs), (args, kwargs)
    except Exception as error:
        return error, (args, kwargs)


def _draws(name: str, dtype: torch.dtype, sample: Any) -> bool:
    """Whether a form's results depend on the seed."""
    forms = [call for _, call in _forms(name, dtype)]
    found = [[_outcome(call, sample, "cpu", seed)[0] for call in forms] for seed in (0, 1)]
    try:
        torch.testing.assert_close(
            *([t for t in tree_leaves(r) if isinstance(t, torch.Tensor)] for r in found), equal_nan=True
        )
    except AssertionError:
        return True
    return False


def _assert_same(got: Any, expected: Any, settled: Callable[[Any], Any], values: bool) -> None:
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected) | jaten_ops.JatenError), f"got {got!r}, expected {expected!r}"
        return
    if isinstance(got, Exception):
        raise got
    results = [t for t in tree_leaves(got) if isinstance(t, torch.Tensor)]
    assert all(type(t) is jaten_ops.Tensor for t in results), "a result is not on the device"
    on_cpu = tree_map_only(torch.Tensor, torch.Tensor.cpu, got)
    if values:
        torch.testing.assert_close(settled(on_cpu), settled(expected), equal_nan=True)
    else:
        shapes = [[(t.shape, t.dtype) for t in tree_leaves(r) if isinstance(t, torch.Tensor)] for r in (got, expected)]
        assert shapes[0] == shapes[1]


def device(name: str, dtype: torch.dtype, most: int) -> Found:
    """Each form of an op on the device `jax`: results, errors, and in double precision gradients."""
    op, found = OP_INFOS[name], Found()
    backward = dtype in WITH_BACKWARD and differentiable(name, dtype)
    for sample in samples(name, dtype, backward, most):
        settled = sample.output_process_fn_grad
        values = not name.startswith(_UNSPECIFIED) and not _draws(name, dtype, sample)
        for form, call in _forms(name, dtype):
            expected, (args, kwargs) = _outcome(call, sample, "cpu")
            got, moved = _outcome(call, sample, "jax")
            try:
                _assert_same(got, expected, settled, values)
                if backward and values and not isinstance(expected, Exception):
                    gradients = gradients_of(settled(expected), tree_leaves((args, kwargs)))
                    on_jax = gradients_of(settled(got), tree_leaves(moved))
                    assert_same_derivatives([g if g is None else g.cpu() for g in on_jax], gradients)
            except Exception as error:
                found.failures.append(f"{form}: {describe(error, describe_call(name, args, kwargs))}")
            found.compared += 1
        if op.supports_out:
            found.compared += 1
            try:
                _assert_written_out(op.op, sample, settled, values)
            except Exception as error:
                arguments = describe_call(name, (sample.input, *sample.args), sample.kwargs)
                found.failures.append(f"out=: {describe(error, arguments)}")
    return found.need("no samples")


def _assert_written_out(call: Callable[..., Any], sample: Any, settled: Callable[[Any], Any], values: bool) -> None:
    with torch.no_grad():
        expected, _ = _outcome(call, sample, "cpu")
        if isinstance(expected, Exception):
            return
        out = _to("jax", tree_map_only(torch.Tensor, torch.zeros_like, copy.copy(expected)))
        out = tuple(out) if isinstance(out, tuple | list) else out
        got, _ = _outcome(lambda *args, **kwargs: call(*args, **kwargs, out=out), sample, "jax")
        _assert_same(got, expected, settled, values)
        _assert_same(out, tuple(expected) if isinstance(expected, tuple | list) else expected, settled, values)
