"""Views and mutation on the device `jax`: tensors that share a storage, whose array is replaced at each write.

A `jax.Array` never changes. What torch calls memory is here a `Storage`, which holds the newest array; a `View` says
how one tensor lies in it (sizes, strides and offset in elements, as in torch), and keeps the values that it has read
until the storage is written to. So a write through any view is seen by all, and reading twice costs nothing.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from ..errors import MissingValuesError, UnsupportedInputError
from ..xla.x64 import Enabled
from . import partitioned
from .abstract_arrays import is_abstract
from .observers import OBSERVERS, written
from .strided_elements import put_elements, reshaped, take_elements, transposed
from .strides import Shape, extent, is_row_major, order_of, row_major


class Storage:
    """The values that one or more tensors share.

    Attributes:
        array: the values, of any shape: their order is row-major.
        version: a number that changes whenever the values are replaced, in any thread.
        handle: the result of `untyped_storage()`, if it was called.
        is_freed: whether its memory is freed at times, as FSDP does: views keep none of it beside the array.
    """

    __slots__ = ("__weakref__", "array", "handle", "is_freed", "version")

    def __init__(self, array: jax.Array) -> None:
        self.array = array
        self.version = 0
        self.handle: Any = None
        self.is_freed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Storage:
        return Storage(self.array)  # a root never changes

    @property
    def root(self) -> Storage:
        return self

    def put(self, array: jax.Array) -> int:
        """Replaces the values, which stay on the devices that have them; returns their version."""
        if OBSERVERS:
            written(self)
        if partitioned.MET:
            array = partitioned.kept_in_place(array, self.array)
        self.array = array  # first, so that a reader of the old version reads again
        self.version = version = next(_VERSIONS)
        return version

    def resize(self, size: int) -> None:
        """Changes the number of elements: the first ones stay, new ones are 0. Without any its memory is free."""
        self.is_freed = True
        with Enabled():
            flat = self.array.reshape(-1)
            self.put(flat[:size] if size <= flat.size else jnp.pad(flat, (0, size - flat.size)))

    def move(self, array: jax.Array) -> None:
        """Replaces the array by one with the same values on other devices."""
        self.array = array
        self.version = next(_VERSIONS)


class _Tracing:
    """A trace of what a thread computes of a storage's values.

    Attributes:
        array: the traced array, which only that thread may have.
    """

    def __init__(self, array: jax.Array) -> None:
        self.thread, self.array, self.ended = threading.get_ident(), array, threading.Event()


class InTrace(Storage):
    """A storage in one thread's trace, whose array other threads get when the trace has ended: they wait for it.

    Views keep no values of it: those would be traced ones.
    """

    __slots__ = ()

    @property
    def array(self) -> jax.Array:  # type: ignore[override]  # a slot of the base
        found = _slot.__get__(self)
        if type(found) is not _Tracing:  # the trace has just ended
            return found  # type: ignore[no-any-return]  # so it is an array
        if found.thread == threading.get_ident():
            return found.array
        if not found.ended.wait(_PATIENCE):
            raise UnsupportedInputError(
                "a tensor of a step that another thread traces", "a call that uses it in the meantime",
                "one before or after; a step itself does not compute in threads",
            )  # fmt: skip
        return self.array

    @array.setter
    def array(self, new: jax.Array) -> None:
        found = _slot.__get__(self)
        if type(found) is _Tracing and found.thread == threading.get_ident():
            found.array = new
        else:
            self.array  # noqa: B018  # waits for the end
            _slot.__set__(self, new)

    @property
    def is_freed(self) -> bool:  # type: ignore[override]  # a slot of the base
        return True

    @is_freed.setter
    def is_freed(self, new: bool) -> None:
        _freed.__set__(self, new)


_slot, _freed = (vars(Storage)[name] for name in ("array", "is_freed"))
_PATIENCE = 60.0
"""Seconds for which a thread waits for another one's trace, which may itself wait for this thread."""


def begin_trace(storage: Storage, traced: jax.Array) -> None:
    """Gives this thread a traced array in place of a storage's values, until `end_trace`."""
    if type(storage) is Storage:
        array = storage.array
        storage.__class__ = InTrace
        _slot.__set__(storage, _Tracing(array))
    storage.put(traced)


def end_trace(storage: Storage, array: jax.Array) -> None:
    """Gives a storage its values back."""
    storage.put(array)
    found: Any = storage
    if type(found) is InTrace:
        tracing = _slot.__get__(storage)
        _slot.__set__(storage, array)
        storage.__class__ = Storage
        tracing.ended.set()


