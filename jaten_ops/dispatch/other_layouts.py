"""Refusal of sparse, nested and quantized tensors, which torch can create on the device `jax`."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves

from ..errors import UnsupportedInputError
from ..ops.namespace import operator_of
from ..registry.handlers import Handler, handler
from .operands import is_on_jax

KEYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1", "NestedTensorPrivateUse1", "QuantizedPrivateUse1")
"""The dispatch keys of tensors that are not one dense array."""

MEASURES = ("_nested_tensor_size", "_nested_tensor_storage_offsets", "_nested_tensor_strides")
"""Queries of a nested tensor that must not fail: autograd makes them for each tensor that it creates."""


def refuse_layout(func: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raises UnsupportedInputError, for any operator on such tensors."""
    got = next((t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and is_on_jax(t)), None)
    if got is None:  # a factory
        raise UnsupportedInputError(func.name(), "the device jax", "another one: there are dense tensors on jax alone")
    kind = "nested" if got.is_nested else "quantized" if got.is_quantized else str(got.layout).removeprefix("torch.")
    expected = "a dense one, as x.to_dense() is before it is moved, or a nested one with layout=torch.jagged"
    raise UnsupportedInputError(func.name(), f"a {kind} tensor on {got.device}", expected)


def measure(overload: str) -> Handler:
    """One of MEASURES, by the CPU's implementation."""
    op = operator_of(overload, "aten")
    return lambda tensor: op._op_dk(torch._C.DispatchKey.NestedTensorCPU, tensor)


def _no_nested(operator: str) -> Handler:
    """An operator whose composition, or view, in ATen would be a nested tensor. Attention of jagged ones calls it."""

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        # not as a missing kernel: for jagged tensors torch would take a NotImplementedError for its own
        raise UnsupportedInputError(
            operator, "the device jax, on which no tensor is strided and nested",
            "layout=torch.jagged; for attention dense tensors and a mask, as of torch.nested.to_padded_tensor(x, 0.0)",
        )  # fmt: skip

    return refuse


for _operator in ("aten::_nested_tensor_from_tensor_list", "aten::_nested_view_from_buffer"):
    handler(_operator)(_no_nested(_operator))
