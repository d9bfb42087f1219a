"""The attributes of a tensor of the device `jax`, and next to them, hidden from programs, jaten's data of the tensor.

Libraries copy the attributes of one tensor to another, by `one.__dict__.update(other.__dict__)` or
`one.__dict__ = other.__dict__`, and clear them. A tensor's values are none of them. They cannot be in a slot of the
tensor itself: `module.to("jax")` makes tensors of the device of ordinary ones, which have none. So they are in slots of
the dictionary, which Python lets be of any subclass of `dict`. Dynamo knows no such dictionary: functions that read it
are `uncaptured`, which breaks the graph of a compiled function that calls one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..tracing import uncaptured
from .abstract_arrays import AbstractArray
from .storage_views import View

_attribute: Any = torch.Tensor.__dict__["__dict__"]
attributes_of: Callable[[torch.Tensor], dict[str, Any]] = _attribute.__get__
"""A tensor's attributes, even if its class overrides `__dict__`."""
_lock = threading.Lock()


class Attributes(dict[str, Any]):
    """A tensor's attributes, and jaten's data of the tensor. A copy is an ordinary dictionary of the attributes.

    Attributes:
        place: where its values are. An array, as long as nobody has asked where: the values of a tensor that shares
            them with none. None, or absent, for a tensor met while tracing.
        inner: the carrier, which AOTAutograd asks for; absent until first asked for if there are values.
        is_param: whether it is a parameter; absent for no.
    """

    __slots__ = ("inner", "is_param", "place")

    place: jax.Array | View | None
    inner: torch.Tensor
    is_param: bool

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


give: Callable[[torch.Tensor, dict[str, Any]], None] = _attribute.__set__
"""Makes a dictionary, with its data, a tensor's attributes."""


@uncaptured
def held_by(tensor: torch.Tensor) -> Attributes:
    """The mutable record of a tensor's attributes."""
    found = attributes_of(tensor)
    if type(found) is Attributes:
        return found
    held = Attributes(found)
    give(tensor, held)
    return held


def with_items(held: dict[str, Any], items: dict[str, Any]) -> dict[str, Any]:
    """Attributes, with the data of other attributes."""
    new = Attributes(items)
    for name in Attributes.__slots__:
        if hasattr(held, name):
            setattr(new, name, getattr(held, name))
    return new


@uncaptured
def place_of(tensor: torch.Tensor) -> jax.Array | View | None:
    """A tensor's values, as in `Attributes.place`; None for a tensor of another device, and for a traced one."""
    return getattr(attributes_of(tensor), "place", None)


def has_no_values(tensor: torch.Tensor) -> bool:
    """True for a tensor over a mesh that is not there."""
    place = place_of(tensor)
    return isinstance(place.storage.root.array if type(place) is View else place, AbstractArray)


@uncaptured
def view_or_none(tensor: torch.Tensor) -> View | None:
    """The view of a tensor's values, always the same one; None for a tensor of another device, and for a traced one."""
    held = attributes_of(tensor)
    place = getattr(held, "place", None)
    return place if place is None or type(place) is View else _view_in(held)


def _view_in(held: Any) -> View:
    with _lock:  # one for all threads
        if type(held.place) is not View:
            held.place = View.whole(held.place)
        return held.place


@uncaptured
def _replace(tensor: torch.Tensor, items: Any) -> None:
    if not isinstance(items, dict):
        raise TypeError(f"__dict__ must be set to a dictionary, not a '{type(items).__name__}'")
    give(tensor, with_items(attributes_of(tensor), items))


@uncaptured
def _is_param(tensor: torch.Tensor) -> bool:
    return getattr(attributes_of(tensor), "is_param", False)


@uncaptured
def _set_is_param(tensor: torch.Tensor, value: bool) -> None:
    held_by(tensor).is_param = value


IS_PARAM = property(_is_param, _set_is_param)
"""The `_is_param` of a class of tensors of the device, by which torch recognizes parameters."""
DICTIONARY = property(attributes_of, _replace)
"""The `__dict__` of a class of tensors of the device, set on each class because any of its bases may have one."""
