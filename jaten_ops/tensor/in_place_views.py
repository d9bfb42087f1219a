"""In-place views, such as `t_` and `squeeze_`, of tensors that autograd has recorded.

When a tensor is written to, or its place in memory changes, torch records its views anew: on other devices by their
strides, but of a subclass by calling their view operators again, on a base that has other sizes by then. So the object
becomes a view of the tensor as it was, which stays the base of all others.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

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
        if not self.requires_grad or not torch.is_grad_enabled() or is_traced(self) or _is_refused(self):
            return in_place(self, *args, **kwargs)  # type: ignore[no-any-return]  # it is a method of torch's
        base = self._base if by_place and self._base is not None else self
        new = view(base, *args, **kwargs)
        held, items = attributes_of(self), attributes_of(new)
        torch._C._swap_tensor_impl(self, new)
        give(self, with_items(items, held))
        give(new, held)
        return self

    return opaque(method)


def _is_refused(tensor: torch.Tensor) -> bool:
    """True for a leaf and for a view of one."""
    return tensor.is_leaf or (tensor._base is not None and tensor._base.is_leaf)


for _name in VIEWS:
    setattr(Tensor, f"{_name}_", _method(_name))
