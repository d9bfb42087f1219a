"""Kernels of torchvision's deformable convolution: each tap of the kernel reads at an offset of its own.

The image is read as rows of the channels that share offsets, a row for each pixel, four rows for each tap: a tap lies
between four pixels. What was read is multiplied by the weights, as for a convolution by patches. Gradients are those
of JAX: the derivative for an offset at a whole pixel is that to the right and downward, as torchvision's.
Sources: arXiv:1703.06211, arXiv:1811.11168 (masks), torchvision/csrc/ops/cpu/deform_conv2d_kernel.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..kernel_base.promotion import cast, compute_type

_ARGUMENTS = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w,"
    " SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups,"
    " bool use_mask"
)


class _Geometry(NamedTuple):
    """The arguments that are no tensors; the first three are pairs, along height and width."""

    strides: tuple[int, int]
    paddings: tuple[int, int]
    dilations: tuple[int, int]
    groups: int
    offset_groups: int
    use_mask: bool


def _require_fitting(
    input: jax.Array, weight: jax.Array, offset: jax.Array, mask: jax.Array, geometry: _Geometry
) -> None:
    """Raises torchvision's errors about shapes."""
    taps, groups = weight.shape[2] * weight.shape[3], geometry.offset_groups
    sizes = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(input.shape[2:], weight.shape[2:], *geometry[:3], strict=True)
    )
    if weight.shape[1] * geometry.groups != input.shape[1]:
        raise RuntimeError(f"input has {input.shape[1]} channels, expected {weight.shape[1] * geometry.groups}")
    if len(weight) % geometry.groups or input.shape[1] % groups:
        raise RuntimeError(f"{len(weight)} and {input.shape[1]} channels do not make groups")
    for name, found, planes in (("offset", offset, 2 * groups * taps), ("mask", mask, groups * taps)):
        if name == "mask" and not geometry.use_mask:
            continue
        if len(found) != len(input):
            raise RuntimeError(f"invalid batch size of {name}: got: {len(found)} expected: {len(input)}")
        if found.shape[1] != planes:
            raise RuntimeError(f"{name}.shape[1] is not valid: got: {found.shape[1]} expected: {planes}")
        if found.shape[2:] != sizes:
            raise RuntimeError(f"{name} output dims: {found.shape[2:]} - computed output dims: {sizes}")


def _positions(offset: jax.Array, taps: tuple[int, int], geometry: _Geometry) -> list[jax.Array]:
    """The positions of taps along height and width: (batch, offset groups, taps, height, width of the result) each."""
    batch, _, *sizes = offset.shape
    dtype, count = offset.dtype, taps[0] * taps[1]
    split = lax.reshape(offset, (batch, geometry.offset_groups, count, 2, *sizes))
    number = lax.iota(np.int32, count)
    found = []
    for axis, tap in enumerate((number // taps[1], number % taps[1])):
        start = lax.iota(np.int32, sizes[axis]) * geometry.strides[axis] - geometry.paddings[axis]
        start = lax.expand_dims(start, (1,) if axis == 0 else (0,))
        whole = (tap * geometry.dilations[axis])[:, None, None] + start
        found.append(cast(whole, dtype) + split[:, :, :, axis])
    return found


def _between(position: jax.Array, size: int) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
    """The two pixels beside each position along an axis, their weights, and whether they are in the image."""
    kind = position.dtype.type
    near = jnp.clip(position, kind(-2), kind(size + 1))  # what is further reads nothing either
    low = jnp.floor(near)
    part, first = near - low, cast(low, np.int32)
    return [(i, w, (i >= 0) & (i < size)) for i, w in ((first, kind(1) - part), (first + 1, part))]


def _columns(
    input: jax.Array, offset: jax.Array, mask: jax.Array, taps: tuple[int, int], geometry: _Geometry
) -> jax.Array:
    """The values that taps read: (batch, offset groups, taps, height, width, channels of an offset group)."""
    batch, channels, height, width = input.shape
    planes, share = batch * geometry.offset_groups, channels // geometry.offset_groups
    rows = jnp.moveaxis(lax.reshape(input, (planes, share, height * width)), 1, 2).reshape(-1, share)
    y, x = _positions(offset, taps, geometry)
    start = lax.reshape(lax.iota(np.int32, planes) * (height * width), (batch, geometry.offset_groups, 1, 1, 1))
    total = lax.full((*y.shape, share), 0, input.dtype)
    for i, of_y, in_y in _between(y, height):
        for j, of_x, in_x in _between(x, width):
            pixel = jnp.where(in_y & in_x, start + i * width + j, len(rows))
            total += (of_y * of_x)[..., None] * rows.at[pixel].get(mode="fill", fill_value=0)
    if geometry.use_mask:
        total *= lax.reshape(mask, y.shape)[..., None]
    return total


def _convolved(
    input: jax.Array, weight: jax.Array, offset: jax.Array, mask: jax.Array, bias: jax.Array, geometry: _Geometry
) -> jax.Array:
    """The whole of it, all operands of one dtype."""
    _require_fitting(input, weight, offset, mask, geometry)
    batch, groups = len(input), geometry.groups
    columns = _columns(input, offset, mask, weight.shape[2:], geometry)
    sizes = columns.shape[3:5]
    by_channel = jnp.moveaxis(columns, 5, 2)  # then taps, height and width
    patches = lax.reshape(by_channel, (batch, groups, weight[0].size, sizes[0] * sizes[1]))
    filters = lax.reshape(weight, (groups, len(weight) // groups, weight[0].size))
    product = jnp.einsum("bgkl,gok->bgol", patches, filters)
    return lax.reshape(product, (batch, len(weight), *sizes)) + bias[:, None, None]


@kernel(f"torchvision::deform_conv2d({_ARGUMENTS}) -> Tensor")
def deform_conv2d(
    input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups,
    use_mask,
):  # fmt: skip
    """A convolution whose taps are moved by offsets and weighted by masks."""
    geometry = _Geometry(
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups, offset_groups, use_mask
    )
    dtype = compute_type(input.dtype)
    return cast(_convolved(*(cast(t, dtype) for t in (input, weight, offset, mask, bias)), geometry), input.dtype)


@kernel(f"torchvision::_deform_conv2d_backward(Tensor grad, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
def deform_conv2d_backward(
    grad, input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups,
    offset_groups, use_mask,
):  # fmt: skip
    """The gradients of `deform_conv2d` with respect to its five tensors."""
    geometry = _Geometry(
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups, offset_groups, use_mask
    )
    operands, dtype = (input, weight, offset, mask, bias), compute_type(input.dtype)
    _, pullback = jax.vjp(lambda *found: _convolved(*found, geometry), *(cast(t, dtype) for t in operands))
    return tuple(cast(g, t.dtype) for g, t in zip(pullback(cast(grad, dtype)), operands, strict=True))
