"""Operators that ATen composes from others: its composition on the device `jax`, and checks before it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import meta, registry
from ..arrays import bridge
from ..arrays.observers import OBSERVERS, met
from ..ops.composite import CONDITIONS
from ..ops.namespace import operator_of
from ..registry.handlers import ABOVE_AUTOGRAD, RECORDED, Handler, handler
from ..tensor.operand_values import is_traced
from ..tensor.tensor import array_of, has_values
from ..tracing import is_traced_now, recorded
from .functional import functional
from .operands import to_carrier, with_constants, wrapped
from .writes import variant

_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
_OF_SLOT = torch._C.DispatchKey.PrivateUse1  # of other libraries: torch's FSDP has kernels for any device in the slot


def composition(func: Any) -> Handler:
    """An operator's own composition of other operators; raises MissingKernelError if there is none."""
    for key in (_IMPLICIT, _EXPLICIT, _OF_SLOT):
        if func.has_kernel_for_dispatch_key(key):
            composed = functools.partial(func._op_dk, key)
            return _for_open_sizes(func, composed) if key is _IMPLICIT else composed
    raise registry.missing(func.name())


def _for_open_sizes(func: Any, composed: Handler) -> Handler:
    """A composition: in captures torch's of Python, if there is one, since that of C++ may ask for sizes as numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        in_python = func.py_kernels.get(_IMPLICIT)
        if in_python is not None and is_traced_now():
            found = in_python(*args, **kwargs)
            if found is not NotImplemented:  # what `run_decompositions` puts there to keep an operator whole
                return found
        return composed(*args, **kwargs)

    return call


def third_party(func: Any) -> Handler:
    """An operator of another library without a kernel here: the library's implementation, or a node in a graph."""

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(map(is_traced, tensors)):
            args, kwargs = tree_map_only(torch.Tensor, to_carrier, (args, kwargs))
            return tree_map_only(torch.Tensor, wrapped, func(*args, **kwargs))
        return composition(func)(*args, **kwargs)

    return call


def _checked(overload: str) -> Handler:
    """ATen's composition of an operator, after a check of its arguments' values: after the call of what is traced."""
    conditions, op = CONDITIONS[overload], operator_of(overload, "aten")

    def call(tensor: torch.Tensor, *args: Any) -> Any:
        if OBSERVERS:
            met(None, (tensor,), None)  # a step that is traced takes it as an operand
        if has_values(tensor):
            for holds, message in conditions(bridge.to_host(array_of(tensor)), *args):  # on the CPU: JAX may trace it
                if not holds:
                    raise RuntimeError(message)
        else:
            for holds, message in conditions(tensor, *args):
                torch.ops.aten._assert_async.msg(holds, message)
        return op._op_dk(_IMPLICIT, tensor, *args)

    return call


for _overload in CONDITIONS:
    handler(f"aten::{_overload}", keys=(ABOVE_AUTOGRAD,))(_checked(_overload))


@handler("aten::_convolution", keys=(ABOVE_AUTOGRAD,))
def convolution(*args: Any) -> torch.Tensor:
    """`aten::convolution`, of which programs that `torch.jit.trace` has recorded have this form, with cuDNN's flags."""
    return torch.ops.aten.convolution.default(*args[: -len(_OF_CUDNN)])


# benchmark, deterministic, enabled and allow_tf32, which `aten::_convolution` takes and which have no effect here
_OF_CUDNN = (False, False, True, True)


def _record_convolution(*args: Any) -> torch.Tensor:
    return recorded(torch.ops.aten._convolution.default, *args, *_OF_CUDNN)


RECORDED[torch.ops.aten.convolution.default] = _record_convolution


@handler("aten::_new_zeros_with_same_feature_meta")
def zeros_laid_out_alike(self: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0) -> torch.Tensor:
    """Zeros for a tangent, which forward mode lays out as its primal."""
    if is_traced(self) or is_traced(other):
        plain = functional("_new_zeros_with_same_feature_meta")
        return plain(self, other, self_num_batch_dims=self_num_batch_dims)
    elements = other.untyped_storage().nbytes() // other.itemsize
    batch = self.shape[:self_num_batch_dims]
    memory = torch.zeros((*batch, elements), dtype=other.dtype, device=other.device)
    stride = (*memory.stride()[:-1], *other.stride())
    return memory.as_strided((*batch, *other.shape), stride, other.storage_offset())


