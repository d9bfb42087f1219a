"""ATen's refusals of written tensors that overlap themselves or an input.

jaten computes before it writes, so overlaps are harmless, but calls that ATen refuses must still raise. ATen's rule is
not in its schemas: an elementwise kernel refuses inputs that partly overlap the output, a few others any that share
memory with it, and a kernel that ATen generates from the functional operator, such as a reduction, refuses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch

from ..arrays import attributes
from ..arrays.strides import is_dense
from ..schema import RELEASE, OpSpec

# ATen/MemoryOverlap.cpp
_ITSELF = "more than one element of the written-to tensor refers to a single memory location"
_INPUT = "some elements of the input tensor and the written-to tensor refer to a single memory location"
_REMEDY = "Please clone() the tensor before performing the operation."

# Tagged pointwise, or on lists, with a kernel of their own that does not check overlap.
_UNCHECKED = frozenset({"threshold", "mvlgamma", "_foreach_zero"})

# Not tagged pointwise, or composed of pointwise operators, and checked like them.
_AS_POINTWISE = frozenset({
    "copy", "addr", "bernoulli", "binary_cross_entropy", "cumprod", "cumsum", "_logcumsumexp", "deg2rad",
    "floor_divide", "glu", "hardswish", "huber_loss", "ldexp.Tensor", "log_sigmoid_backward", "logcumsumexp",
    "mse_loss", "normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "rad2deg",
    "remainder.Scalar", "renorm",
    "smooth_l1_loss", "soft_margin_loss", "_unsafe_view", "elu_backward", "glu_backward", "hardshrink_backward",
    "hardsigmoid_backward", "hardtanh_backward", "huber_loss_backward", "leaky_relu_backward", "mse_loss_backward",
    "smooth_l1_loss_backward", "softplus_backward", "softshrink_backward", "sigmoid_backward", "tanh_backward",
    "gelu_backward", "silu_backward", "logit_backward", "logical_and", "logical_or", "logical_xor",
})  # fmt: skip

# Check only the one argument that they copy to the output or reduce.
_ONE = dict.fromkeys(
    ("addbmm", "addmm", "addmv", "aminmax", "baddbmm", "max.dim", "min.dim", "mode", "nanmedian.dim", "sort",
     "sort.stable"), "self",
) | {"linalg_solve_triangular": "B", "linalg_lu_solve": "B"}  # fmt: skip

# For other arguments than these, ATen uses another implementation.
_WHEN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "aminmax": lambda bound: bound["dim"] is not None,
    "linalg_lu_solve": lambda bound: not bound["left"],
}

# Created without a tensor, or drawn in place: no input is checked.
RANGES = frozenset({"arange", "linspace", "logspace", "range"})
_DRAWN_IN_PLACE = frozenset({
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal_functional", "random", "uniform",
})  # fmt: skip

# Refuse any input that shares memory with the output, or is the output.
_APART = frozenset({
    "cat", "stack", "gather", "index.Tensor", "index_select", "kthvalue", "linalg_cross", "masked_select", "take",
    "topk",
})  # fmt: skip

# The same for all inputs but self, which may be the output.
_APART_FROM_SELF = frozenset({
    "index_add", "index_copy", "index_reduce", "scatter.reduce", "scatter.src", "scatter.value", "scatter.value_reduce",
    "scatter_add", "scatter_reduce.two",
})  # fmt: skip

# The same for the in-place overload only: the out= overload is generated.
_APART_IN_PLACE = frozenset({"put", "index_put"})

# In the in-place overload only the output is checked.
_ITSELF_IN_PLACE = frozenset({
    "abs", "addbmm", "addmm", "celu", "logical_not", "masked_scatter", "mvlgamma", "nan_to_num", "polygamma",
    "rrelu_with_noise_functional",
})  # fmt: skip

# Refuse outputs that share memory with each other, with a text of their own: ATen/native/TensorCompare.cpp
_OUTPUTS_APART = (
    {"aminmax": "aminmax(): the `min` and `max` out= tensors must not overlap."} if RELEASE >= (2, 15) else {}
)

_KNOWN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _tensors(bound: dict[str, Any], names: Sequence[str]) -> Iterator[torch.Tensor]:
    """The tensors among some arguments that have memory."""
    for name in names:
        value = bound[name]
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if tensor is not None and (has_memory(tensor) or has_arrays(tensor)):
                yield tensor


def has_memory(tensor: torch.Tensor) -> bool:
    """True for an ordinary tensor; a traced one has no memory, and one of the device `jax` none of torch's."""
    return type(tensor) in _KNOWN and (tensor.is_cpu or tensor.is_cuda)


def has_arrays(value: Any) -> bool:
    """True for a tensor of the device `jax` that has values."""
    return isinstance(value, torch.Tensor) and attributes.place_of(value) is not None


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """A tensor's place in memory: an identifier of its storage, and its first byte."""
    view = attributes.view_or_none(tensor)
    if view is not None:
        return id(view.storage.root), view.offset * tensor.itemsize
    return tensor.untyped_storage()._cdata, tensor.data_ptr()


