"""Gradients that replace `jax.vjp` of the kernel, each with its reason, written in jaten ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jaten_ops.registry import gradient

ops = torch.ops.jaten

Gradients = dict[str, torch.Tensor | None]


def _zeros(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return ops.new_zeros(grad, list(like.shape))


# Reading with masks: their kernels are eager, so `jax.vjp` cannot trace them


@gradient("index.Tensor")
def index(grads, args, results):
    (grad,), (self, indices) = grads, args
    return {"self": ops.index_put(_zeros(grad, self), indices, grad, True)}


@gradient("_unsafe_index.Tensor")
def unsafe_index(grads, args, results):
    (grad,), (self, indices) = grads, args
    return {"self": ops._unsafe_index_put(_zeros(grad, self), indices, grad, True)}


@gradient("masked_select")
def masked_select(grads, args, results):
    (grad,), (self, mask) = grads, args
    zeros = ops.new_zeros(grad, list(torch.broadcast_shapes(self.shape, mask.shape)))
    return {"self": ops.masked_scatter(zeros, mask, grad)}


@gradient("as_strided", "as_strided_copy")
def as_strided(grads, args, results):
    """Gradient by the tensor as a whole; memory beyond it, shared with other tensors, gets none."""
    self, size, stride, offset = args
    last = (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if self.storage_offset() or not self.is_contiguous() or last >= self.numel():
        raise RuntimeError(
            "as_strided: no gradient with respect to a part of a larger tensor. Fix: copy the part with .clone()"
        )
    return {"self": ops.as_strided_vjp(grads, [True], self, size, stride, offset)[0]}


# Writing: if an index occurs twice, ATen gives both sources the element's gradient, although only the last was kept


@gradient("index_put")
def index_put(grads, args, results):
    (grad,), (_, indices, values, accumulate) = grads, args
    kept = grad if accumulate else ops.index_put(grad, indices, ops.zeros_like(values))
    return {"self": kept, "values": ops.index.Tensor(grad, indices)}


@gradient("_unsafe_index_put")
def unsafe_index_put(grads, args, results):
    (grad,), (_, indices, values, accumulate) = grads, args
    kept = grad if accumulate else ops._unsafe_index_put(grad, indices, ops.zeros_like(values))
    return {"self": kept, "values": ops._unsafe_index.Tensor(grad, indices)}


@gradient("index_copy")
def index_copy(grads, args, results):
    (grad,), (_, dim, index, source) = grads, args
    read = ops.view(ops.index_select(grad, dim, index), list(source.shape))
    return {"self": ops.index_fill.int_Scalar(grad, dim, index, 0), "source": read}


@gradient("put")
def put(grads, args, results):
    (grad,), (_, index, source, accumulate) = grads, args
    kept = grad if accumulate else ops.put(grad, index, ops.zeros_like(source))
    return {"self": kept, "source": ops.view(ops.take(grad, index), list(source.shape))}


@gradient("scatter.src")
def scatter_src(grads, args, results):
    (grad,), (_, dim, index, src) = grads, args
    read = ops.gather(grad, dim, index)
    rest = [n for s, i in zip(src.shape[::-1], index.shape[::-1], strict=True) for n in (0, s - i)]
    return {"self": ops.scatter.value(grad, dim, index, 0), "src": ops.constant_pad_nd(read, rest)}


@gradient("scatter.value")
def scatter_value(grads, args, results):
    (grad,), (_, dim, index, _) = grads, args
    return {"self": ops.scatter.value(grad, dim, index, 0)}


def _reduction(
    grad: torch.Tensor,
    self: torch.Tensor,
    src: torch.Tensor,
    result: torch.Tensor,
    how: str,
    include_self: bool,
    read: Callable[[torch.Tensor], torch.Tensor],
    add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a reduction by index with respect to `self` and the source.

    JAX has no gradient of a product with equal indices, and splits that of ties unevenly.
    Source: scatter_reduce_backward and index_reduce_backward in torch/csrc/autograd/FunctionsManual.cpp.

    Args:
        grad, self, src, result: of the op.
        how: the name of the reduction.
        include_self: whether `self` is a member of it.
        read: takes elements by the op's index.
        add: adds a source to a tensor by the op's index.
        reduce: the op itself, of a tensor and a source.
    """
    if how == "sum":
        return grad, read(grad)
    if how == "mean":
        counts = add(ops.ones_like(grad) if include_self else ops.zeros_like(grad), ops.ones_like(src))
        share = ops.div.Tensor(grad, ops.masked_fill.Scalar(counts, ops.eq.Scalar(counts, 0), 1))
        return share, read(share)
    if how == "prod":
        nonzero_self = ops.masked_fill.Scalar(self, ops.eq.Scalar(self, 0), 1)
        of_self = ops.div.Tensor(ops.mul.Tensor(grad, reduce(nonzero_self, src)), nonzero_self)
        zero = ops.eq.Scalar(src, 0)
        zeros = read(add(ops.zeros_like(self), ops._to_copy(zero, dtype=self.dtype)))
        only_zero = ops.bitwise_and.Tensor(zero, ops.eq.Scalar(zeros, 1))
        without = reduce(self, ops.masked_fill.Scalar(src, only_zero, 1))
        divided = ops.div.Tensor(read(ops.mul.Tensor(grad, result)), ops.masked_fill.Scalar(src, zero, 1))
        return of_self, ops.where.self(only_zero, read(ops.mul.Tensor(grad, without)), divided)
    self_is_result = ops._to_copy(ops.eq.Tensor(self, result), dtype=self.dtype)
    src_is_result = ops._to_copy(ops.eq.Tensor(src, read(result)), dtype=self.dtype)
    share = ops.div.Tensor(grad, add(self_is_result, src_is_result))
    return ops.mul.Tensor(self_is_result, share), ops.mul.Tensor(src_is_result, read(share))


