"""Tensors of the device in the place of those in torch's memory, for as long as a step is traced.

The step's own objects get the C++ tensors of others, so that everything that has them (modules, optimizers, graphs of
views, hooks) sees a step on the device. What the step says of devices is read accordingly.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ..arrays import bridge
from ..arrays.attributes import attributes_of, give
from ..arrays.storage_views import Storage, View
from ..errors import UnsupportedInputError
from ..tensor.moves import change_places
from ..tensor.tensor import Tensor, from_view
from .holders import Reach
from .numbers import refusal
from .torch_memory import MOVE, TorchMemory, can_be_lent, lent


def is_in_memory(reach: Reach, given: Sequence[Any]) -> bool:
    """True if the tensors of a step are in torch's memory, none on the device. If it reaches none, those it is given.

    A tensor without dimensions that is nothing's parameter or buffer tells nothing: it goes with those of the device.
    """
    if any(isinstance(t, Tensor) for t in reach.tensors):
        return False
    held = [t for m in reach.modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    held += [t for t in reach.tensors if t.requires_grad and t.is_leaf]
    if not all(can_be_lent(t) or is_lazy(t) for t in held):
        return False
    if not reach.tensors:
        return any(isinstance(v, torch.Tensor) and can_be_lent(v) for v in given)
    return bool(held) or any(t.dim() and can_be_lent(t) for t in reach.tensors)


@contextlib.contextmanager
def in_place_of(
    memory: TorchMemory, held: Sequence[torch.Tensor], given: Iterable[Any], *, is_kept: bool = False
) -> Iterator[None]:
    """A context in which tensors in torch's memory are tensors of the device, with the same values.

    Args:
        memory: the places of what the step reaches.
        held: those tensors.
        given: the arguments of the call.
        is_kept: whether the values are kept longer, and so are copied.
    """
    storages = _Storages(is_kept)
    views = {id(t): (t, v) for t, v in zip(held, memory.views, strict=True) if v is not None}
    for value in given:
        if isinstance(value, torch.Tensor) and can_be_lent(value):
            views.setdefault(id(value), (value, lent(value)))
    doubles = {key: _double(tensor, view, storages) for key, (tensor, view) in views.items()}
    for key, (tensor, _) in views.items():
        may_have_one = tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter))
        gradient = tensor.grad if may_have_one else None
        if gradient is not None:
            found = doubles.get(id(gradient))
            if found is None and not can_be_lent(gradient):
                raise UnsupportedInputError(
                    "a step",
                    f"a gradient of type {type(gradient).__name__}, {gradient.layout} and {gradient.dtype}",
                    f"a dense one on the CPU, as an embedding with sparse=False has, {MOVE}",
                )
            doubles[key].grad = _double(gradient, lent(gradient), _Storages(is_kept)) if found is None else found
    with contextlib.ExitStack() as stack:
        for key, (tensor, _) in views.items():
            stack.enter_context(_changed_places(tensor, doubles[key]))
        yield


def at_home(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step on the CPU, for tensors of the device: what it says of devices means theirs."""

    @functools.wraps(step)
    def on_device(*args: Any, **kwargs: Any) -> Any:
        try:
            with torch.device("jax"), _AtHome():
                return step(*args, **kwargs)
        except TypeError as error:
            if "to numpy" in str(error):  # that of a tensor of the device, which says to use `cpu()`
                raise refusal("numpy()") from error
            raise

    return on_device


class _Storages:
    """Storages of the device for lent ones, by these."""

    def __init__(self, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._found: dict[int, Storage] = {}

    def of(self, storage: Any) -> Storage:
        if id(storage) not in self._found:
            alias = storage.alias.clone() if self._is_kept else storage.alias
            self._found[id(storage)] = Storage(bridge.borrow(alias))
        return self._found[id(storage)]


def _double(tensor: torch.Tensor, view: View, storages: _Storages) -> torch.Tensor:
    """A tensor of the device, as another one is in torch's memory; it shares a storage with others as that does."""
    found = from_view(View(storages.of(view.storage), view.shape, view.stride, view.offset), tensor.dtype)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(found, tensor.requires_grad)
    return found.requires_grad_(tensor.requires_grad and tensor.is_leaf)


@contextlib.contextmanager
def _changed_places(tensor: torch.Tensor, double: torch.Tensor) -> Iterator[None]:
    own = attributes_of(tensor)
    change_places(tensor, double)
    try:
        yield
    finally:
        change_places(tensor, double)
        now = dict(attributes_of(tensor))
        own.clear()
        own.update(now)
        give(tensor, own)  # the same dictionary as before: the walk knows it


def come_home(tensors: Iterable[torch.Tensor]) -> None:
    """Moves tensors that a step has made and stored from the device to torch's memory; they stay the same objects."""
    bases: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        view = tensor.view_of_arrays  # type: ignore[attr-defined]  # it is on the device
        base = bases.get(id(view.storage))
        if base is None:
            base = bases[id(view.storage)] = bridge.as_tensor(view.storage.array)
        found = base.as_strided(view.shape, view.strides(), view.offset)
        if isinstance(tensor, torch.nn.Parameter):
            found = torch.nn.Parameter(found, tensor.requires_grad)
        else:
            found.requires_grad_(tensor.requires_grad and tensor.is_leaf)
        change_places(tensor, found)


class _AtHome(TorchFunctionMode):
    """Reads "cpu" in the code of a step as the device on which it is traced, but for draws from a generator there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("jax"):
            raise UnsupportedInputError("a step on the CPU", "torch.autocast", f"one without it, {MOVE}")
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type == "cpu":
            if not any(isinstance(a, torch.Tensor) for a in args):
                kwargs.setdefault("device", "cpu")
            return func(*args, **kwargs)
        if func is torch.Tensor.cpu and isinstance(args[0], Tensor):
            return args[0]
        if func is torch.Tensor.to or "device" in kwargs:
            args = tuple(_there(a) if isinstance(a, torch.device | str) else a for a in args)
            kwargs = {k: _there(v) if k == "device" else v for k, v in kwargs.items()}
        return func(*args, **kwargs)


def _there(device: Any) -> Any:
    is_named = isinstance(device, torch.device | str)
    return torch.device("jax") if is_named and str(device).partition(":")[0] == "cpu" else device
