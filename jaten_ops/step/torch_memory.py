"""Torch's memory as storages of a step: a program reads it where it lies, and what it writes is copied there.

Tensors that overlap share a storage, as on the device, so that a write through one is seen by all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import eq, is_
from typing import Any, NamedTuple

import jax
import torch
from torch.autograd.graph import increment_version

from ..arrays import bridge
from ..arrays.storage_views import Storage, View
from ..arrays.strides import is_row_major, order_of
from ..errors import UnsupportedInputError
from ..xla import cpu_client

MOVE = "or move modules and tensors to the device with .to('jax')"
"""The advice that always helps, at the end of an error."""

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def can_be_lent(tensor: torch.Tensor) -> bool:
    """True for a tensor in torch's memory, of no subclass, that JAX can read."""
    is_plain = type(tensor) in _PLAIN and tensor.is_cpu and tensor.layout is torch.strided
    return is_plain and tensor.dtype in bridge.DTYPES and not (tensor.is_conj() or tensor.is_neg())


class Span(NamedTuple):
    """The stretch of memory from a tensor's first to its last element."""

    begin: int
    end: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Span:
        begin, size = tensor.data_ptr(), tensor.element_size()
        if tensor.is_contiguous():
            return cls(begin, begin + size * tensor.numel())
        if not tensor.numel():
            return cls(begin, begin)
        return cls(
            begin,
            begin + size * (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))),
        )


class LentStorage(Storage):
    """A stretch of torch's memory in the place of a storage.

    Args:
        alias: a contiguous tensor of it, which has the version counter of one of the tensors there.
        span: where it lies.
        others: tensors there whose version counters may be others.
        is_brief: whether it is made for one call.
    """

    __slots__ = ("_is_brief", "_lent", "alias", "exported", "others", "span")

    def __init__(
        self, alias: torch.Tensor, span: Span, others: Sequence[torch.Tensor] = (), is_brief: bool = False
    ) -> None:
        self.alias, self.span, self.others, self._is_brief = alias, span, others, is_brief
        self.exported = bridge.exporter(alias.dtype, alias.numel())
        self._lent: jax.Array | None = None
        self.handle, self.version, self.is_freed = None, 0, False

    @property
    def array(self) -> jax.Array:  # type: ignore[override]  # of a storage it is an attribute
        """The values as they are now: the memory itself, or a copy where JAX cannot read it."""
        found = self._lent
        if found is None and self._is_brief:
            self._lent = found = bridge.lend(self.alias, cpu_client.device())
        elif found is None:
            found = bridge.borrow(self.alias, cpu_client.device())
            if bridge.shares_memory(found, self.alias):
                self._lent = found
        return found


def write_lent(storages: Sequence[Any], arrays: Sequence[jax.Array]) -> None:
    """Copies new values into lent storages, which counts as an in-place operation on the tensors there."""
    if not storages:
        return
    with torch.no_grad():
        values = [s.exported(a) for s, a in zip(storages, arrays, strict=True)]
        torch._foreach_copy_([s.alias for s in storages], values)
    others = [t for s in storages for t in s.others if not t.is_inference()]
    if others:
        increment_version(others)


