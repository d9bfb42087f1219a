"""The choice of the lowering that XLA's CPU compiler is given for a convolution, or for one of its gradients.

It hands a convolution to Eigen, or, where that cannot take it, to a loop over every product: groups, and windows larger
than what they slide over, cost 10 to 100 times too much. `choose` is asked for a single convolution, with channels
first, as the program has it; `lowering` for those of a program with several, which `cpu.layouts` computes with channels
last: a transposition around each costs more than the choice between ways to compute it. The limits are measured, on one
core.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ..arrays.strides import Shape
from ..kernel_base import conv_parts
from ..kernel_base.conv_parts import FIRST, LAST, ConvCall, ConvLayout, Windows
from ..kernel_base.promotion import cast, compute_type, is_float, widened
from . import (
    conv_direct,
    conv_grouped,
    conv_matrix,
    conv_patches,
    conv_space_to_depth,
    conv_taps,
    conv_volumes,
    conv_winograd,
)
from .conv_patches import apart
from .conv_space_to_depth import FEW_CHANNELS
from .conv_taps import MOST_TAPS

_Part = Callable[[jax.Array, jax.Array, Windows, Shape], jax.Array]  # the last is the result's shape


class Lowering(NamedTuple):
    """One way to compute a convolution and its gradients, in a real dtype."""

    forward: _Part
    input_gradient: _Part
    weight_gradient: _Part

    def of(self, part: str) -> _Part:
        found: _Part = getattr(self, part)
        return found


def _lowering(module: Any, layout: ConvLayout | None = None, **settings: Any) -> Lowering:
    """The functions of a module that computes the three parts."""
    given = settings if layout is None else settings | {"layout": layout}
    return Lowering(*(functools.partial(getattr(module, part), **given) for part in Lowering._fields))


def by_images(compute: Callable[..., jax.Array], layout: ConvLayout) -> Lowering:
    """Volumes by a function that computes parts of convolutions of images."""
    parts = (getattr(conv_volumes, part) for part in Lowering._fields)
    return Lowering(*(functools.partial(part, compute, layout=layout) for part in parts))


# --- channels first ---------------------------------------------------------------------------------------------------

_LITTLE, _RATHER_LITTLE = 32, 80  # terms of a sum
FEW_TERMS = 40  # of one element's sum, to be written out

DIRECT = _lowering(conv_parts, FIRST)
EIGEN = DIRECT._replace(weight_gradient=functools.partial(conv_direct.padded_first, layout=FIRST))
TAPS = _lowering(conv_taps, FIRST)
PATCHES = _lowering(conv_patches)
STRIDED = TAPS._replace(forward=PATCHES.forward)
PATCHED = EIGEN._replace(forward=PATCHES.forward)


def compute(call: ConvCall, a: jax.Array, b: jax.Array) -> jax.Array:
    """The result of a call, with channels first; computed in float32 if the dtype is half."""
    if not is_float(a.dtype):
        return conv_parts.compute(call, a, b)
    image, outputs = call.image(a), b.shape[1] if call.part == "weight_gradient" else b.shape[0]
    slid = None if call.part == "weight_gradient" else a.shape[2:]
    chosen = choose(call.windows, image, outputs, slid is None or fits(call.windows, slid)).of(call.part)
    shape, wide = call.result(a, b), compute_type(a.dtype)
    if chosen is DIRECT.of(call.part):
        return chosen(a, b, call.windows, shape)
    return cast(chosen(widened(a, wide), widened(b, wide), call.windows, shape), a.dtype)


def _of_images(part: str, a: jax.Array, b: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return compute(ConvCall(part, windows, () if part == "forward" else shape), a, b)


DEPTH = by_images(_of_images, FIRST)


def choose(windows: Windows, shape: Shape, outputs: int, window_fits: bool) -> Lowering:
    """For an input's shape (N, C, ...) and the number of output channels."""
    taps, channels = math.prod(windows.kernel), shape[1]
    if len(windows.kernel) == 3 and windows.groups == 1 and windows.kernel[0] > 1 and not apart(windows):
        return DEPTH
    if taps > MOST_TAPS and not apart(windows):
        return EIGEN
    if windows.groups > 1:
        terms = max(channels, outputs) // windows.groups * taps
        if windows.groups != channels and terms > FEW_TERMS:
            return PATCHES
        return STRIDED if windows.groups != channels and max(windows.stride) > 1 else TAPS
    little = channels * taps <= _LITTLE
    if taps == 1 or apart(windows) or is_small(windows, shape, outputs) or little or not window_fits:
        return PATCHES
    return PATCHED if channels * taps <= _RATHER_LITTLE else EIGEN


