"""What `untyped_storage()` is on the device `jax`, and `torch.load(map_location="jax")`.

Code that asks whether tensors share memory, as checkpoints and tied weights need it, compares storages: those of
tensors that share are one object here, with a number of its own for an address. The memory is JAX's, and not to be had
by it.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from . import bridge
from .aliasing import Storage, View, row_major
from .view_ops import with_bits_cast

_DEVICE = "jax"
_numbers = itertools.count(1)


class JaxStorage(torch.UntypedStorage):
    """The storage of tensors on the device `jax`.

    Attributes:
        arrays: what the tensors share; None in one that `torch.load` has filled and no tensor has read yet.
    """

    arrays: Storage | None
    _number: int

    @staticmethod
    def __new__(cls, source: Any = 0) -> JaxStorage:
        self = super().__new__(cls, source)  # type: ignore[call-arg]  # torch's stub lacks it
        self.arrays, self._number = None, next(_numbers)
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's is not declared as a property
        return torch.device(_DEVICE, 0)

    def data_ptr(self) -> int:
        """A number that no other storage has, and no address: far enough from the next for the largest of tensors."""
        return self._number << 48

    def nbytes(self) -> int:
        return super().nbytes() if self.arrays is None else int(self.arrays.array.nbytes)

    size = nbytes

    def __len__(self) -> int:
        return self.nbytes()


def storage_of(view: View) -> JaxStorage:
    """The storage of a view; of all views that share, the same."""
    root = view.storage.root
    if root.handle is None:
        root.handle = JaxStorage()
        root.handle.arrays = root
    return root.handle


def view_in(
    source: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> View:
    """A view of the elements that lie in a storage: in one of the device, or copied out of one on the CPU."""
    if not isinstance(source, JaxStorage):
        raise RuntimeError(
            f"set_: a storage on {source.device}, a tensor on {_DEVICE}; move the former's with .to('jax')"
        )
    if source.arrays is None:
        flat = torch.empty(0, dtype=dtype).set_(source)
        source.arrays = Storage(bridge.borrow(flat.clone()))
        source.arrays.handle = source
    held = bridge.TORCH_DTYPES[source.arrays.array.dtype]
    return View(with_bits_cast(source.arrays, held, dtype), shape, stride, offset)


def _tag(storage: Any) -> str | None:
    return _DEVICE if isinstance(storage, JaxStorage) else None


def _restore(storage: Any, location: str) -> Any:
    """The bytes that `torch.load` has read, as a storage of the device."""
    if location.partition(":")[0] != _DEVICE or isinstance(storage, JaxStorage):
        return storage if isinstance(storage, JaxStorage) else None
    found = JaxStorage(storage.nbytes())
    found.copy_(storage)
    return found


def register() -> None:
    """Has torch.load know the location "jax"; before torch's own rule for PrivateUse1, which needs an allocator."""
    torch.serialization.register_package(9, _tag, _restore)


def whole(source: torch.UntypedStorage, dtype: torch.dtype) -> View:
    """All elements of a storage."""
    shape = (source.nbytes() // dtype.itemsize,)
    return view_in(source, dtype, 0, shape, row_major(shape))
