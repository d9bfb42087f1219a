"""Values that must not outlive a JAX trace: its tensors that a torch function keeps or writes elsewhere."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import torch

from jaten_ops.arrays.carrier import view_of
from jaten_ops.arrays.observers import Observer, observed_by, observers
from jaten_ops.arrays.storage_views import Storage
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.tensor.operand_values import is_traced

from .recomputed_weights import recompute


class _Watch(Observer):
    """Tensors that a thread makes and writes to while JAX traces."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Storage, Any]] = {}
        self._made: list[weakref.ref[Any]] = []

    def written(self, storage: Storage) -> None:
        self._before.setdefault(id(storage), (storage, storage.array))

    def made(self, tensor: Any) -> None:
        self._made.append(weakref.ref(tensor))

    def restore(self) -> list[weakref.ref[Storage]]:
        """Restores the arrays of storages from outside of this trace; returns the storages."""
        found = []
        for storage, array in self._before.values():
            if not isinstance(array, jax.core.Tracer):
                storage.put(array)
                found.append(weakref.ref(storage))
        self._before.clear()
        return found

    def alive(self) -> list[Any]:
        tensors = [t for ref in self._made if (t := ref()) is not None]
        return [t for t in tensors if not is_traced(t) and _is_of_jax_trace(t)]


def _is_of_jax_trace(tensor: Any) -> bool:
    # by its storage: to read a view here would put an operation on its values, whose trace is over, into another trace
    return isinstance(view_of(tensor).storage.root.array, jax.core.Tracer)


@contextlib.contextmanager
def none_kept() -> Iterator[None]:
    """A context for a JAX trace, after which writes to tensors from outside are undone.

    Raises:
        UnsupportedInputError: there was such a write, or a tensor made in the context is kept after it.
    """
    if any(isinstance(w, _Watch) for w in observers()):  # only in the outermost trace
        yield
        return
    watch = _Watch()
    try:
        with observed_by(watch):
            yield
    finally:
        written = watch.restore()
    _refuse_written(written)
    _refuse_kept(watch)


def _refuse_written(storages: list[weakref.ref[Storage]]) -> None:
    if not any(s() is not None for s in storages):
        return
    gc.collect()
    if any(s() is not None for s in storages):
        raise UnsupportedInputError(
            "a torch function that JAX traces", "one that writes to a tensor that is not an argument",
            "one that takes the tensor as an argument and returns its new value; as_jax(module, mutable=True) returns"
            " the buffers of a module",
        )  # fmt: skip


def _refuse_kept(watch: _Watch) -> None:
    if not watch.alive():
        return
    gc.collect()
    recompute(watch.alive())
    if _first_place(watch.alive()) is None:
        return
    gc.collect()  # what a finalizer has used outlives the collection that runs it
    found = _first_place(watch.alive())
    if found is not None:
        shape, place = found
        raise UnsupportedInputError(
            "a torch function that JAX traces", f"one that keeps a tensor of shape {shape} after the call, {place}",
            "one that returns it: tensors that JAX traces have no values outside of the function",
        )  # fmt: skip


def _first_place(alive: list[torch.Tensor]) -> tuple[tuple[int, ...], str] | None:
    """The shape of the first tensor that something keeps, and the place; None if all are torch's own, or in calls."""
    for tensor in alive:
        for holder in gc.get_referrers(tensor):
            place = None if holder is alive else _name_of(holder, tensor)
            if place is not None:
                return tuple(tensor.shape), place
    return None


def _name_of(holder: Any, tensor: Any) -> str | None:
    """The place where a holder keeps a tensor, for an error message; None for torch's own, and for running calls."""
    if isinstance(holder, types.CellType):
        return "in a variable of an outer function"
    if isinstance(holder, list | set | tuple):
        place = ""
        for owner in gc.get_referrers(holder):  # no generator, whose cells would hold it, too
            if not place and not isinstance(owner, list | set | tuple):
                place = _name_of(owner, holder) or ""
        return f"in a {type(holder).__name__} {place}".rstrip()
    if isinstance(holder, dict):
        key = next((k for k, v in holder.items() if v is tensor), None)
        owner = next((type(o).__name__ for o in gc.get_referrers(holder) if getattr(o, "__dict__", None) is holder), "")
        if owner.endswith("Backward"):  # the context of an autograd.Function, which its graph owns
            return None
        return f"as {key!r} of a {owner}" if owner else f"as {key!r} in a dict"
    if isinstance(holder, torch.autograd.function.FunctionCtx | types.FrameType) or not hasattr(holder, "__dict__"):
        return None
    key = next((k for k, v in vars(holder).items() if v is tensor), None)
    return None if key is None else f"as {key!r} of a {type(holder).__name__}"
