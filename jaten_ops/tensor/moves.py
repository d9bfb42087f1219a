"""Moving a tensor onto or off the device in place, as in `module.to`.

The object stays, with its hooks and attributes, and gets another C++ tensor. torch's `.data = ` would keep the C++
tensor, which cannot become a subclass's.
"""

from __future__ import annotations

from typing import Any

import torch

from ..arrays import attributes
from ..arrays.attributes import attributes_of, give
from ..tracing import uncaptured
from .operand_values import is_traced
from .tensor import CLASSES, Tensor, become

_swap_tensors = torch.utils.swap_tensors


@uncaptured
def exchange(t1: torch.Tensor, t2: torch.Tensor) -> None:
    """`torch.utils.swap_tensors`, by which modules move parameters of a subclass.

    Leaves that move onto or off the device behave as with CUDA: they may be in a graph or be lazy, and keep their hooks
    and attributes. A graph that contains them can no longer run backward, and raises an error.
    """
    if not (isinstance(t1, Tensor) or isinstance(t2, Tensor)):
        _swap_tensors(t1, t2)
    elif not (_is_free(t1) and _is_free(t2)):
        held, its_held = attributes_of(t1), attributes_of(t2)
        _swap_tensors(t1, t2)
        give(t1, its_held)
        give(t2, held)
    elif isinstance(t1, Tensor) and isinstance(t2, Tensor) and t1.requires_grad == t2.requires_grad:
        view, dtype, grad, its_grad = t1.view_of_arrays, t1.dtype, t1.grad, t2.grad
        t1.grad = t2.grad = None
        become(t1, t2.view_of_arrays, t2.dtype)
        become(t2, view, dtype)
        t1.grad, t2.grad = its_grad, grad
    else:
        for tensor in (t1, t2):
            _refuse_backward(tensor)
        change_places(t1, t2)


def change_places(t1: torch.Tensor, t2: torch.Tensor) -> None:
    """Swaps the C++ tensors of two objects. A graph that has one of them keeps it, and is right after the next swap."""
    one, two = _taken_apart(t1), _taken_apart(t2)
    torch._C._swap_tensor_impl(t1, t2)
    _put_together(t1, one, two)
    _put_together(t2, two, one)


def _is_free(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and not is_traced(tensor)


_Parts = tuple[type, dict[str, Any], Any, Any]


def _refuse_backward(tensor: torch.Tensor) -> None:
    # a lazy module's parameter allows nothing else
    with torch._C.DisableTorchFunctionSubclass(), torch.inference_mode(False):
        if tensor.requires_grad and not tensor.is_inference():
            torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_refuse)


def _taken_apart(tensor: torch.Tensor) -> _Parts:
    return type(tensor), attributes_of(tensor), tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def _refuse(gradients: Any) -> None:
    raise RuntimeError(
        "backward: a parameter was moved to another device since this graph was made, and would not get its gradient."
        " Fix: move modules before the forward pass, or after the backward pass"
    )


def _put_together(tensor: torch.Tensor, own: _Parts, other: _Parts) -> None:
    """Sets the class of an object that has got another's C++ tensor, and registers its own hooks again."""
    cls, items, hooks, post_hooks = own
    special = CLASSES.elsewhere(cls)  # lazy parameters, and those of a user's class, stay so
    if special is None:
        tensor.__class__ = other[0]
    else:
        tensor.__class__ = CLASSES.on_device(special) if issubclass(other[0], Tensor) else special
    give(tensor, attributes.with_items(other[1], items))
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks, post_hooks
