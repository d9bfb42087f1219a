"""`scaled_dot_product_attention` on the device `jax`: one operator, as ATen has for the CPU.

For a device unknown to C++ ATen uses fifteen operators, which store the weights of all pairs, several times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import autograd
from ..kernels.attention_parts import attention, attention_gradients, scale_of
from ..meta.attention import fused_sdp_choice
from ..ops.user_ops import op
from ..registry import gradient
from ..registry.handlers import ABOVE_AUTOGRAD, handler
from ..schema import RELEASE
from ..tensor.operand_values import is_traced
from ..tensor.tensor import Tensor as OnJax
from .operands import FLOATS, is_on_jax, with_constants

_aten = torch.ops.aten


_DIFFERENTIABLE = ("query", "key", "value")
_QKV = "Tensor query, Tensor key, Tensor value, Tensor? bias"


@op(
    f"jaten_nn::attention({_QKV}, bool causal, float? scale) -> (Tensor, Tensor)",
    differentiable=_DIFFERENTIABLE,
)
def _attention(query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: Any) -> Any:
    found: Any = attention(query, key, value, _added(bias), None, scale, causal)
    return found


@op(
    f"jaten_nn::attention_backward(Tensor grad, Tensor? grad_logsumexp, {_QKV}, Tensor out, Tensor logsumexp,"
    " bool causal, float? scale) -> (Tensor, Tensor, Tensor)",
    differentiable=("grad", "grad_logsumexp", *_DIFFERENTIABLE, "out", "logsumexp"),
)
def _attention_backward(
    grad: Any, grad_logsumexp: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, logsumexp: Any,
    causal: bool, scale: Any,
) -> Any:  # fmt: skip
    of_logsumexp = None if grad_logsumexp is None else grad_logsumexp[..., None]
    return attention_gradients(
        grad, query, key, value, _added(bias), scale_of(query, scale), out, logsumexp, causal, of_logsumexp
    )


def _added(bias: Any) -> Any:
    """A mask as ATen's on a CPU has it: what is masked stays NaN."""
    return bias.astype("uint8") if bias is not None and bias.dtype == bool else bias


@gradient("jaten_nn::attention")
def gradient_of_attention(grads: Any, args: Any, results: Any) -> dict[str, Any]:
    """From the saved results: `jax.vjp` of the kernel would compute the forward again. A mask has no gradient."""
    *tensors, causal, scale = args
    found = torch.ops.jaten_nn.attention_backward(*grads, *tensors, *results, causal, scale)
    return dict(zip(_DIFFERENTIABLE, found, strict=True))


def _suits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, **settings: Any) -> bool:
    """True if ATen would take its fused kernel on the CPU; its composition takes, or refuses, everything else.

    So it does where its parts are differentiated or batched by a transform, or in forward mode. From torch 2.14 on it
    refuses a mask together with `is_causal`, as its composition has always done.
    """
    tensors = [query, key, value] if mask is None else [query, key, value, mask]
    if not torch.backends.cuda.flash_sdp_enabled() or autograd.is_transformed():
        return False
    if not all(isinstance(x, OnJax) or _is_carrier(x) for x in tensors):
        return False
    if mask is not None and (mask.requires_grad or mask.dtype not in (torch.bool, query.dtype)):
        return False
    if mask is not None and settings["is_causal"] and RELEASE >= (2, 14):
        return False
    return query.dtype in FLOATS and fused_sdp_choice(query, key, value, mask, dropout_p, **settings) == 1


def _is_carrier(x: Tensor) -> bool:
    return is_on_jax(x) and is_traced(x) and not is_traceable_wrapper_subclass(x)


def _is_dtensor(x: Tensor) -> bool:
    """True for a DTensor of torch, which partitions one of ATen's fused kernels, but neither the CPU's nor a mask."""
    return (type(x).__module__, type(x).__name__) == _DTENSOR


_DTENSOR = ("torch.distributed.tensor", "DTensor")  # not the class: importing it takes a second


@handler("aten::scaled_dot_product_attention", keys=(ABOVE_AUTOGRAD,))
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False
) -> Tensor:  # fmt: skip
    """One operator where ATen would take its fused kernel on the CPU, else ATen's composition."""
    query, key, value, attn_mask = with_constants((query, key, value, attn_mask))
    if attn_mask is None and not enable_gqa and all(map(_is_dtensor, (query, key, value))):
        found = _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
        return found[0]
    if not _suits(query, key, value, attn_mask, dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa):
        composition: Any = _aten.scaled_dot_product_attention.default
        return composition._op_dk(
            torch._C.DispatchKey.CompositeImplicitAutograd,
            *(query, key, value, attn_mask, dropout_p, is_causal), scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    if not any(map(is_traced, (query, key, value))):
        return torch.ops.jaten_nn.attention(query, key, value, attn_mask, is_causal, scale)[0]
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        lowest = torch.full((), -torch.inf, dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, lowest.new_zeros(()), lowest)
    found = _aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )
    return found[0]
