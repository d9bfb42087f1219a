"""Views and mutation on the device `jax`: tensors that share a storage, whose array is replaced at each write.

A `jax.Array` never changes. What torch calls memory is here a `Storage`, which holds the newest array; a `View` says
how one tensor lies in it (sizes, strides and offset in elements, as in torch), and keeps the values that it has read
until the storage is written to. So a write through any view is seen by all, and reading twice costs nothing.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..xla.jitted import jitted
from ..xla.x64 import Enabled

Shape = tuple[int, ...]


class Storage:
    """The values that one or more tensors share.

    Attributes:
        array: the values, of any shape: their order is row-major.
        version: another number each time that they are replaced, whichever thread does it.
        handle: what `untyped_storage()` has returned for it, if it was called.
    """

    __slots__ = ("__weakref__", "array", "handle", "version")

    def __init__(self, array: jax.Array) -> None:
        self.array = array
        self.version = 0
        self.handle: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Storage:
        return Storage(self.array)  # which never changes

    @property
    def root(self) -> Storage:
        return self

    def put(self, array: jax.Array) -> int:
        """Replaces the values; returns the version that has these."""
        if WATCHES:
            for watch in WATCHES:
                watch.written(self)
        self.array = array  # first: who has read the version before then reads again
        self.version = version = next(_VERSIONS)
        return version


_VERSIONS = itertools.count(1)


class Watch(Protocol):
    """An observer of writes to storages and of new tensors, in any thread."""

    def written(self, storage: Storage) -> None:
        """A storage is about to get another array."""

    def made(self, tensor: Any) -> None:
        """There is a new tensor of an array."""


WATCHES: tuple[Watch, ...] = ()
"""The active observers. Mostly there are none, and a call only checks for that."""


def watched(watches: tuple[Watch, ...]) -> None:
    """Sets who watches."""
    global WATCHES
    WATCHES = watches


# How often Python counts an array that has one owner, asked as the functions below ask. They call `getrefcount` with a
# variable of their own: what is handed to a function in Python is counted once more as long as Dynamo watches frames.


def may_give(storage: Storage) -> bool:
    """True if a storage holds the only reference to its array."""
    array = storage.array
    return sys.getrefcount(array) <= _OF_ONE_OWNER


def owned(holder: Storage | View) -> jax.Array:
    """A storage's or a view's array, to be given to an executable for its results: a copy if others have it, too."""
    array = holder.array if isinstance(holder, Storage) else holder.read()
    if sys.getrefcount(array) <= _OF_ONE_OWNER:
        return array
    with Enabled():
        return array.copy()


def _count() -> int:
    storage: Any = Storage(object())  # type: ignore[arg-type]  # what is counted is not looked at
    array = storage.array
    return sys.getrefcount(array)


_OF_ONE_OWNER = _count()


class Lens:
    """A storage seen as elements of another type, or conjugated: `view_as_real`, `view.dtype`, `_conj`, `_neg_view`.

    Args:
        storage: what is looked at.
        get: a storage's array to the elements seen.
        put: the inverse.
    """

    __slots__ = ("_array", "_put", "_seen", "_storage", "get")

    def __init__(self, storage: AnyStorage, get: Callable[..., jax.Array], put: Callable[..., jax.Array]) -> None:
        self._storage, self.get, self._put = storage, get, put
        self._array: jax.Array | None = None
        self._seen = -1

    def __deepcopy__(self, memo: dict[int, Any]) -> Lens:
        return Lens(copy.deepcopy(self._storage, memo), self.get, self._put)

    @property
    def root(self) -> Storage:
        return self._storage.root

    @property
    def version(self) -> int:
        return self._storage.root.version

    @property
    def array(self) -> jax.Array:
        found, version = self._array, self.version
        if found is None or self._seen != version:
            with Enabled():
                self._array = found = self.get(self._storage.array)
            self._seen = version
        return found

    def put(self, array: jax.Array) -> int:
        had, size = self._storage.array, self.array.size
        with Enabled():
            new = self._put(array)
            if array.size == size and new.size > had.size:  # the storage ends within an element
                new = new[: had.size]
            return self._storage.put(new)


AnyStorage = Storage | Lens


def row_major(shape: Shape) -> Shape:
    """The strides of a contiguous tensor, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_row_major(shape: Shape, stride: Shape) -> bool:
    """True if a tensor is contiguous; the strides of one with at most one element do not matter."""
    if 0 in shape:
        return True
    step = 1
    for size, s in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1:
            if s != step:
                return False
            step *= size
    return True


