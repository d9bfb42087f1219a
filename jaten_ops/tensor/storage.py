"""`untyped_storage()` on the device `jax`, and `torch.load(map_location="jax")`.

Code that checks whether tensors share memory, as for checkpoints and tied weights, compares storages. Here tensors that
share memory have the same storage object, with a unique number in place of an address. The memory itself is JAX's, and
not accessible through it.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from ..arrays import bridge, partitioned
from ..arrays.storage_views import Storage, View
from ..arrays.strides import row_major
from ..arrays.view_ops import with_bits_cast
from ..device.placement import index_of, of_array, put_on
from ..errors import UnsupportedInputError
from ..tracing import opaque, opaque_methods

_DEVICE = "jax"
_numbers = itertools.count(1)


@opaque_methods
class TracedStorage(torch.UntypedStorage):
    """The storage of a traced tensor: it holds nothing, whatever its size."""

    def resize_(self, size: int) -> TracedStorage:  # type: ignore[override]  # torch's returns nothing for its checker
        """Does nothing. Dynamo calls it for the storage of an empty tensor."""
        return self


@opaque_methods
class JaxStorage(torch.UntypedStorage):
    """The storage of tensors on the device `jax`.

    Attributes:
        arrays: the storage of arrays that the tensors share; None if it holds bytes, as from `torch.load`, that no
            tensor has read yet.
    """

    arrays: Storage | None
    _number: int
    _index: int

    @staticmethod
    def __new__(cls, size: Any = 0, *, device: Any = None) -> JaxStorage:
        self = super().__new__(cls, size)  # type: ignore[call-arg]  # torch's stub lacks it
        self.arrays, self._number, self._index = None, next(_numbers), index_of(device)
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's is not declared as a property
        return torch.device(_DEVICE, self._index) if self.arrays is None else of_array(self.arrays.array)

    def data_ptr(self) -> int:
        """A unique number in place of an address; the next storage's is further away than the size of any tensor."""
        return self._number << 48

    def nbytes(self) -> int:
        return super().nbytes() if self.arrays is None else int(self.arrays.array.nbytes)

    size = nbytes

    def __len__(self) -> int:
        return self.nbytes()

    def cpu(self) -> torch.UntypedStorage:
        """A copy of the bytes in torch's memory."""
        if self.arrays is None:
            return torch.UntypedStorage(super().nbytes()).copy_(self)
        array = self.arrays.array
        if partitioned.is_partitioned(array) and not (array.is_fully_addressable or array.is_fully_replicated):
            raise UnsupportedInputError(  # it would wait for the others, of which often only one saves
                "torch.save", "a tensor over several processes",
                "its full_tensor().cpu(), which all processes call, or torch.distributed.checkpoint.save",
            )  # fmt: skip
        return bridge.to_host(array).clone().untyped_storage()

    def _changed(self, change: Callable[[torch.UntypedStorage], Any]) -> JaxStorage:
        """Changes the bytes of the storage, which its tensors see, and returns it."""
        changed = self.cpu()
        change(changed)
        if self.arrays is None:
            super().copy_(changed)
        else:
            old = self.arrays.array
            self.arrays.put(_array(changed, bridge.TORCH_DTYPES[old.dtype], self.device).reshape(old.shape))
        return self

    def __getitem__(self, index: Any) -> Any:
        return self.cpu()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._changed(lambda held: held.__setitem__(index, value))

    def fill_(self, value: int) -> JaxStorage:
        return self._changed(lambda held: held.fill_(value))  # type: ignore[attr-defined]  # torch's stub lacks it

    def copy_(self, source: Any, non_blocking: bool | None = None) -> JaxStorage:  # type: ignore[override]  # of any kind
        held = source.cpu()
        return self._changed(lambda own: own.copy_(held))

    def resize_(self, size: int) -> JaxStorage:  # type: ignore[override]  # torch's returns nothing for its checker
        """Changes the number of bytes, as FSDP does to free parameters and to get memory for them again."""
        if self.arrays is None:
            self.arrays = Storage(_array(self.cpu(), torch.uint8, self.device))
            self.arrays.handle = self
        itemsize = self.arrays.array.dtype.itemsize
        if size % itemsize:
            raise RuntimeError(f"resize_: {size} bytes of a storage of elements of {itemsize} bytes on the device jax")
        self.arrays.resize(size // itemsize)
        return self

    def share_memory_(self) -> Any:
        raise RuntimeError(
            "share_memory_: processes cannot share memory on the device jax. Fix: move the tensor to the CPU"
        )

    def clone(self) -> JaxStorage:
        if self.arrays is None:
            return JaxStorage(self.nbytes(), device=self.device).copy_(self)
        return _handle_of(Storage(self.arrays.array))

    def __deepcopy__(self, memo: dict[int, Any]) -> JaxStorage:
        """A copy, shared by the copies of the tensors that share this one."""
        if self.arrays is None:
            return memo.setdefault(id(self), self.clone())
        return _handle_of(copy.deepcopy(self.arrays, memo))

    def new(self) -> JaxStorage:
        return JaxStorage(device=self.device)

    def is_shared(self) -> bool:
        """False: processes share no memory on the device."""
        return False

    def to(self, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
        where = torch.device(device)
        if where.type != _DEVICE:
            return self.cpu().to(device=where, non_blocking=non_blocking)
        if where == self.device or where.index is None:
            return self
        return _from_bytes(self.cpu(), str(where))

    def _byteswap(self, size: int) -> None:
        self._changed(lambda held: held._byteswap(size))  # type: ignore[attr-defined]  # torch's stub lacks it

    def _write_file(self, *args: Any) -> None:
        self.cpu()._write_file(*args)

    def _set_from_file(self, *args: Any) -> None:
        self._changed(lambda held: held._set_from_file(*args))

    def __reduce__(self) -> Any:
        # not a tensor: torch would share its memory with a process that may start after this copy is freed
        return _unpickled, (torch.empty(0, dtype=torch.uint8).set_(self.cpu()).numpy(), str(self.device))


def _unpickled(held: np.ndarray, location: str) -> JaxStorage:
    return _from_bytes(torch.from_numpy(held).untyped_storage(), location)


def _from_bytes(held: torch.UntypedStorage, location: str) -> JaxStorage:
    return JaxStorage(held.nbytes(), device=location).copy_(held)


def _array(held: torch.UntypedStorage, dtype: torch.dtype, device: torch.device) -> jax.Array:
    """The bytes in torch's memory as a flat array on a device; a copy."""
    return put_on(bridge.borrow(torch.empty(0, dtype=dtype).set_(held).clone()), device)


def storage_of(view: View) -> JaxStorage:
    """The storage of a view; the same object for all views that share memory."""
    return _handle_of(view.storage.root)


def _handle_of(root: Storage) -> JaxStorage:
    if root.handle is None:
        # a torch storage on the device, for C++ code such as `torch.tensor(storage)`
        handle: Any = torch._C._acc.create_empty_tensor((0,), torch.uint8).untyped_storage()
        handle.__class__ = JaxStorage
        handle.arrays, handle._number, handle._index = root, next(_numbers), 0
        root.handle = handle
    return root.handle


def typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    """A storage in the form for torch's older functions."""

    def new_shared(size: int, *, device: Any = None) -> torch.TypedStorage:  # for a batch in a DataLoader's worker
        return typed(JaxStorage(size * dtype.itemsize, device=storage.device), dtype)

    found = torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
    # torch's own function needs an allocator in C++, and supports only one class of storages
    vars(found).update(_new_shared=new_shared, _new_wrapped_storage=lambda storage: typed(storage, dtype))
    return found


def pickled(view: View, dtype: torch.dtype, requires_grad: bool, state: dict[str, Any], cls: type) -> tuple[Any, ...]:
    """The pickled form of a tensor, made of the functions that torch uses for its own tensors.

    Args:
        view, dtype, requires_grad: of the tensor.
        state: its attributes.
        cls: what it becomes when it is loaded.
    """
    if not isinstance(view.storage, Storage):  # reinterpreted values
        view = View.whole(view.read())
    new = dtype in torch.storage._new_dtypes()  # these dtypes have no class of storages
    held = typed(storage_of(view), torch.uint8 if new else dtype)
    hooks: OrderedDict[Any, Any] = OrderedDict()
    rebuild: Any = torch._utils._rebuild_tensor_v3 if new else torch._utils._rebuild_tensor_v2
    geometry = view.offset, view.shape, view.strides()
    args = (held, *geometry, requires_grad, hooks, *([dtype] if new else []))
    if not state and cls is torch.Tensor:
        return rebuild, args
    return torch._tensor._rebuild_from_type_v2, (rebuild, cls, args, state)


def view_in(
    source: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> View:
    """A view of elements of a storage: one of the device, or, by a copy, one on the CPU."""
    if not isinstance(source, JaxStorage):
        raise RuntimeError(
            f"set_: a storage on {source.device}, a tensor on {_DEVICE}; move the former's with .to('jax')"
        )
    if source.arrays is None:
        source.arrays = Storage(_array(source.cpu(), dtype, source.device))
        source.arrays.handle = source
    held = bridge.TORCH_DTYPES[source.arrays.array.dtype]
    return View(with_bits_cast(source.arrays, held, dtype), shape, stride, offset)


@opaque
def _tag(storage: Any) -> str | None:
    return str(storage.device) if isinstance(storage, JaxStorage) else None


@opaque
def _restore(storage: Any, location: str) -> Any:
    """The bytes that `torch.load` has read, as a storage of the device."""
    if location.partition(":")[0] != _DEVICE:
        return None
    if isinstance(storage, JaxStorage) and (storage.device == torch.device(location) or ":" not in location):
        return storage
    return _from_bytes(storage, location)


def register_location() -> None:
    """Lets torch.load find the device before its rule for devices with an allocator."""
    torch.serialization.register_package(9, _tag, _restore)


def all_elements(source: torch.UntypedStorage, dtype: torch.dtype) -> View:
    """All elements of a storage."""
    shape = (source.nbytes() // dtype.itemsize,)
    return view_in(source, dtype, 0, shape, row_major(shape))