def lent(tensor: torch.Tensor, *, is_brief: bool = False) -> View:
    """The view of a tensor that shares its memory with none of the step's others, for one call or for several."""
    span, mine = Span.of(tensor), tensor.detach()
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    if tensor.is_contiguous():
        return View(LentStorage(mine, span, (), is_brief), shape, None if is_row_major(shape, stride) else stride, 0)
    order = order_of(shape, stride)
    if order is not None:  # dense in another order, such as channels-last
        return View(LentStorage(mine.permute(order), span, (), is_brief), shape, stride, 0)
    flat = mine.as_strided(((span.end - span.begin) // tensor.element_size(),), (1,))
    return View(LentStorage(flat, span, (), is_brief), shape, stride, 0)


def _lent_together(tensors: Sequence[torch.Tensor], span: Span) -> list[View]:
    """The views of tensors that overlap, the first of which begins where their span does."""
    first = tensors[0]
    size = first.element_size()
    starts = [t.data_ptr() - span.begin for t in tensors]
    if len({t.dtype for t in tensors}) > 1 or any(start % size for start in starts):
        raise UnsupportedInputError(
            "a step", f"tensors of {first.dtype} and of other types in the same memory", f"tensors apart, {MOVE}"
        )
    count = (span.end - span.begin) // size
    try:
        flat = first.detach() if _fills(first, count) else first.detach().as_strided((count,), (1,))
    except RuntimeError as error:  # the storage ends before: others have the rest, as of an array of NumPy
        raise UnsupportedInputError(
            "a step", "tensors that overlap and have storages of their own", f"views of one tensor, {MOVE}"
        ) from error
    storage = LentStorage(flat, span, tensors[1:])
    return [View(storage, tuple(t.shape), tuple(t.stride()), at // size) for t, at in zip(tensors, starts, strict=True)]


def _fills(tensor: torch.Tensor, count: int) -> bool:
    return tensor.numel() == count and is_row_major(tuple(tensor.shape), tuple(tensor.stride()))


class TorchMemory:
    """The places of tensors in torch's memory at one time.

    Args:
        tensors: the tensors, of which those elsewhere have no place; a list that changes with the step.
        apart: those, by `id`, that have no place either.

    Attributes:
        views: where each lies.
    """

    def __init__(self, tensors: list[torch.Tensor], apart: Collection[int]) -> None:
        self._tensors = tensors
        self.views: list[View | None] = [None] * len(tensors)
        self._types = [*map(type, tensors)]
        self._lent = [t if can_be_lent(t) else _NONE for t in tensors]
        self._addresses, self._sizes, self._strides = ([*map(ask, self._lent)] for ask in _PLACE)
        spans = {i: Span.of(t) for i, t in enumerate(tensors) if can_be_lent(t) and id(t) not in apart}
        for i in [i for i, span in spans.items() if span.begin == span.end]:
            self.views[i] = lent(tensors[i])
            del spans[i]
        for group in _overlapping(spans):
            found = [tensors[i] for i in group]
            span = Span(spans[group[0]].begin, max(spans[i].end for i in group))
            views = [lent(found[0])] if len(found) == 1 else _lent_together(found, span)
            for i, view in zip(group, views, strict=True):
                self.views[i] = view
        self._sort()

    def _sort(self) -> None:
        storages: dict[int, Any] = {id(v.storage): v.storage for v in self.views if v is not None}
        with_values = [s for s in storages.values() if s.span.begin < s.span.end]
        self._storages: list[LentStorage] = sorted(with_values, key=lambda s: s.span)
        self._begins = [s.span.begin for s in self._storages]

    def is_current(self) -> bool:
        """True if each tensor is where it was."""
        places = self._addresses, self._sizes, self._strides
        return all(map(is_, map(type, self._tensors), self._types)) and all(
            all(map(eq, map(ask, self._lent), known)) for ask, known in zip(_PLACE, places, strict=True)
        )

    def note(self, index: int, view: View | None) -> None:
        """Takes note of another tensor in a place, or of another memory of the same."""
        tensor = self._tensors[index]
        self.views[index], self._types[index] = view, type(tensor)
        self._lent[index] = lent = _NONE if view is None else tensor
        self._addresses[index], self._sizes[index], self._strides[index] = (ask(lent) for ask in _PLACE)
        self._sort()

    def beside(self, storage: LentStorage) -> Iterator[LentStorage]:
        """The storages of these that overlap with another one."""
        at = max(bisect_right(self._begins, storage.span.begin) - 1, 0)
        while at < len(self._storages) and self._begins[at] < storage.span.end:
            if _overlap(self._storages[at].span, storage.span):
                yield self._storages[at]
            at += 1


_PLACE: tuple[Callable[[torch.Tensor], Any], ...] = (torch.Tensor.data_ptr, torch.Tensor.size, torch.Tensor.stride)
_NONE = torch.empty(0)


def _overlap(one: Span, other: Span) -> bool:
    return one.begin < other.end and other.begin < one.end


def _overlapping(spans: dict[int, Span]) -> Iterator[list[int]]:
    """Groups of tensors that overlap, by their indices, each in the order of memory."""
    group: list[int] = []
    end = 0
    for i in sorted(spans, key=lambda i: (spans[i].begin, -spans[i].end)):
        if group and spans[i].begin >= end:
            yield group
            group = []
        group.append(i)
        end = max(end if len(group) > 1 else 0, spans[i].end)
    if group:
        yield group


def require_apart(written: Sequence[Any], read: Sequence[Any], others: Sequence[Any], memory: TorchMemory) -> None:
    """Raises if a program would write to memory that it also has as another operand.

    Args:
        written, read: the storages of a call.
        others: those of them that are arguments and gradients.
        memory: the memory of what the step reaches.
    """
    if not written or not others:
        return
    changed = {*map(id, written)}
    taken = changed.union(map(id, read))
    for i, one in enumerate(others):
        for two in (*memory.beside(one), *(o for o in others[:i] if _overlap(one.span, o.span))):
            if not changed.isdisjoint((id(one), id(two))) and {id(one), id(two)} <= taken:
                raise UnsupportedInputError(
                    "a step", "an argument or gradient in the memory of another tensor, one of which it writes to",
                    f"a copy of it (x.clone()), {MOVE}",
                )  # fmt: skip