def is_dense(shape: Shape, stride: Shape) -> bool:
    """True if a tensor's elements fill a stretch of memory without gaps, in any order of its dimensions."""
    step = 1
    for s, n in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1):
        if s != step and n:
            return False
        step *= n
    return True


def order_of(shape: Shape, stride: Shape) -> Shape | None:
    """The order in which the dimensions of a dense tensor lie, the widest first; None if it is row-major or not dense.

    A dimension of one element lies anywhere: it stays where it is.
    """
    if is_row_major(shape, stride) or not is_dense(shape, stride):
        return None
    moving = iter(sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: -stride[d]))
    return tuple(d if n == 1 else next(moving) for d, n in enumerate(shape))


def strides_in(shape: Shape, order: Shape) -> Shape:
    """The strides of a dense tensor whose dimensions lie in an order."""
    along = row_major(tuple(shape[d] for d in order))
    return tuple(along[order.index(d)] for d in range(len(shape)))


class View:
    """A tensor's part of a storage: its shape, strides and offset.

    Attributes:
        storage: what it shares with other tensors.
        shape, stride, offset: in elements.
    """

    __slots__ = ("_array", "_row_major", "_seen", "offset", "shape", "storage", "stride")
    stride: Shape | None  # None for row-major ones, which are made when first asked for

    def __init__(self, storage: AnyStorage, shape: Shape, stride: Shape, offset: int) -> None:
        self.storage, self.shape, self.stride, self.offset = storage, shape, stride, offset
        self._row_major: bool | None = None  # not yet asked
        self._array: jax.Array | None = None
        self._seen = -1

    @classmethod
    def whole(cls, array: jax.Array) -> View:
        """A new storage, seen as it is."""
        self = cls.__new__(cls)
        self.storage = Storage(array)
        self.shape, self.stride, self.offset = array.shape, None, 0
        self._row_major, self._array, self._seen = True, None, 0
        return self

    @classmethod
    def laid_out(cls, array: jax.Array, stride: Shape) -> View:
        """A new storage in which an array's elements lie with dense strides, as channels-last ones."""
        if is_row_major(array.shape, stride):
            return cls.whole(array)
        order = sorted(range(array.ndim), key=lambda i: -stride[i])
        with Enabled():
            return cls(Storage(_transposed(array, tuple(order))), array.shape, stride, 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> View:
        return View(copy.deepcopy(self.storage, memo), self.shape, self.strides(), self.offset)

    def strides(self) -> Shape:
        if self.stride is None:
            self.stride = row_major(self.shape)
        return self.stride

    def is_row_major(self) -> bool:
        """True if the view is contiguous."""
        if self._row_major is None:
            self._row_major = self.stride is None or is_row_major(self.shape, self.stride)
        return self._row_major

    def read(self) -> jax.Array:
        """The values, in the tensor's shape."""
        storage = self.storage
        version = storage.version  # before the values, which another thread may replace
        if self._seen != version:
            array = storage.array
            with Enabled():
                values = self._gather(array)
            # a view of all would keep an array from being freed when the storage has got another
            self._array = None if values is array else values
            self._seen = version
        return storage.array if self._array is None else self._array

    def order(self) -> Shape | None:
        """The order of the dimensions of the storage's array, if that is all of the tensor and it is not row-major."""
        found = None if self.stride is None or self.offset else order_of(self.shape, self.stride)
        whole = found is not None and self.storage.array.shape == tuple(self.shape[d] for d in found)
        return found if whole else None

    def in_order(self, order: Shape, stride: Shape) -> jax.Array:
        """The values with the dimensions in an order, whose strides are given; as they lie, if they lie so."""
        array = self.storage.array
        if self.stride == stride and not self.offset and array.shape == tuple([self.shape[d] for d in order]):
            return array
        with Enabled():
            return _transposed(self.read(), order)

    def write(self, array: jax.Array) -> None:
        """Gives the tensor new values, of its shape and dtype, which all that share the storage see."""
        storage = self.storage
        old = storage.array
        if self._covers(old):
            version = storage.put(array)
            self._array = None if isinstance(storage, Storage) else array
        else:
            with Enabled():
                version = storage.put(self._scatter(old, array))
            self._array = array
        self._seen = version

    def _covers(self, array: jax.Array) -> bool:
        """True if it has all of the storage's elements in their order."""
        if not self.is_row_major():
            return False
        return array.shape == self.shape or (self.offset == 0 and array.size == math.prod(self.shape))

    def _gather(self, array: jax.Array) -> jax.Array:
        if self._covers(array):
            return array if array.shape == self.shape else _reshaped(array, self.shape)
        shape, stride = self.shape, self.strides()
        box = _box(array.size, self.offset, _moving(shape, stride)[1])
        if box is None:
            return _gathered(array, np.int64(self.offset), shape, stride)
        return _taken(array, box[1], box[0], shape, stride)

    def _scatter(self, array: jax.Array, values: jax.Array) -> jax.Array:
        stride = self.strides()
        box = _box(array.size, self.offset, _axes(self.shape, stride))
        if box is None:
            return _scattered(array, values, np.int64(self.offset), stride)
        if isinstance(values, jax.core.Tracer) and 2 * values.size >= array.size:
            return _replaced_mostly(array, values, box[1], box[0], stride)
        return _replaced(array, values, box[1], box[0], stride)


def resized(view: View, shape: Shape, stride: Shape, value: Any = 0) -> View:
    """The view that `resize_` leaves: the same storage, made larger if need be, with a value behind what it had."""
    needed = view.offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    array, root = view.storage.array, view.storage.root.array
    if needed * array.dtype.itemsize > root.nbytes:
        # seen as smaller elements, the storage grows by whole ones of its own; seen as larger ones, by one at least
        whole = max(1, root.dtype.itemsize // array.dtype.itemsize)
        size = max(-(-needed // whole) * whole, array.size + whole)
        with Enabled():
            view.storage.put(jnp.pad(array.reshape(-1), (0, size - array.size), constant_values=value))
    return View(view.storage, shape, stride, view.offset)


def overlap(one: View, other: View) -> bool:
    """True if two tensors may share an element; False if one begins after the other's last element."""
    if one.storage is not other.storage:
        return one.storage.root is other.storage.root  # one of them is seen as another dtype
    if 0 in one.shape or 0 in other.shape:
        return False
    return one.offset <= _last(other) and other.offset <= _last(one)


def _last(view: View) -> int:
    return view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.strides(), strict=True))


# How strided elements are taken out of an array, and put in. Where the strides nest (each a multiple of the next, and
# no smaller than what the next ones span) they are mostly a part of a box: of the array in a shape whose sides are as
# the strides. Where that box would not end with the array, by slices and reshapes of the flat array, which XLA fuses;
# where the strides do not nest, by indices.

Axis = tuple[int, int, int]  # size, stride, which dimension


def _axes(shape: Shape, stride: Shape) -> list[Axis] | None:
    """The dimensions that step through memory, the widest stride first; None if their strides do not nest."""
    axes = sorted(
        ((n, s, i) for i, (n, s) in enumerate(zip(shape, stride, strict=True)) if n != 1), key=lambda a: -a[1]
    )
    if any(s == 0 for _, s, _ in axes):
        return None
    nested = all(wide % s == 0 and (n - 1) * s < wide for (_, wide, _), (n, s, _) in itertools.pairwise(axes))
    return axes if nested else None


def _indices(shape: Shape, stride: Shape) -> np.ndarray:
    """Positions of the elements, relative to the first one."""
    parts = [
        np.arange(n, dtype=np.int64).reshape((-1,) + (1,) * (len(shape) - 1 - i)) * s
        for i, (n, s) in enumerate(zip(shape, stride, strict=True))
    ]
    return np.broadcast_to(sum(parts, np.int64(0)), shape)


def _span(axes: list[Axis]) -> int:
    return 1 + sum((n - 1) * s for n, s, _ in axes)


@functools.partial(jitted, static_argnums=(1,))
def _reshaped(array: jax.Array, shape: Shape) -> jax.Array:
    return array.reshape(shape)


@functools.partial(jitted, static_argnums=(1,))
def _transposed(array: jax.Array, order: Shape) -> jax.Array:
    return jax.lax.transpose(array, order)


def _box(size: int, offset: int, axes: list[Axis] | None) -> tuple[Shape, np.ndarray] | None:
    """The box of so many elements of which strided ones are a part: its shape, and where the part begins.

    None where strides do not nest, no box has that size, or what belongs to a row runs over the end of the box's.
    """
    if not axes or size % axes[0][1] or any(n == 0 for n, _, _ in axes):
        return None
    box, begin, wide, rest = [], [], size, offset
    for n, s, _ in axes:
        side, (at, rest) = wide // s, divmod(rest, s)
        if at + n > side:
            return None
        box.append(side)
        begin.append(at)
        wide = s
    return (*box, wide), np.array([*begin, rest], np.int64)


def _moving(shape: Shape, stride: Shape) -> tuple[list[int], list[Axis] | None]:
    """The dimensions that do not repeat what there is, in order; and, if their strides nest, from the widest on."""
    steps = [i for i, s in enumerate(stride) if s and shape[i] != 1]
    return steps, _axes(tuple([shape[i] for i in steps]), tuple([stride[i] for i in steps]))


@functools.partial(jitted, static_argnums=(2, 3, 4))
def _taken(array: jax.Array, begin: Any, box: Shape, shape: Shape, stride: Shape) -> jax.Array:
    steps, axes = _moving(shape, stride)
    assert axes is not None
    part = jax.lax.dynamic_slice(array.reshape(box), list(begin), [*(n for n, _, _ in axes), 1])
    order = [a for _, _, a in axes]
    values = jax.lax.transpose(part[..., 0], [order.index(i) for i in range(len(order))])
    return jax.lax.broadcast_in_dim(values, shape, steps)


@functools.partial(jitted, static_argnums=(3, 4))
def _replaced(array: jax.Array, values: jax.Array, begin: Any, box: Shape, stride: Shape) -> jax.Array:
    axes = _axes(values.shape, stride)
    assert axes is not None
    part = _ordered(values, axes)[..., None]
    return jax.lax.dynamic_update_slice(array.reshape(box), part, list(begin)).reshape(array.shape)


def _replaced_mostly(array: jax.Array, values: jax.Array, begin: Any, box: Shape, stride: Shape) -> jax.Array:
    """The same where most is replaced in a program that is traced: one loop, where XLA's CPU would copy first.

    Where the values are computed of a part that overlaps this one, XLA 0.10 reads in a scan what it has just written,
    if it updates.
    """
    axes = _axes(values.shape, stride)
    assert axes is not None
    part = _ordered(values, axes)[..., None]
    around = [(int(b), n - int(b) - m, 0) for b, n, m in zip(begin, box, part.shape, strict=True)]
    is_new = jax.lax.pad(np.ones(part.shape, bool), np.False_, around)
    return jax.lax.select(is_new, jax.lax.pad(part, part.dtype.type(0), around), array.reshape(box)).reshape(
        array.shape
    )


def _ordered(values: jax.Array, axes: list[Axis]) -> jax.Array:
    """Values with the dimensions that step through memory, as they do."""
    kept = [i for i, n in enumerate(values.shape) if n != 1]
    stepping = jax.lax.squeeze(values, [i for i, n in enumerate(values.shape) if n == 1])
    return jax.lax.transpose(stepping, [kept.index(a) for _, _, a in axes])


@functools.partial(jitted, static_argnums=(2, 3))
def _gathered(array: jax.Array, offset: Any, shape: Shape, stride: Shape) -> jax.Array:
    flat = array.reshape(-1)
    if 0 in shape:
        return jnp.zeros(shape, array.dtype)
    steps, axes = _moving(shape, stride)
    if axes is None:
        return flat[offset + _indices(shape, stride)]
    taken = jax.lax.dynamic_slice(flat, (offset,), (_span(axes),))
    for n, s, _ in axes:
        taken = _rows(taken, n, s)
    order = [a for _, _, a in axes]
    values = jax.lax.transpose(taken[..., 0], [order.index(i) for i in range(len(order))])
    return jax.lax.broadcast_in_dim(values, shape, steps)


def _rows(flat: jax.Array, n: int, s: int) -> jax.Array:
    """The last axis cut into n rows of s elements; what lacks is filled up with zeros."""
    lack = n * s - flat.shape[-1]
    lead = [(0, 0, 0)] * (flat.ndim - 1)
    # a negative width cuts off
    return jax.lax.pad(flat, jnp.zeros((), flat.dtype), [*lead, (0, lack, 0)]).reshape(*flat.shape[:-1], n, s)


@functools.partial(jitted, static_argnums=(3,))
def _scattered(array: jax.Array, values: jax.Array, offset: Any, stride: Shape) -> jax.Array:
    shape, flat = values.shape, array.reshape(-1)
    if 0 in shape:
        return array
    axes = _axes(shape, stride)
    if axes is None:
        return flat.at[offset + _indices(shape, stride)].set(values).reshape(array.shape)
    ordered = _ordered(values, axes)
    span = jax.lax.dynamic_slice(flat, (offset,), (_span(axes),))
    return jax.lax.dynamic_update_slice(flat, _put(span, ordered, axes), (offset,)).reshape(array.shape)


def _put(flat: jax.Array, values: jax.Array, axes: list[Axis]) -> jax.Array:
    """The last axis of `flat` with `values` where `axes` lead, the same in each row of the axes before."""
    if not axes:
        return flat.at[..., 0].set(values)
    (n, s, _), *rest = axes
    length = flat.shape[-1]
    rows = _put(_rows(flat, n, s), values, rest).reshape(*flat.shape[:-1], n * s)
    if n * s >= length:
        return rows[..., :length]
    return jnp.concatenate([rows, flat[..., n * s :]], -1)
