"""In-place overloads on the device `jax`, with a fast path if only the targets see the written values.

The kernel's arrays become the targets' own, with no tensor made for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import jax
import torch
from torch.autograd.graph import increment_version

from ..arrays import attributes
from ..arrays.storage_views import InTrace, Storage, View, may_give
from ..ops.executor import Unsuitable
from ..ops.op_call import OpKernel
from ..ops.variants import mutated_arguments
from ..registry.handlers import Handler
from ..schema import OpSpec
from ..tensor.operand_values import Traced, shared_view
from ..tensor.tensor import array_of


def with_fast_path(spec: OpSpec, base: OpSpec, general: Handler) -> Handler:
    """An in-place overload, with a fast path.

    Args:
        spec: the overload.
        base: the functional overload.
        general: the slow path, which serves all calls, and raises ATen's errors.
    """
    names = [a.name for a in spec.arguments]
    if spec.kind != "inplace" or names != [a.name for a in base.arguments] or base.random:
        return general
    if (base.returns, spec.returns) == (("Tensor",), ("Tensor",)):
        return _array_to_array(_Runs(base), general)
    written = mutated_arguments(spec)
    if spec.returns or set(base.returns) != {"Tensor[]"} or written != names[: len(base.returns)]:
        return general
    return _arrays_to_arrays(_Runs(base, len(written)), general, len(written), counts_writes(spec))


def counts_writes(spec: OpSpec) -> bool:
    """True if ATen's kernel itself increments the version: autograd does so for tensors, but not for lists of them."""
    written = mutated_arguments(spec)
    lists = any(a.name in written and a.type == "Tensor[]" for a in spec.arguments)
    return lists and (spec.kind == "out" or spec.packet.startswith("_foreach_"))


def count_writes(targets: Sequence[torch.Tensor]) -> None:
    """Reports writes to autograd; raises RuntimeError if torch does not allow the write."""
    _require_writable(targets)
    increment_version(targets)


def _require_writable(targets: Sequence[torch.Tensor]) -> None:
    if not torch.is_inference_mode_enabled() and any(t.is_inference() for t in targets):
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a"
            " normal tensor before doing inplace update."
        )


# The least mean number of elements of targets that are overwritten: smaller ones gain nothing, and share executables
# with the functional overload.
_LARGE = 2**14
# The number of failed traces after which an operator is assumed to check values, or to cast.
_TRIES = 8


class _Runs:
    """A functional overload's kernel, whose arrays become those of the in-place overload's targets."""

    def __init__(self, base: OpSpec, written: int = 1) -> None:
        kernel = OpKernel(base, array_of, lambda array: array)
        self._new, self._over, self._left = kernel.prepared(), kernel.prepared(in_place=written), _TRIES

    def __call__(self, targets: Sequence[View], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The new arrays: the targets' own, overwritten, if they are large and nothing else holds them."""
        if self._left and may_be_overwritten(targets):
            try:
                return self._over(*args, **kwargs)
            except Unsuitable:
                self._left -= 1
        return self._new(*args, **kwargs)


def may_be_overwritten(targets: Sequence[View]) -> bool:
    """True if arrays of targets are large and nothing else holds them."""
    size = prod(targets[0].shape) if len(targets) == 1 else sum([prod(view.shape) for view in targets])
    return size >= _LARGE * len(targets) and all(map(_may_give, targets))


def _may_give(view: View) -> bool:
    """True if a storage's array is on one device, and only the storage holds it."""
    storage = view.storage
    if type(storage) is not Storage or not may_give(storage):
        return False
    return not isinstance(storage.array, jax.core.Tracer) and storage.array.sharding.num_devices == 1


_WITH_ARRAYS = (Storage, InTrace)


def _own(tensor: Any) -> View | None:
    """The view of a tensor that is all of a storage; None for other tensors."""
    view = attributes.view_or_none(tensor) if isinstance(tensor, torch.Tensor) else None
    if view is None or type(view.storage) not in _WITH_ARRAYS or not view.is_row_major():
        return None
    return view if view.storage.array.shape == view.shape else None


def _fits(view: View, new: Any) -> bool:
    array = view.storage.array
    return array.shape == new.shape and array.dtype == new.dtype


def _array_to_array(run: _Runs, general: Handler) -> Handler:
    """The fast path for one target.

    Args:
        run: the functional overload's kernel, which returns an array.
        general: the slow path.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        view = _own(args[0]) if args else None
        if view is None:
            return general(*args, **kwargs)
        for other in (*args[1:], *kwargs.values()) if kwargs else args[1:]:
            if type(other) in (list, tuple):
                return general(*args, **kwargs)
            lies = shared_view(other) if isinstance(other, torch.Tensor) else None
            if lies is not None and lies.storage.root is view.storage:
                return general(*args, **kwargs)
        try:
            new = run((view,), args, kwargs)
        except (Traced, ValueError):  # a traced operand, or one of another device
            return general(*args, **kwargs)
        if not _fits(view, new):
            return general(*args, **kwargs)
        view.replace(new)
        return args[0]

    return call


def _arrays_to_arrays(run: _Runs, general: Handler, written: int, counts: bool) -> Handler:
    """The fast path for lists of targets: `_array_to_array` with a kernel that returns as many lists.

    Args:
        run, general: as there.
        written: how many of the first arguments are lists of targets.
        counts: whether the overload itself reports its writes to autograd.
    """

    def call(*args: Any, **kwargs: Any) -> None:
        targets = [target for one in args[:written] for target in one]
        views = views_apart(targets, (*args[written:], *kwargs.values()))
        if views is None:
            return general(*args, **kwargs)
        if counts:
            _require_writable(targets)  # before their arrays may be overwritten
        try:
            results = run(views, args, kwargs)
        except (Traced, ValueError):
            return general(*args, **kwargs)
        arrays = results if written == 1 else [array for one in results for array in one]
        if not all(map(_fits, views, arrays)):
            return general(*args, **kwargs)
        if counts:
            increment_version(targets)
        for view, array in zip(views, arrays, strict=True):
            view.replace(array)
        return None

    return call


def views_apart(targets: Sequence[Any], others: Iterable[Any]) -> list[View] | None:
    """The views of targets, if each has a storage of its own that no other operand shares; else None."""
    views = [view for view in map(_own, targets) if view is not None]
    storages = {id(view.storage) for view in views}
    if not views or len(storages) < len(targets):
        return None
    for other in others:
        for tensor in other if isinstance(other, list | tuple) else (other,):
            lies = shared_view(tensor) if isinstance(tensor, torch.Tensor) else None
            if lies is not None and id(lies.storage.root) in storages:
                return None
    return views