@gradient("scatter_reduce.two")
def scatter_reduce(grads, args, results):
    (grad,), (self, dim, index, src, how, include_self), (result,) = grads, args, results
    of_self, of_src = _reduction(
        grad,
        self,
        src,
        result,
        how,
        include_self,
        read=lambda x: ops.gather(x, dim, index),
        add=lambda x, source: ops.scatter_add(x, dim, index, source),
        reduce=lambda x, source: ops.scatter_reduce.two(x, dim, index, source, how, include_self=include_self),
    )
    return {"self": of_self if include_self else ops.scatter.value(of_self, dim, index, 0), "src": of_src}


@gradient("index_reduce")
def index_reduce(grads, args, results):
    (grad,), (self, dim, index, source, how, include_self), (result,) = grads, args, results
    of_self, of_source = _reduction(
        grad,
        self,
        source,
        result,
        how,
        include_self,
        read=lambda x: ops.index_select(x, dim, index),
        add=lambda x, src: ops.index_add(x, dim, index, src),
        reduce=lambda x, src: ops.index_reduce(x, dim, index, src, how, include_self=include_self),
    )
    of_self = of_self if include_self else ops.index_fill.int_Scalar(of_self, dim, index, 0)
    return {"self": of_self, "source": of_source}


# Random ops: a second run of the kernel would draw other numbers


@gradient("native_dropout")
def native_dropout(grads, args, results):
    grad, (_, p, train), mask = grads[0], args, results[1]
    scale = 1.0 if not train else 0.0 if p == 1 else 1.0 / (1.0 - p)
    return {"input": ops.native_dropout_backward(grad, mask, scale)}


@gradient("_fused_dropout")
def fused_dropout(grads, args, results):
    (_, p, _), mask = args, results[1]
    return {"self": ops.native_dropout_backward(grads[0], mask, 1.0 / p)}


@gradient("_standard_gamma")
def standard_gamma(grads, args, results):
    (grad,), (result,) = grads, results
    return {"self": ops.mul.Tensor(grad, ops._standard_gamma_grad(args[0], result))}


def _zero_gradients(*names: str) -> Callable[..., Gradients]:
    """Gradients that are zero, since a sample does not change smoothly with a parameter."""

    def gradients(grads: Sequence[torch.Tensor], args: Sequence[Any], results: Sequence[torch.Tensor]) -> Gradients:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        return {name: ops.zeros_like(t) for name, t in zip(names, tensors, strict=True)}

    return gradients


gradient("bernoulli", "poisson")(_zero_gradients("self"))
gradient("normal.Tensor_float")(_zero_gradients("mean"))
gradient("normal.float_Tensor")(_zero_gradients("std"))
gradient("normal.Tensor_Tensor")(_zero_gradients("mean", "std"))


@gradient("rrelu_with_noise_functional")
def rrelu_with_noise(grads, args, results):
    """The gradient with the slopes that the forward pass drew, its second result."""
    self, _, lower, upper, training, _ = args
    return {"self": ops.rrelu_with_noise_backward(grads[0], self, results[1], lower, upper, training, False)}


