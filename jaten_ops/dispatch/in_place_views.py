"""In-place view operators on the device `jax`, such as `t_`, of tensors that autograd records.

A tensor of the device is of a subclass, and autograd makes the gradient function of a view of one anew, after a write,
by calling the view operator on the base again. That gives another view once an in-place view operator has changed the
base: after `v = y[0]; y.t_()` the gradient through `v` would go to the first column. (Of tensors of C++ it asks for
the elements by `as_strided`.) So `y` becomes a view here, in whose base all keeps the sizes that it was made with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..arrays import attributes, view_ops
from ..arrays.attributes import attributes_of, give, with_items
from ..arrays.storage_views import Storage, View
from ..errors import UnsupportedInputError
from ..schema import VARIANTS
from ..tensor.tensor import Tensor
from ..tracing import opaque
from .functional import aten_op


def overloads() -> list[str]:
    """The in-place overloads that give a tensor another view of its elements."""
    names = (name for name, spec in VARIANTS.items() if "inplace_view" in spec.tags and name != "detach_")
    return sorted(name for name in names if view_ops.is_view(aten_op(VARIANTS[name].base)))


def _owners(storage: Any) -> int:
    return sys.getrefcount(storage)


def _count() -> int:
    place = View(Storage(object()), (), None, 0)  # type: ignore[arg-type]  # only its references are counted
    return _owners(place.storage)


_ONE_OWNER = _count()


def _is_seen(tensor: torch.Tensor) -> bool:
    """True if a tensor with a gradient function is a view, or may have some, and ATen lets it be changed in place."""
    place = attributes.place_of(tensor)
    if type(place) is not View:  # nobody has asked where it lies, or torch captures it
        return False
    if not tensor._is_view():
        return _owners(place.storage) > _ONE_OWNER
    made = torch._C._autograd._get_creation_meta(tensor)  # type: ignore[attr-defined]  # torch's stub lacks it
    base = tensor._base
    return base is not None and not base.is_leaf and made == torch._C._autograd.CreationMeta.DEFAULT  # type: ignore[attr-defined]  # torch's stub lacks it


def _become(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Gives an object the C++ tensor of another one, and that one its own: what autograd has recorded keeps that."""
    own, other = attributes_of(tensor), attributes_of(new)
    torch._C._swap_tensor_impl(tensor, new)
    give(tensor, with_items(other, own))
    give(new, with_items(own, {}))
    torch.autograd.graph.increment_version(tensor)


def of_recorded(overload: str, autograd: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a set of dispatch keys and an in-place view operator's arguments, to stand above autograd.

    Args:
        overload: the operator.
        autograd: torch's own, of the same arguments.
    """
    view_op = aten_op(VARIANTS[overload].base)

    @opaque
    def call(keys: Any, tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        is_recorded = tensor.requires_grad and torch.is_grad_enabled() and not tensor.is_leaf
        if not is_recorded or not isinstance(tensor, Tensor) or not _is_seen(tensor):
            return autograd(keys, tensor, *args)  # type: ignore[no-any-return]  # it is Any
        if tensor.retains_grad:  # torch lets no other object have its C++ tensor
            raise UnsupportedInputError(
                f"aten::{overload}", "a tensor with views, of which retain_grad() was called",
                "the function without the underscore, as in y = y.t()",
            )  # fmt: skip
        _become(tensor, view_op(tensor, *args))
        return tensor

    return call
