"""ATen's composite operators: ATen's own composition of jaten's ops.

On plain tensors a composition runs on stand-ins without autograd, and every operator it is made of becomes jaten's on
the tensors behind them, so that values and gradients are jaten's. Views stay ATen's: a composition may write through
them. On all other tensors (of the device `jax`, fake ones) ATen's composition reaches jaten's ops by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import autograd, registry
from ..schema import VARIANTS, OpSpec
from ..tracing import opaque
from .namespace import operator_of

# left to ATen: these query or change the tensor itself, and compute no values
_OF_THE_TENSOR = frozenset({"contiguous", "data", "requires_grad_", "pin_memory"})
# the parts of a composition are batched, not the composition on stand-ins
_VMAP = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchVmapMode)
# under a transform there is no snapshot of the dispatch state, which torch 2.11 needs to run a mode
_SNAPSHOT = torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _may_need_gradient(tensor: torch.Tensor) -> bool:
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    return tensor.requires_grad or (differentiable and autograd.is_transformed())


class _StandIn(torch.Tensor):
    """A tensor without storage in place of `behind`. It requires a gradient if that does: compositions check it."""

    behind: torch.Tensor

    @staticmethod
    def __new__(cls, behind: torch.Tensor, requires_grad: bool = False) -> _StandIn:
        self = torch.Tensor._make_wrapper_subclass(
            cls, behind.shape, strides=behind.stride(), storage_offset=behind.storage_offset(), dtype=behind.dtype,
            layout=behind.layout, device=behind.device, requires_grad=requires_grad,
        )  # fmt: skip
        self.behind = behind
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's own annotation is of its disabled default
        raise AssertionError(f"{func} on a stand-in, outside the composition it was made for")

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch documents


def is_stand_in(value: Any) -> bool:
    """True for a tensor of the parts of a composition that runs for a direct call."""
    return isinstance(value, _StandIn)


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    # lazily conjugated values would be read from memory without conjugation
    resolved = tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor
    return _StandIn(resolved, _may_need_gradient(tensor))


def _behind(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.behind if isinstance(tensor, _StandIn) else tensor


@functools.cache
def _replacement(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The function to run in place of an ATen operator, on the wrapped tensors; None for a composite."""
    overload = func.name().partition("::")[2]
    spec = registry.SPECS.get(overload)
    if func.namespace != "aten" or (spec is not None and spec.kind == "view"):
        return func
    if overload in registry.KERNELS:
        return _with_numbers(func, operator_of(overload))
    if overload in VARIANTS:
        return operator_of(overload)
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return None
    raise registry.missing(func.name())


def _with_numbers(func: torch._ops.OpOverload, op: torch._ops.OpOverload) -> Callable[..., Any]:
    """A jaten op called with a number in place of a tensor, as in `x * 2`: its Scalar overload, else a 0-d tensor."""
    slots = [i for i, a in enumerate(func._schema.arguments) if str(a.type) == "Tensor" and not a.kwarg_only]
    overload = func.name().removeprefix("aten::")
    scalar = overload.replace(".Tensor", ".Scalar")
    scalar_op = operator_of(scalar) if scalar in registry.KERNELS and scalar != overload else None

    def call(*args: Any, **kwargs: Any) -> Any:
        numbers = [i for i in slots if i < len(args) and not isinstance(args[i], torch.Tensor)]
        if not numbers:
            return op(*args, **kwargs)
        if scalar_op is not None and numbers == [1]:
            return scalar_op(*args, **kwargs)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        dtype = functools.reduce(torch.promote_types, (torch.result_type(t, args[numbers[0]]) for t in tensors))
        return op(*(torch.tensor(a, dtype=dtype) if i in numbers else a for i, a in enumerate(args)), **kwargs)

    return call


class _Redirect(TorchDispatchMode):
    """Runs the parts of a composition as jaten's ops, in the dispatch state in which the composition was called."""

    def __init__(self) -> None:
        super().__init__()
        self._state = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    @opaque
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        replacement = _replacement(func)
        if replacement is None:
            with self:
                return func.decompose(*args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, _behind, (args, kwargs))
        with torch._C._ForceDispatchKeyGuard(*self._state):
            results = replacement(*args, **kwargs)
        return tree_map_only(torch.Tensor, _StandIn, results)


def _without_vmap() -> Any:
    excluded = (torch._C._dispatch_tls_local_exclude_set() | _VMAP) - _SNAPSHOT
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _conditions_of_one_hot(self: torch.Tensor, num_classes: int = -1) -> Iterator[tuple[torch.Tensor, str]]:
    if self.dtype != torch.int64:
        return  # one_hot itself refuses it
    if not self.numel():
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return
    yield (self >= 0).all(), "Class values must be non-negative."
    if num_classes != -1:
        yield (self < num_classes).all(), "Class values must be smaller than num_classes."


CONDITIONS: dict[str, Callable[..., Iterator[tuple[torch.Tensor, str]]]] = {"one_hot": _conditions_of_one_hot}
"""Conditions of compositions on values, with the RuntimeErrors that ATen raises for plain tensors, not for subclasses.

By overload, as functions of the arguments. A condition may assume that those before it hold.
"""


def make_composite(spec: OpSpec, aten: Callable[..., Any]) -> Callable[..., Any]:
    """The implementation of a composite overload.

    Args:
        spec: the overload.
        aten: ATen's operator of the same name.

    Raises (when called):
        MissingKernelError: the composition calls an operator that has no kernel.
    """
    if spec.overload in _OF_THE_TENSOR or not any("Tensor" in r for r in spec.returns):
        return aten

    conditions = CONDITIONS.get(spec.overload)

    def composite(*args: Any, **kwargs: Any) -> Any:
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        if not all(type(t) in _PLAIN and t.device.type in ("cpu", "cuda") for t in tensors):
            return aten(*args, **kwargs)
        for holds, message in conditions(*args, **kwargs) if conditions is not None else ():
            if not holds:
                raise RuntimeError(message)
        args, kwargs = tree_map_only(torch.Tensor, _stand_in, (args, kwargs))
        with _Redirect(), torch._C._DisableFuncTorch(), _without_vmap():
            results = aten(*args, **kwargs)
        return tree_map_only(torch.Tensor, _behind, results)

    return composite
