"""`torch.autocast("jax")`: operators run in the lower precision, in float32, or in the widest dtype of their operands.

The policies are those of CUDA, as PyTorch documents them ("Autocast Op Reference"). The operators are those that have
an autocast kernel for CUDA: of them, what no table here names runs in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ..tracing import opaque
from . import privateuse1

LOWER = frozenset({
    "_convolution", "_convolution.deprecated", "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d",
    "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution",
    "cudnn_convolution", "cudnn_convolution_transpose", "einsum", "gru_cell", "linalg_multi_dot", "linalg_vecdot",
    "linear", "lstm_cell", "matmul", "mm", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell",
    "scaled_dot_product_attention",
})  # fmt: skip

WIDEST = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "scatter_add", "tensordot",
    "vdot",
})  # fmt: skip

# These take the dtype to compute in, so that an operand in lower precision is not copied.
DTYPE_GIVEN = frozenset({
    "cumprod", "cumsum", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "linalg_vector_norm", "log_softmax.int",
    "prod", "prod.dim_int", "softmax.int", "sum", "sum.dim_IntList",
})  # fmt: skip

REFUSED = {
    "binary_cross_entropy": "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."
    " Use binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which take what the sigmoid takes."
}

_KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]  # torch's stub lacks it


def autocast_operators() -> list[str]:
    """The overloads that autocast affects."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = (n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    return sorted(n.removeprefix("aten::") for n in names if has_kernel(n, "AutocastCUDA"))


def _eligible(tensor: torch.Tensor) -> bool:
    # in a function of `as_jax` tensors on the CPU are constants of the program; elsewhere the operator refuses them
    is_operand = tensor.device.type == "jax" or (tensor.dim() > 0 and tensor.device.type == "cpu")
    return is_operand and tensor.is_floating_point() and tensor.dtype != torch.float64


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.to(dtype) if _eligible(t) else t, tree)


def _widest(tree: Any) -> torch.dtype:
    """float32 if an operand has it, else the lower precision.

    Source: `prioritize` in ATen/autocast_mode.h.

    Raises:
        RuntimeError: before a float32 one stands one of the other half precision, as in ATen.
    """
    lower = torch.get_autocast_dtype("jax")
    for tensor in tree_leaves(tree):
        if isinstance(tensor, torch.Tensor) and _eligible(tensor) and tensor.dtype != lower:
            if tensor.dtype == torch.float32:
                return torch.float32
            raise RuntimeError(
                f"Unexpected floating ScalarType in at::autocast::prioritize: {tensor.dtype} where autocast is {lower}"
            )
    return lower


def _make(overload: str) -> Callable[..., Any]:
    packet, _, name = overload.partition(".")

    @functools.cache
    def find() -> Any:
        return getattr(getattr(torch.ops.aten, packet), name or "default")

    @opaque
    def call(*args: Any, **kwargs: Any) -> Any:
        op = find()
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            if overload in REFUSED:
                raise RuntimeError(REFUSED[overload])
            if overload in DTYPE_GIVEN:
                at = [a.name for a in op._schema.arguments].index("dtype")  # no positional argument follows it
                given = args[at] if at < len(args) else kwargs.get("dtype")
                if given is None and isinstance(args[0], torch.Tensor) and _eligible(args[0]):
                    args, kwargs = args[:at], kwargs | {"dtype": torch.float32}
                return op(*args, **kwargs)
            dtype = torch.float32
            if overload in LOWER:
                dtype = torch.get_autocast_dtype("jax")
            elif overload in WIDEST:
                dtype = _widest((args, kwargs))
            args, kwargs = _cast((args, kwargs), dtype)
            return op(*args, **kwargs)

    return call


if privateuse1.CLAIMED:
    _ALL, _ATEN = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _ALL.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for _overload in autocast_operators():
        _ATEN.impl(_overload, _make(_overload), "AutocastPrivateUse1")
