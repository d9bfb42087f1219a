"""The arguments of a call: a flat list of their tensors, and the properties that are part of the program."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from ..dispatch.operands import borrowed_copy
from ..errors import UnsupportedInputError
from ..tensor.operand_values import shared_view
from ..tensor.tensor import Tensor, from_array
from .code_names import holds_state
from .holders import Reach
from .places import is_plain

_LEAVES = frozenset({Tensor, torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})


class Structure:
    """The nesting of a call's arguments.

    Args:
        of: torch's description, which is slow to hash and to compare; it is mostly the same object.
    """

    __slots__ = ("_hash", "of")

    def __init__(self, of: Any) -> None:
        self.of = of
        self._hash = hash(of)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and bool(self.of == other.of))

    def __repr__(self) -> str:
        return repr(self.of)


@functools.lru_cache(256)
def _of_leaves(count: int, names: tuple[str, ...]) -> Structure:
    """The nesting of arguments that are not collections."""
    return Structure(tree_flatten(((None,) * count, dict.fromkeys(names)))[1])


def flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Structure]:
    """The leaves of all arguments, and their structure."""
    values = [*args, *kwargs.values()]
    if _LEAVES.issuperset(map(type, values)):
        return values, _of_leaves(len(args), tuple(kwargs))
    leaves, structure = tree_flatten((args, kwargs))
    return leaves, Structure(structure)


def of_call(values: Sequence[Any], reach: Reach) -> list[Any]:
    """The arguments of a call as the step takes them: on the device, unless it computes in torch's memory."""
    if reach.memory is not None:
        return [*values]
    return [moved_argument(v) if isinstance(v, torch.Tensor) else v for v in values]


def moved_argument(tensor: torch.Tensor) -> torch.Tensor:
    """An argument of the step, moved to the device."""
    if tensor.device.type != "cpu":
        return tensor
    return from_array(borrowed_copy(tensor)).requires_grad_(tensor.requires_grad)


def is_on_device(given: Sequence[Any]) -> bool:
    """True if one of the arguments is on the device already."""
    return any(isinstance(v, Tensor) for v in given)


def is_searched(value: Any) -> bool:
    """True if an argument is an object with attributes, in which the walk finds what the step reaches."""
    known = torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, type, FunctionType, MethodType
    return not isinstance(value, known) and not is_plain(value) and holds_state(type(value))


def argument_key(value: Any, reach: Reach) -> Any:
    """The properties of an argument that the program depends on."""
    if isinstance(value, torch.Tensor):
        view = shared_view(value) if isinstance(value, Tensor) else None
        lies: Any = None
        if view is not None:
            stride = None if view.is_row_major() else view.strides()
            lies = reach.root_at.get(id(view.storage.root)), view.offset, stride
            lies = None if lies == (None, 0, None) else lies
        elif reach.memory is not None:
            lies = reach.index_of(value), None if value.is_contiguous() else value.stride()
            lies = None if lies == (None, None) else lies
        return value.shape, value.dtype, value.requires_grad, lies
    if is_searched(value):
        return type(value)
    if value.__hash__ is None:
        raise UnsupportedInputError("an argument of the step", type(value).__name__, "a tensor or a hashable value")
    return type(value), value


def shared(given: Sequence[Any], reach: Reach) -> Any:
    """For each tensor, the index of the first argument in the same storage; None if no two share one."""
    if len(given) < 2:
        return None
    if reach.memory is not None:
        roots = [id(v) for v in given if isinstance(v, torch.Tensor)]
    else:
        views = [shared_view(v) for v in given if isinstance(v, Tensor)]
        roots = [id(v.storage.root) for v in views if v is not None]
    return tuple(map(roots.index, roots)) if len(set(roots)) < len(roots) else None
