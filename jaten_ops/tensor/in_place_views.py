"""In-place views, such as `t_` and `squeeze_`, of tensors that autograd has recorded.

When a tensor is written to, or its place in memory changes, torch records its views anew: on other devices by their
strides, but of a subclass by calling their view operators again, on a base that has other sizes by then. So the object
becomes a view of the tensor as it was, which stays the base of all others.

Under `torch.no_grad` ATen's autograd does not see the change, and gradients of the tensor as it is now become those of
the tensor as it was, without being moved. Its views, which lie where they did in memory, follow. A view of another
tensor is found in its base again, as if the change had been seen.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..arrays.attributes import attributes_of, give, with_items
from ..tracing import opaque
from .operand_values import is_traced
from .tensor import Tensor

VIEWS = ("as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")


def _method(name: str) -> Any:
    view, in_place = getattr(torch.Tensor, name), getattr(torch.Tensor, f"{name}_")
    by_place = name == "as_strided"  # of memory, whose other elements have gradients, too

    @functools.wraps(in_place, ("__name__", "__doc__"))
    def method(self: Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not self.requires_grad or self.is_leaf or is_traced(self) or torch.is_inference_mode_enabled():
            return in_place(self, *args, **kwargs)  # type: ignore[no-any-return]  # it is a method of torch's
        base = self._base if by_place and self._base is not None else self
        if torch.is_grad_enabled():
            if _is_of_leaf(self):
                return in_place(self, *args, **kwargs)  # type: ignore[no-any-return]  # as above; it raises
        elif self._base is None and by_place:
            return in_place(self, *args, **kwargs)  # type: ignore[no-any-return]  # as above
        else:
            _Unseen.note(self, lambda gradient: view(gradient, *args, **kwargs))
        with torch.enable_grad():
            new = view(base, *args, **kwargs)
        if self._base is None:
            _NO_VIEWS[self] = None
        _become(self, new)
        return self

    return opaque(method)


_NO_VIEWS = WeakIdKeyDictionary()
"""Tensors that are views only because they were changed."""


def _become(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Makes the object of a tensor stand for another, which gets its place."""
    held, items = attributes_of(tensor), attributes_of(new)
    torch._C._swap_tensor_impl(tensor, new)
    give(tensor, with_items(items, held))
    give(new, held)


@opaque
@functools.wraps(torch.Tensor.detach_, ("__name__", "__doc__"))
def _detach_(self: Tensor) -> torch.Tensor:
    if self._base is None or is_traced(self) or self not in _NO_VIEWS:
        return torch.Tensor.detach_(self)
    _become(self, self.detach())
    return self


class _Unseen(torch.autograd.Function):
    """The tensor itself, of which gradients reach what made it in the shape that it gets by changes."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.of, ctx.changes = weakref.ref(tensor), []
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return functools.reduce(lambda g, change: change(g), ctx.changes, gradient)

    @classmethod
    def note(cls, tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Adds a change to those of a tensor that is no view, but for what it has become by others."""
        if tensor._base is None:
            with torch.enable_grad():
                cls.apply(tensor)
        node: Any = (tensor if tensor._base is None else tensor._base).grad_fn
        if getattr(node, "of", lambda: None)() is tensor:
            node.changes.append(change)


def _is_of_leaf(tensor: torch.Tensor) -> bool:
    return tensor._base is not None and tensor._base.is_leaf


Tensor.detach_ = _detach_  # type: ignore[assignment]  # what torch refuses to detach is a view for torch alone
for _name in VIEWS:
    setattr(Tensor, f"{_name}_", _method(_name))
