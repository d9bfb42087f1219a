"""Subclasses of `torch.Tensor` on the device: their tensors are of the user's class and of jaten's own.

Such a class equals the user's: it finds dictionary entries of the user's class, makes the same objects, and forwards
assignments to its attributes. Only `type(tensor) is cls` can tell the two apart.
"""

from __future__ import annotations

import copyreg
from typing import Any

import torch

from ..arrays.attributes import DICTIONARY
from ..errors import UnsupportedInputError
from ..tracing import opaque_methods, unwatched

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_OF_CLASSES = {"__new__", "__torch_function__", "__dict__", "__weakref__", "__module__", "__doc__"}


@opaque_methods
class OfCounterparts(type):
    """The metaclass of classes on the device that correspond to a user's class."""

    _elsewhere: type  # the user's class

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls._elsewhere

    def __hash__(cls) -> int:
        return hash(cls._elsewhere)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._elsewhere(*args, **kwargs)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(cls._elsewhere, name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(cls._elsewhere, name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._elsewhere)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._elsewhere)


def counterpart_of(cls: type, base: type) -> type:
    """The class on the device of a user's class, for pickling by the name of the user's class."""
    return _ALL[base].on_device(cls)


_ALL: dict[type, Counterparts] = {}


class Counterparts:
    """A two-way table between classes on the device and their counterparts elsewhere.

    Args:
        base: the class of plain tensors on the device.
    """

    def __init__(self, base: type) -> None:
        self._base = base
        self._pairs: dict[type, type] = {}
        self._kinds: dict[type, type] = {}
        _ALL[base] = self

    def add(self, cls: type, counterpart: type) -> None:
        """Sets the class that objects of a class have on the device, in place of a generated one."""
        self._pairs[cls] = counterpart

    def on_device(self, cls: type) -> type:
        """The class that objects of a class have on the device: a subclass of both it and the base.

        Raises:
            UnsupportedInputError: the class has a `__torch_dispatch__`, which would replace the device's operators.
        """
        if issubclass(cls, self._base):
            return cls
        found = self._pairs.get(cls)
        if found is None:
            if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]  # all have it
                got = f"a {cls.__name__}, which has a __torch_dispatch__"
                raise UnsupportedInputError(
                    "tensor", got, "its inner tensors, moved to the device, from which the subclass is built again"
                )
            found = self._pairs[cls] = _combined(cls, self._base, self)
        return found

    def kind_of(self, cls: type) -> type:
        """The metaclass of the class on the device for a class."""
        kind = type(cls)
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = type(kind.__name__, (OfCounterparts, kind), {})
            copyreg.pickle(found, lambda c: (counterpart_of, (self.elsewhere(c), self._base)))
        return found

    def elsewhere(self, cls: type) -> type | None:
        """The class that objects of a class have off the device; None for plain tensors and parameters."""
        if cls in _PLAIN or cls is self._base:
            return None
        return next((one for one, other in self._pairs.items() if other is cls), cls)


def _combined(cls: type, base: type, counterparts: Counterparts) -> type:
    function = cls.__torch_function__  # type: ignore[attr-defined]  # all have it

    @unwatched
    def __torch_function__(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(func, tuple(counterparts.elsewhere(t) or t for t in types), args, kwargs or {})

    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> torch.Tensor:
        tensor = base.__tensor_unflatten__(inner, meta, size, stride)  # type: ignore[attr-defined]  # it has one
        tensor.__class__ = combined
        return tensor

    is_asked = function is not torch._C._disabled_torch_function_impl
    members = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    members["__torch_function__"] = classmethod(__torch_function__) if is_asked else function
    if issubclass(cls, torch.nn.Parameter):  # its copies and printed forms are those of tensors in torch's memory
        above = cls.__mro__[: cls.__mro__.index(torch.nn.Parameter)]
        of_torch = vars(torch.nn.Parameter).keys() - _OF_CLASSES - {name for c in above for name in vars(c)}
        members |= {name: value for name, value in vars(base).items() if name in of_torch}
    members["__dict__"] = DICTIONARY
    members["__tensor_unflatten__"] = staticmethod(__tensor_unflatten__)
    members["_elsewhere"] = cls
    combined: type = counterparts.kind_of(cls)(cls.__name__, (cls, base), members)
    return combined