_VERSIONS = itertools.count(1)
_LOCKS = tuple([threading.RLock() for _ in range(16)])
"""The locks of all storages, each of some of them."""


# How often Python counts an array that has one owner, asked as the functions below ask. They call `getrefcount` with a
# variable of their own: what is handed to a function in Python is counted once more as long as Dynamo watches frames.


def may_give(storage: Storage) -> bool:
    """True if a storage holds the only reference to its array."""
    array = storage.array
    return sys.getrefcount(array) <= _OF_ONE_OWNER


def owned(holder: Storage | View) -> jax.Array:
    """A storage's or a view's array, to be donated to an executable: a copy if others hold it, too."""
    array = holder.array if isinstance(holder, Storage) else holder.read()
    if sys.getrefcount(array) <= _OF_ONE_OWNER:
        return array
    with Enabled():
        return array.copy()


def owned_arrays(storages: Sequence[Storage]) -> list[jax.Array]:
    """Storages' arrays as `owned` gives them, in less time."""
    found = []
    for storage in storages:
        array = storage.array
        if sys.getrefcount(array) > _OF_ONE_OWNER:
            with Enabled():
                array = array.copy()
        found.append(array)
    return found


def put_all(storages: Sequence[Storage], arrays: Sequence[jax.Array]) -> None:
    """Replaces the values of storages, as `Storage.put` does, in less time."""
    is_seen = OBSERVERS or partitioned.MET
    for storage, array in zip(storages, arrays, strict=True):
        if is_seen:
            storage.put(array)
        else:
            storage.array = array
            storage.version = next(_VERSIONS)


def _count() -> int:
    storage: Any = Storage(object())  # type: ignore[arg-type]  # only its references are counted
    array = storage.array
    return sys.getrefcount(array)


_OF_ONE_OWNER = _count()


class Lens:
    """A storage seen as elements of another type, or conjugated: `view_as_real`, `view.dtype`, `_conj`, `_neg_view`.

    Args:
        storage: the storage that is reinterpreted.
        get: converts the storage's array to the elements seen.
        put: the inverse.
    """

    __slots__ = ("_array", "_put", "_seen", "_storage", "get")

    def __init__(self, storage: AnyStorage, get: Callable[..., jax.Array], put: Callable[..., jax.Array]) -> None:
        self._storage, self.get, self._put = storage, get, put
        self._array: jax.Array | None = None
        self._seen = -1

    def __deepcopy__(self, memo: dict[int, Any]) -> AnyStorage:
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