def _overlaps_itself(tensor: torch.Tensor) -> int:
    """Self-overlap: 0 for no, 1 for yes, 2 for strides with gaps, which ATen does not examine."""
    view = attributes.view_or_none(tensor)
    if view is None:
        return torch._debug_has_internal_overlap(tensor)
    if view.is_row_major():
        return 0
    if is_dense(view.shape, view.strides()):
        return 0
    return 1 if any(s == 0 and n > 1 for n, s in zip(view.shape, view.strides(), strict=True)) else 2


def _shared(one: torch.Tensor, other: torch.Tensor) -> str | None:
    """The memory that two tensors share: "whole", "part", or None for nothing, or for strides with gaps."""
    if one is other:
        return "whole"
    places = _place(one), _place(other)
    if places[0][0] != places[1][0] or _overlaps_itself(one) or _overlaps_itself(other):
        return None
    size = one.numel() * one.itemsize, other.numel() * other.itemsize
    ahead = places[0][1] - places[1][1]
    if not -size[0] < ahead < size[1]:
        return None
    return "whole" if ahead == 0 and size[0] == size[1] and one.stride() == other.stride() else "part"


def _check_input(target: torch.Tensor, source: torch.Tensor, apart: bool) -> None:
    """Raises RuntimeError if part of `source`, or with `apart` all of it, lies in `target`."""
    shared = _shared(target, source) if target is not source or target.numel() else None
    if shared == "part" or (shared == "whole" and apart):
        raise RuntimeError(f"unsupported operation: {_INPUT}. {_REMEDY}")


def _rule(spec: OpSpec, base: OpSpec, written: Sequence[str]) -> dict[str, bool] | None:
    """The checked arguments, and for each whether it must not share memory with the output; None if there are none."""
    inputs = [a.name for a in spec.arguments if a.is_tensor and a.name not in written]
    name = base.overload
    if spec.namespace != "jaten":  # what it computes is whole before it is written, by `copy_`, which checks the target
        return None
    if base.packet in RANGES or (spec.kind == "inplace" and base.packet in _DRAWN_IN_PLACE):
        return {}
    if name in _ITSELF_IN_PLACE and spec.kind == "inplace":
        return {}
    if name in _APART or (name in _APART_IN_PLACE and spec.kind == "inplace"):
        return dict.fromkeys(inputs, True)
    if name in _APART_FROM_SELF:
        return {n: n != "self" for n in inputs}
    if name in _ONE:
        return {_ONE[name]: False} if _ONE[name] in inputs else None
    if name.startswith("_foreach_"):  # its out= overload copies what it has computed
        checked = inputs if spec.kind == "inplace" else []
        return None if name in _UNCHECKED else dict.fromkeys(checked, False)
    own = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{spec.overload}", "CPU")
    pointwise = "pointwise" in base.tags and own and name not in _UNCHECKED
    return dict.fromkeys(inputs, False) if pointwise or name in _AS_POINTWISE else None


def _whole(bound: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield bound


def _each(bound: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For each position in the lists, the arguments of the operator on single tensors."""
    lists = {name: value for name, value in bound.items() if isinstance(value, list | tuple)}
    for values in zip(*lists.values(), strict=False):  # equal lengths are checked elsewhere
        yield bound | dict(zip(lists, values, strict=True))


def make_check(spec: OpSpec, base: OpSpec, written: Sequence[str]) -> Callable[[dict[str, Any]], None] | None:
    """A check that raises if a call's outputs, by argument name, overlap as ATen refuses, or None if it never does.

    ATen's class is RuntimeError, or ValueError for outputs that overlap each other.

    Args:
        spec: an in-place or out= overload.
        base: the functional overload.
        written: the arguments that it writes to.
    """
    rule = _rule(spec, base, written)
    if rule is None:
        return None
    when, of_outputs = _WHEN.get(base.overload), _OUTPUTS_APART.get(base.overload)
    calls = _each if base.overload.startswith("_foreach_") else _whole

    def check(bound: dict[str, Any]) -> None:
        if torch._C._are_functorch_transforms_active():
            return  # batched tensors may share memory
        if of_outputs is not None and any(_shared(*pair) for pair in combinations(_tensors(bound, written), 2)):
            raise ValueError(of_outputs)
        if when is not None and not when(bound):
            return
        for own in calls(bound):
            for target in _tensors(own, written):
                if _overlaps_itself(target) == 1:
                    raise RuntimeError(f"unsupported operation: {_ITSELF}. {_REMEDY}")
                for name, apart in rule.items():
                    for source in _tensors(own, (name,)):
                        _check_input(target, source, apart)

    return check


def distinct(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The part of a tensor in which `like`, which may be expanded, has each memory location once."""
    for dim, stride in enumerate(like.stride()):
        if stride == 0 and like.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