def is_small(windows: Windows, shape: Shape, outputs: int) -> bool:
    """True if images are so small that to bring the weight in order costs more than the convolution."""
    return shape[0] * math.prod(windows.positions(shape[2:])) <= outputs // 4


def fits(windows: Windows, sizes: Shape) -> bool:
    """True if a kernel is no larger than what it slides over, without padding: Eigen takes no other."""
    return all(reach < size for reach, size in zip(windows.reach(), sizes, strict=True))


# --- channels last ----------------------------------------------------------------------------------------------------

_LEADING_CHANNELS = 4
_MANY_POSITIONS = 256  # of smaller images XLA's own is as fast

_DIRECT = _lowering(conv_direct)
_DEPTHWISE = _lowering(conv_taps, LAST)
_SUMS = _lowering(conv_grouped)
_ONE_BY_ONE = Lowering(
    conv_grouped.one_by_one, conv_grouped.gradient_one_by_one, conv_grouped.weight_one_by_one
)  # of each group
_PRODUCT = _lowering(conv_matrix)
_BLOCKS = _lowering(conv_space_to_depth)
_TILES = Lowering(
    functools.partial(conv_winograd.forward, plain=conv_direct.forward),
    functools.partial(conv_winograd.input_gradient, plain=conv_direct.forward),
    functools.partial(conv_winograd.weight_gradient, plain=conv_direct.weight_gradient),
)


def orders(call: ConvCall, ndim: int) -> tuple[Shape, Shape, Shape]:
    """The orders of a call's two operands and of its result, as dimensions of what the program has."""
    spatial = range(2, ndim)
    image, kernel = (0, *spatial, 1), (*spatial, 1, 0)
    return {
        "forward": (image, kernel, image),
        "input_gradient": (image, kernel, image),
        "weight_gradient": (image, image, kernel),
    }[call.part]


def lowering(call: ConvCall, a: Any, b: Any, *, follows: bool) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """A function of operands in those orders that computes a call; None if that is better done with channels first.

    Args:
        call: what is to be computed.
        a, b: the operands' shapes and dtypes as the program has them.
        follows: true if an operand is in such an order already.
    """
    found = _choose_last(call, a, b, follows)
    if found is None or not is_float(a.dtype):
        return None
    result = call.result(a, b)
    shape = tuple(result[d] for d in orders(call, len(result))[2])
    wide = compute_type(a.dtype)
    return lambda x, y: cast(found.of(call.part)(widened(x, wide), widened(y, wide), call.windows, shape), a.dtype)


def leads(call: ConvCall, a: Any, b: Any) -> bool:
    """True if a call is a reason to bring its operands into those orders."""
    channels, _ = _channels(call, a, b)
    # one with a kernel for each channel mostly lies between products, which are computed in any order
    return channels >= _LEADING_CHANNELS and lowering(call, a, b, follows=is_depthwise(call, a, b)) is not None


def is_depthwise(call: ConvCall, a: Any, b: Any) -> bool:
    """True if there is one kernel for each channel."""
    channels, outputs = _channels(call, a, b)
    return 1 < call.windows.groups == channels == outputs