# CTC: ATen's formula is the gradient with respect to the logits under a log-softmax, which `jax.vjp` is not.


@gradient("_ctc_loss")
def ctc_loss(grads, args, results):
    lengths = args[1:4]
    log_probs, blank, zero_infinity = args[0], args[4], args[5]
    backward = ops._ctc_loss_backward.default
    return {"log_probs": backward(grads[0], log_probs, *lengths, results[0], results[1], blank, zero_infinity)}


@gradient("_ctc_loss.Tensor")
def ctc_loss_tensor(grads, args, results):
    lengths = args[1:4]
    log_probs, blank, zero_infinity = args[0], args[4], args[5]
    backward = ops._ctc_loss_backward.Tensor
    return {"log_probs": backward(grads[0], log_probs, *lengths, results[0], results[1], blank, zero_infinity)}


# The kernel squares as often as the values need, which reverse mode cannot follow


@gradient("linalg_matrix_exp")
def linalg_matrix_exp(grads, args, results):
    (grad,), (self,) = grads, args
    n = self.shape[-1]
    adjoint = ops.transpose.int(ops._conj_physical(self) if self.is_complex() else self, -2, -1)
    # exp([[A, G], [0, A]]) has the derivative in the direction G in its corner
    top = ops.cat([adjoint, grad], -1)
    bottom = ops.cat([ops.zeros_like(adjoint), adjoint], -1)
    whole = ops.linalg_matrix_exp(ops.cat([top, bottom], -2))
    return {"self": ops.slice.Tensor(ops.slice.Tensor(whole, -2, 0, n), -1, n, 2 * n)}


# ATen's own backward op has its own rule for ties, and products have no `jax.vjp`


@gradient("segment_reduce")
def segment_reduce(grads, args, results):
    data, reduce, lengths, _, offsets, axis, _, initial = args
    kwargs = {"lengths": lengths, "offsets": offsets, "axis": axis, "initial": initial}
    return {"data": ops._segment_reduce_backward(grads[0], results[0], data, reduce, **kwargs)}


# Convolutions: `convolution_backward` chooses how to lower each gradient, as the forward is chosen for


@gradient("convolution")
def convolution(grads, args, results, wanted):
    (grad,), (input, weight, bias, *settings) = grads, args
    mask = [name in wanted for name in ("input", "weight", "bias")]
    sizes = None if bias is None else list(bias.shape)
    got = ops.convolution_backward(grad, input, weight, sizes, *settings, mask)
    return dict(zip(("input", "weight", "bias"), got, strict=True))


@gradient("convolution_overrideable")
def convolution_overrideable(grads, args, results, wanted):
    (grad,), (input, weight, _, *settings) = grads, args
    mask = [name in wanted for name in ("input", "weight", "bias")]
    got = ops.convolution_backward_overrideable(grad, input, weight, *settings, mask)
    return dict(zip(("input", "weight", "bias"), got, strict=True))


# Fake quantization: the gradient passes where the value is in range, as if it had not been rounded


@gradient(
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
def fake_quantize(grads, args, results):
    return {"self": ops.mul.Tensor(grads[0], results[1])}


@gradient("_fake_quantize_learnable_per_tensor_affine")
def fake_quantize_learnable_per_tensor(grads, args, results):
    gradients = ops._fake_quantize_learnable_per_tensor_affine_backward(grads[0], *args)
    return dict(zip(("self", "scale", "zero_point"), gradients, strict=True))


@gradient("_fake_quantize_learnable_per_channel_affine")
def fake_quantize_learnable_per_channel(grads, args, results):
    gradients = ops._fake_quantize_learnable_per_channel_affine_backward(grads[0], *args)
    return dict(zip(("self", "scale", "zero_point"), gradients, strict=True))


# Packing runs eagerly, since the number of steps depends on the lengths: each step goes back to where it came from


@gradient("_pack_padded_sequence")
def pack_padded_sequence(grads, args, results):
    (grad,), (input, lengths, batch_first) = grads[:1], args
    length, batch = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
    steps = ops.unsqueeze(ops.arange(length, device=lengths.device), 1)
    present = ops.lt.Tensor(steps, ops.unsqueeze(lengths, 0))
    for _ in range(input.dim() - 2):
        present = ops.unsqueeze(present, present.dim())
    shape = [length, batch, *input.shape[2:]]
    zeros = ops.new_zeros(grad, shape)
    padded = ops.masked_scatter(zeros, ops.expand(present, shape), grad)
    return {"input": ops.transpose.int(padded, 0, 1) if batch_first else padded}