def lock_of(storage: AnyStorage) -> threading.RLock:
    """The lock of a write to some elements, which makes a new array of all: threads may write to others meanwhile."""
    return _LOCKS[id(storage.root) // 64 % len(_LOCKS)]


class View:
    """A tensor's part of a storage: its shape, strides and offset.

    Attributes:
        storage: the storage, which other tensors may share.
        shape, stride, offset: in elements.
    """

    __slots__ = ("_array", "_row_major", "_seen", "offset", "shape", "storage", "stride")
    stride: Shape | None  # None for contiguous strides, which are made when they are first needed

    def __init__(self, storage: AnyStorage, shape: Shape, stride: Shape | None, offset: int) -> None:
        self.storage, self.shape, self.stride, self.offset = storage, shape, stride, offset
        self._row_major: bool | None = True if stride is None else None  # None if not yet asked
        self._array: jax.Array | None = None
        self._seen = -1

    @classmethod
    def whole(cls, array: jax.Array) -> View:
        """A view of all of a new storage."""
        self = cls.__new__(cls)
        self.storage = Storage(array)
        self.shape, self.stride, self.offset = array.shape, None, 0
        self._row_major, self._array, self._seen = True, None, 0
        return self

    @classmethod
    def laid_out(cls, array: jax.Array, stride: Shape) -> View:
        """A view of a new storage with dense strides that are not contiguous, such as channels-last."""
        if is_row_major(array.shape, stride):
            self = cls.whole(array)
            self.stride = stride  # of dimensions of one element, and of tensors of none, it may be any
            return self
        order = sorted(range(array.ndim), key=lambda i: -stride[i])
        with Enabled():
            return cls(Storage(transposed(array, tuple(order))), array.shape, stride, 0)

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

    def is_plain(self) -> bool:
        """True if the strides are those of a new tensor: a contiguous one of one element or none may have others."""
        return self.stride is None or self.stride == row_major(self.shape)

    def is_whole(self, array: jax.Array) -> bool:
        """True if the view is contiguous, and has all of its storage's array, in its shape."""
        return self.is_row_major() and not self.offset and array.shape == self.shape

    def read(self) -> jax.Array:
        """The values, in the tensor's shape."""
        storage = self.storage
        version = storage.version  # read before the values, which another thread may replace
        if self._seen != version:
            array = storage.array
            with Enabled():
                values = self._gather(array)
            if storage.root.is_freed:
                self._array = None
                return values
            # a cached full view would keep the old array alive after the storage has got another
            self._array = None if values is array else values
            self._seen = version
        return storage.array if self._array is None else self._array

    def order(self) -> Shape | None:
        """The order of the dimensions of the storage's array, if that is all of the tensor and it is not row-major."""
        found = None if self.stride is None or self.offset else order_of(self.shape, self.stride)
        whole = found is not None and self.storage.array.shape == tuple(self.shape[d] for d in found)
        return found if whole else None

    def in_order(self, order: Shape, stride: Shape) -> jax.Array:
        """The values with dimensions in an order, whose strides are given; not copied if they have these strides."""
        array = self.storage.array
        if self.stride == stride and not self.offset and array.shape == tuple([self.shape[d] for d in order]):
            return array
        with Enabled():
            return transposed(self.read(), order)

    def write(self, array: jax.Array) -> None:
        """Writes new values, of the tensor's shape and dtype, which all tensors of the storage see."""
        storage = self.storage
        if self._covers(storage.array):
            version = storage.put(array)
            self._array = None if isinstance(storage, Storage) else array
        else:
            with lock_of(storage), Enabled():
                version = storage.put(self._scatter(storage.array, array))
            if storage.root.is_freed:
                self._array = None
                return
            self._array = array
        self._seen = version

    def replace(self, array: jax.Array) -> None:
        """Writes new values, in less time than `write`, to a view that is all of its storage in the storage's shape."""
        storage: Storage = self.storage  # type: ignore[assignment]  # the caller has looked
        self._seen = storage.put(array)
        self._array = None

    def _covers(self, array: jax.Array) -> bool:
        """True if it has all of the storage's elements in their order."""
        if not self.is_row_major():
            return False
        return array.shape == self.shape or (self.offset == 0 and array.size == math.prod(self.shape))

    def _gather(self, array: jax.Array) -> jax.Array:
        if self._covers(array):
            return array if array.shape == self.shape else reshaped(array, self.shape)
        if not array.size and 0 not in self.shape:
            raise RuntimeError(f"a tensor of shape {self.shape} whose memory is freed: its storage was resized to 0")
        return take_elements(array, self.offset, self.shape, self.strides())

    def _scatter(self, array: jax.Array, values: jax.Array) -> jax.Array:
        if partitioned.MET:
            array, values = partitioned.together(array, values)
        return put_elements(array, values, self.offset, self.strides())


def onto_one_mesh(roots: Sequence[Storage], mesh: Sharding | None = None) -> Sharding | None:
    """Moves storages of one device to the mesh over which others are partitioned; they stay there for later calls.

    Args:
        roots: the storages.
        mesh: a sharding over the mesh of the program that takes them, if none of them needs to be partitioned.

    Returns:
        The sharding of one that was partitioned before; None if none was.

    Raises:
        RuntimeError: storages are on two meshes, or on another device than those of the mesh.
    """
    arrays = [root.array for root in roots]
    mesh = partitioned.common_sharding(arrays) or mesh
    if mesh is None:
        return None
    for root in roots:
        if isinstance(root.array, jax.core.Tracer) or partitioned.is_partitioned(root.array):
            continue
        if is_abstract(mesh):
            raise MissingValuesError
        if root.array.sharding.device_set != {partitioned.first_device(mesh)}:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {root.array.sharding}"
                f" and {mesh}! (move one with jaten_ops.distributed.distribute_tensor(...))"
            )
        root.move(partitioned.beside(root.array, arrays, mesh))
    return mesh


def resized(view: View, shape: Shape, stride: Shape, value: Any = 0) -> View:
    """The view after `resize_`: the same storage, extended if needed, filled with a value."""
    needed = view.offset + extent(shape, stride) if 0 not in shape else 0
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
        return one.storage.root is other.storage.root  # one of them is a view with another dtype
    if 0 in one.shape or 0 in other.shape:
        return False
    return one.offset <= _last(other) and other.offset <= _last(one)


def _last(view: View) -> int:
    return view.offset + extent(view.shape, view.strides()) - 1