def _channels(call: ConvCall, a: Any, b: Any) -> tuple[int, int]:
    """The numbers of channels that the convolution takes and gives."""
    return call.image(a)[1], b.shape[1] if call.part == "weight_gradient" else b.shape[0]


def _choose_last(call: ConvCall, a: Any, b: Any, follows: bool) -> Lowering | None:
    windows, part, (channels, outputs) = call.windows, call.part, _channels(call, a, b)
    if windows.groups > 1:
        return _choose_for_groups(call, a, b, follows)
    if math.prod(windows.kernel) == 1 and not any(windows.padding):
        return _PRODUCT if follows else None
    image = call.image(a)
    if apart(windows) or is_small(windows, image, outputs):
        return None
    if len(windows.kernel) > 2:
        return _choose_for_volumes(call, channels, outputs)
    if part != "weight_gradient" and not fits(windows, a.shape[2:]):
        return None
    if _is_by_tiles(call, a.dtype, image, channels, outputs):
        return _TILES
    many = part == "weight_gradient" and math.prod(windows.positions(a.shape[2:])) >= _MANY_POSITIONS
    if max(windows.dilation) == 1:
        if many and max(windows.stride) > 1:
            return _BLOCKS
        if conv_space_to_depth.blocks_pay(part, windows, channels, outputs):
            return _BLOCKS
    return _DIRECT


def _choose_for_groups(call: ConvCall, a: Any, b: Any, follows: bool) -> Lowering | None:
    windows, part, (channels, outputs) = call.windows, call.part, _channels(call, a, b)
    if len(windows.kernel) > 2 or 0 in (*a.shape, *b.shape, *call.shape):
        return None
    if is_depthwise(call, a, b):
        return _DEPTHWISE if follows and math.prod(windows.kernel) <= MOST_TAPS else None
    of_group, taps = (channels // windows.groups, outputs // windows.groups), math.prod(windows.kernel)
    if not follows and taps == 1:
        return None
    if max(of_group) * taps <= FEW_TERMS and (part == "weight_gradient" or not follows):
        return None  # products written out, in the program's order
    if conv_grouped.are_sums(part, windows.kernel, *of_group):
        return _SUMS
    if not follows and a.shape[0] == 1:
        return None
    takes = part == "weight_gradient" or fits(windows, a.shape[2:])
    return _ONE_BY_ONE if takes and conv_grouped.are_large(*of_group) else None


def _choose_for_volumes(call: ConvCall, channels: int, outputs: int) -> Lowering | None:
    windows, part = call.windows, call.part
    if len(windows.kernel) > 3:
        return None
    if part == "input_gradient" and channels < FEW_CHANNELS:
        return None
    return _SUMS if conv_volumes.are_sums_of_volumes(part, windows.kernel, channels, outputs) else VOLUMES


def _is_by_tiles(call: ConvCall, dtype: Any, image: Shape, channels: int, outputs: int) -> bool:
    windows = call.windows
    if not conv_winograd.takes(windows) or compute_type(dtype) != np.float32:
        return False
    sizes = image[2:] if call.part == "input_gradient" else windows.positions(image[2:])
    return conv_winograd.transforms_pay(image[0], sizes, channels, outputs, of_weight=call.part == "weight_gradient")


def of_images(part: str, a: jax.Array, b: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """A part of a convolution of images, as it is computed best."""
    ndim = len(shape)
    *taken, left = orders(ConvCall(part, windows, ()), ndim)
    operands = [
        jax.ShapeDtypeStruct([x.shape[o.index(d)] for d in range(ndim)], x.dtype)
        for x, o in zip((a, b), taken, strict=True)
    ]
    result = () if part == "forward" else tuple(shape[left.index(d)] for d in range(ndim))
    found = _choose_last(ConvCall(part, windows, result), *operands, follows=True)
    return (found or _DIRECT).of(part)(a, b, windows, shape)


VOLUMES = by_images(of_images, LAST)
