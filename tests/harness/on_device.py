"""PyTorch's samples on the device `jax`, as a user would call them, compared with the same calls on the CPU.

Function, method, operator, in-place and out= forms, with autograd above `__torch_dispatch__`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import jaten_ops

from .checks import WITH_BACKWARD, Found, assert_same_derivatives, gradients_of
from .comparison import UNSPECIFIED, assert_near, in_float64
from .replay import OP_INFOS, describe, describe_call, differentiable, samples

# The results of these are not specified, or are about memory.
_UNSPECIFIED = ("empty", "new_empty", "resize_")


Place = Callable[[torch.Tensor], torch.Tensor]


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _on_jax(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("jax")


def _to(place: Place, tree: Any) -> Any:
    """The same arguments in a place, the tensors in new memory."""
    device = "cpu" if place is _on_cpu else "jax"

    def move(t: torch.Tensor) -> torch.Tensor:
        return place(t.detach().clone()).requires_grad_(t.requires_grad)

    def name(value: Any) -> Any:
        return device if value in ("cpu", torch.device("cpu")) else value

    return tree_map_only((str, torch.device), name, tree_map_only(torch.Tensor, move, tree))


def _arguments(sample: Any, place: Place) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = _to(place, ((sample.input, *sample.args), sample.kwargs))
    return args, kwargs


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
    """An in-place form on a copy of the sample's tensor, which may be a leaf; returns the copy."""

    def run(first: Any, *args: Any, **kwargs: Any) -> Any:
        target = tree_map_only(torch.Tensor, torch.clone, first)
        call(target, *args, **kwargs)
        return target

    return run


def _outcome(call: Callable[..., Any], sample: Any, place: Place) -> tuple[Any, Any]:
    """The results, or the exception, of a call, and its arguments."""
    args, kwargs = _arguments(sample, place)
    torch.manual_seed(0)
    try:
        return call(*args, **kwargs), (args, kwargs)
    except Exception as error:
        return error, (args, kwargs)


class _Drawing(TorchDispatchMode):
    """Notes whether a random operator was called."""

    drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drawn |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _draws(name: str, dtype: torch.dtype, sample: Any) -> bool:
    with _Drawing() as mode:
        for _, call in _forms(name, dtype):
            _outcome(call, sample, _on_cpu)
    return mode.drawn


def _have_ties(dtype: torch.dtype) -> bool:
    """True if samples of a dtype may have equal elements, any of which may be chosen; others are compared whole."""
    return dtype.itemsize <= 2 or not (dtype.is_floating_point or dtype.is_complex)


def _specified(name: str, dtype: torch.dtype) -> Callable[[Any], Any]:
    """A function that selects the results of an op whose values are specified."""
    if not _have_ties(dtype):
        return lambda results: results
    free = {i for overload, i in UNSPECIFIED if overload.partition(".")[0] == OP_INFOS[name].aten_name}

    def keep(results: Any) -> Any:
        if not free or not isinstance(results, tuple):
            return results
        return tuple(r for i, r in enumerate(results) if i not in free)

    return keep


def _assert_same(
    got: Any, expected: Any, settled: Callable[[Any], Any], values: bool, exact: Callable[[], Any]
) -> None:
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected) | jaten_ops.JatenError), f"got {got!r}, expected {expected!r}"
        return
    if any(t.layout is not torch.strided for t in tree_leaves(expected) if isinstance(t, torch.Tensor)):
        assert isinstance(got, jaten_ops.JatenError), f"got {got!r}, where JAX has no such layout"
        return
    if isinstance(got, Exception):
        raise got
    if expected is None:
        assert got is None
        return
    results = [t for t in tree_leaves(got) if isinstance(t, torch.Tensor)]
    assert all(type(t) is jaten_ops.Tensor for t in results), "a result is not on the device"
    on_cpu = tree_map_only(torch.Tensor, torch.Tensor.cpu, got)
    if values:
        assert_near(settled(on_cpu), settled(expected), lambda: settled(exact()))
    else:
        shapes = [[(t.shape, t.dtype) for t in tree_leaves(r) if isinstance(t, torch.Tensor)] for r in (got, expected)]
        assert shapes[0] == shapes[1]


class Calls(NamedTuple):
    """A form of an op: as it is called on the CPU, and on the device."""

    name: str
    on_cpu: Callable[..., Any]
    there: Callable[..., Any]