def _as_stored(overload: str) -> Handler:
    """A determinant with factors as ATen's gradients ask for them, by whether a real matrix is row-major."""

    def call(A: torch.Tensor) -> Any:
        return functional(overload)(A if A.is_contiguous() or A.is_complex() or A.dim() < 2 else A.mT)

    return call


for _overload in ("_linalg_det", "_linalg_slogdet"):
    handler(f"aten::{_overload}")(_as_stored(_overload))


# Operators with some tensors on the CPU: constants, or whatever the device.


def _beside_constants(overload: str) -> Handler:
    """ATen's composition of an operator, which asks in C++ for one device, or writes to a copy of an operand."""
    op = operator_of(overload, "aten")

    def call(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(_IMPLICIT, *with_constants(args), **kwargs)

    return call


for _overload in ("cartesian_prod", "cosine_similarity", "inner", "linalg_multi_dot", "take_along_dim"):
    handler(f"aten::{_overload}", keys=(ABOVE_AUTOGRAD,))(_beside_constants(_overload))


@handler("aten::ctc_loss.Tensor", keys=(ABOVE_AUTOGRAD,))
def ctc_loss(log_probs: torch.Tensor, *args: Any) -> torch.Tensor:
    """ATen's composition, which does not move the lengths from the CPU for tensors of a subclass."""
    on_device = [a.to(log_probs.device) if isinstance(a, torch.Tensor) else a for a in args]
    return torch.ops.aten.ctc_loss.Tensor._op_dk(_IMPLICIT, log_probs, *on_device)


@handler("aten::ctc_loss.IntList", keys=(ABOVE_AUTOGRAD,))
def ctc_loss_of_lengths(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int],
    blank: int = 0, reduction: int = 1, zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """ATen's composition, which makes a tensor of the lengths by its address: a traced one has none."""
    given = log_probs, targets, input_lengths, target_lengths, blank
    if not is_traced(log_probs):
        return torch.ops.aten.ctc_loss.IntList._op_dk(_IMPLICIT, *given, reduction, zero_infinity)
    losses = torch.ops.aten._ctc_loss.default(*given, zero_infinity)[0]
    if zero_infinity:
        losses = losses.masked_fill(losses == math.inf, 0.0)
    if reduction == 1:  # the mean over the batch of each loss over its length
        return (losses / losses.new_tensor([max(n, 1) for n in target_lengths])).mean()
    return losses.sum() if reduction == 2 else losses


@handler("aten::fake_quantize_per_channel_affine_cachemask_backward", keys=(ABOVE_AUTOGRAD,))
def gradient_within_range(grad: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """ATen's composition, which asks for a number of elements: a traced tensor may have none."""
    if is_traced(grad):
        return grad * mask
    return torch.ops.aten.fake_quantize_per_channel_affine_cachemask_backward.default._op_dk(_IMPLICIT, grad, mask)


@handler("aten::_pack_padded_sequence")
def pack_padded_sequence(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, ...]:
    """Packed sequences, whose batch sizes are on the CPU, whatever the device."""
    data, sizes = functional("_pack_padded_sequence")(input, lengths, batch_first)
    if is_traced(sizes):
        return data, sizes
    if lengths.is_cpu:  # in a program that JAX traces these have values, and what is computed of them there has not
        times = torch.arange(len(sizes))
        return data, (lengths > times[:, None]).sum(1)
    return data, sizes.cpu()


def _with_scalars(overload: str) -> Handler:
    """An operator on lists with a tensor of numbers, one for each element, that is on the CPU, whatever the device."""

    def call(self: Any, tensor1: Any, tensor2: Any, scalars: torch.Tensor) -> Any:
        run = variant(overload) if overload.endswith("_.Tensor") else functional(overload)
        return run(self, tensor1, tensor2, torch.ops.aten._to_copy(scalars, device=self[0].device))

    return call


for _overload in meta.scalars.OVERLOADS:
    handler(f"aten::{_overload}")(_with_scalars(_overload))