def _hold(
    found: Found,
    form: str,
    calls: Calls,
    sample: Any,
    place: Place,
    settled: Callable[[Any], Any],
    values: bool,
    backward: bool,
) -> None:
    """Compares results or errors of both calls, and gradients, if wanted."""
    expected, (args, kwargs) = _outcome(calls.on_cpu, sample, _on_cpu)
    got, moved = _outcome(calls.there, sample, place)
    try:
        _assert_same(got, expected, settled, values, functools.partial(in_float64, calls.on_cpu, args, kwargs))
        if backward and values and not isinstance(expected, Exception) and not isinstance(got, Exception):
            gradients = gradients_of(settled(expected), tree_leaves((args, kwargs)))
            there = gradients_of(settled(got), tree_leaves(moved))
            assert_same_derivatives([g if g is None else g.cpu() for g in there], gradients)
    except Exception as error:
        found.failures.append(f"{form}{describe(error, describe_call(calls.name, args, kwargs))}")
    found.compared += 1


def dynamic(name: str, dtype: torch.dtype, most: int) -> Found:
    """Results and gradients of each sample on the device `jax` as a program whose sizes are open.

    What torch's own backend refuses for tensors of the CPU is left out.
    """
    op, found = OP_INFOS[name], Found()
    backward = dtype in WITH_BACKWARD and differentiable(name, dtype)
    specified, left_out = _specified(name, dtype), ""
    for sample in samples(name, dtype, backward, most):

        def settled(results: Any, settle: Callable[[Any], Any] = sample.output_process_fn_grad) -> Any:
            return specified(settle(results))

        values = not (name.startswith(_UNSPECIFIED) or _draws(name, dtype, sample))
        calls = Calls(name, op.op, _with_open_sizes(op.op, "jaten"))
        before = len(found.failures)
        _hold(found, "", calls, sample, _on_jax, settled, values, backward)
        if len(found.failures) > before:
            others, _ = _outcome(_with_open_sizes(op.op, "aot_eager"), sample, _on_cpu)
            if isinstance(others, Exception):
                left_out = f"Dynamo cannot capture this: {str(others).splitlines()[0]}"
                del found.failures[before:]
    if left_out and not found.failures:
        found.skipped = left_out
    return found.need("no samples")


def _with_open_sizes(call: Callable[..., Any], backend: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(lambda *args, **kwargs: call(*args, **kwargs), backend=backend, dynamic=True)


def device(name: str, dtype: torch.dtype, most: int, place: Place = _on_jax) -> Found:
    """Results and errors of each form of an op on the device `jax`, and gradients in double precision.

    Args:
        place: moves a tensor to the device, of the CPU's.
    """
    op, found = OP_INFOS[name], Found()
    backward = dtype in WITH_BACKWARD and differentiable(name, dtype)
    specified = _specified(name, dtype)
    unspecified = name.startswith(_UNSPECIFIED) or (name == "argsort" and _have_ties(dtype))
    for sample in samples(name, dtype, backward, most):

        def settled(results: Any, settle: Callable[[Any], Any] = sample.output_process_fn_grad) -> Any:
            return specified(settle(results))

        values = not (unspecified or _draws(name, dtype, sample))
        for form, call in _forms(name, dtype):
            if sample.broadcasts_input and form.startswith("in-place"):
                continue  # PyTorch's tests make no such call: some of ATen's in-place forms resize, others raise
            _hold(found, f"{form}: ", Calls(name, call, call), sample, place, settled, values, backward)
        if op.supports_out:
            found.compared += 1
            try:
                _assert_written_out(op.op, sample, settled, values, place)
            except Exception as error:
                arguments = describe_call(name, (sample.input, *sample.args), sample.kwargs)
                found.failures.append(f"out=: {describe(error, arguments)}")
    return found.need("no samples")


def _assert_written_out(
    call: Callable[..., Any], sample: Any, settled: Callable[[Any], Any], values: bool, place: Place
) -> None:
    """Both get tensors of the results' sizes, or both raise the same exception."""
    with torch.no_grad():
        results, _ = _outcome(call, sample, _on_cpu)
        if isinstance(results, Exception):
            return
        zeros = tree_map_only(torch.Tensor, torch.zeros_like, results)
        places = (_on_cpu, place)
        outs = [_to(p, tuple(zeros) if isinstance(zeros, tuple | list) else zeros) for p in places]
        expected, got = (
            _outcome(lambda *args, out=out, **kwargs: call(*args, **kwargs, out=out), sample, p)[0]
            for p, out in zip(places, outs, strict=True)
        )
        exact = functools.partial(in_float64, call, (sample.input, *sample.args), sample.kwargs)
        _assert_same(got, expected, settled, values, exact)
        if not isinstance(expected, Exception):
            _assert_same(outs[1], outs[0], settled, values, exact)
