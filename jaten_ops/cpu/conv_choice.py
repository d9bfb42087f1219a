"""The choice of the lowering that XLA's CPU compiler is given for a convolution, or for one of its gradients.

It hands a convolution to Eigen, or, where that cannot take it, to a loop over every product: groups, and windows larger
than what they slide over, cost 10 to 100 times too much. `choose` is asked for a single convolution, with channels
first, as the program has it; `lowering` for those of a program with several, which `cpu.layouts` computes with channels
last: a transposition around each costs more than the choice between ways to compute it. The limits are measured, on one
core. Where a program asks for it (`xla/autotune_mode.py`), all ways that can take a convolution are measured instead.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaten_ops.xla import autotune, autotune_mode, cpu_features, onednn

from ..arrays.strides import Shape
from ..kernel_base import conv_parts
from ..kernel_base.conv_parts import FIRST, LAST, ConvCall, Windows
from ..kernel_base.promotion import compute_type, is_float
from . import conv_grouped, conv_matrix, conv_space_to_depth, conv_volumes, conv_winograd
from .conv_direct import MANY_IMAGES
from .conv_lowerings import (
    BLOCKS,
    DEPTHWISE,
    EIGEN,
    FEW_TERMS,
    LAST_DIRECT,
    ONE_BY_ONE,
    ONEDNN,
    ONEDNN_FIRST,
    PATCHES,
    PRODUCT,
    ROWS,
    SUMS,
    TAPS,
    TILES,
    Compute,
    Lowering,
    Size,
    Way,
    by_images,
    computes_in_bfloat16,
    fits,
    has_few_channels,
    is_open_to_onednn,
    is_open_to_rows,
    orders,
    possible,
    program_orders,
    usual_orders,
)
from .conv_patches import apart
from .conv_space_to_depth import FEW_CHANNELS
from .conv_taps import MOST_TAPS


def compute(call: ConvCall, a: jax.Array, b: jax.Array) -> jax.Array:
    """The result of a call, with channels first; computed in float32 if the dtype is half."""
    if not is_float(a.dtype):
        return conv_parts.compute(call, a, b)
    return _best(call, a, b, ruled_first(call, a, b), last=False).run(call, a, b, program_orders(a.ndim))(a, b)


def lowering(call: ConvCall, a: Any, b: Any, *, follows: bool) -> Compute | None:
    """A function of operands with channels last that computes a call; None if it is better done with channels first.

    Args:
        call: what is to be computed.
        a, b: the operands' shapes and dtypes as the program has them.
        follows: true if an operand has its channels last already.
    """
    if not is_float(a.dtype):
        return None
    best = _best(call, a, b, ruled(call, a, b, follows=follows), last=follows)
    return best.run(call, a, b, orders(call, len(a.shape))) if best.last else None


def ruled(call: ConvCall, a: Any, b: Any, *, follows: bool) -> Way:
    """The way that the rules choose in a program whose other convolutions have channels last; see `lowering`."""
    if is_by_library(call, a, b):
        return BY_LIBRARY
    found = _choose_last(call, a, b, follows)
    return ruled_first(call, a, b) if found is None else Way(found, last=True)


def ruled_first(call: ConvCall, a: Any, b: Any) -> Way:
    """The way that the rules choose in a program whose images have their channels first."""
    size = Size.of(call, a, b)
    of_weight = call.part == "weight_gradient"
    if is_by_library(call, a, b) and size.of_group[0] * size.taps > _little(call, size):
        return BY_LIBRARY if a.dtype == jnp.bfloat16 else Way(ONEDNN_FIRST, last=False)
    if _is_product_of_short(call, a, size):
        return Way(PATCHES, last=False)
    if _is_by_rows(call, a, size, 2 * _LEAST_OF_ROWS):  # more, since all is brought into another order
        return Way(ROWS, last=True)
    if has_few_channels(call, size):
        return Way(FILTERS, last=False)
    if call.windows.groups == 1 and len(call.windows.kernel) <= 2 and _slides_far(call, a):
        return Way(PATCHES, last=False)
    return Way(choose(call.windows, size.image, size.outputs, of_weight or fits(call.windows, a.shape[2:])), last=False)


def _little(call: ConvCall, size: Size) -> int:
    """The terms of a sum that take no longer, with channels first, than to bring the channels last."""
    if not size.is_depthwise:
        return _LITTLE
    return _MOST_IN_PRODUCT if max(call.windows.stride) == 1 else _FEW_PRODUCTS


def _is_product_of_short(call: ConvCall, a: Any, size: Size) -> bool:
    """True if a part of bfloat16 with channels first is best one product of what lies under each window."""
    windows = call.windows
    if not computes_in_bfloat16(a.dtype) or windows.groups > 1 or len(windows.kernel) > 2:
        return False
    if apart(windows):
        return True
    if call.part == "weight_gradient" and min(size.channels, size.outputs) < 2 * _LEAST_OF_ROWS:
        return size.taps <= _FEW_PRODUCTS or not has_few_channels(call, size)
    if call.part != "input_gradient" or max(windows.stride) == 1:
        return False
    # what the windows have in common is added up element by element, which takes long for large images
    few = math.prod(a.shape[2:]) <= _FEW_POSITIONS or size.channels <= FEW_CHANNELS or len(windows.kernel) == 1
    return few and size.taps <= _MOST_IN_PRODUCT


def _best(call: ConvCall, a: Any, b: Any, usual: Way, *, last: bool) -> Way:
    """The fastest way by measurement, if the program asks for one, else that of the rules.

    Args:
        call: what is to be computed.
        a, b: the operands' shapes and dtypes with channels first.
        usual: the way of the rules.
        last: whether the operands have their channels last.
    """
    if not autotune_mode.wants(Size.of(call, a, b).multiplications(call.windows)):
        return usual
    ways = possible(call, a, b)
    another = "another, channels last" if usual.last else "another"  # such as that of volumes
    default = next((name for name, way in ways.items() if way.computes_as(usual, call)), another)
    ways.setdefault(default, usual)
    ndim = len(a.shape)
    given = usual_orders(call, ndim) if last else program_orders(ndim)
    forms = {name: autotune.Form(way.run(call, a, b, given)) for name, way in ways.items()}
    operands = [
        jax.ShapeDtypeStruct([x.shape[d] for d in order], x.dtype) for x, order in ((a, given.first), (b, given.second))
    ]
    key = f"{call} of {a.dtype} {list(a.shape)} and {list(b.shape)}, channels {'last' if last else 'first'}"
    return ways[autotune.fastest(key, forms, operands, default)]


_LEAST_OF_LIBRARY = 2**20  # multiplications: of fewer, what comes before them takes longer


def is_by_library(call: ConvCall, a: Any, b: Any) -> bool:
    """True if oneDNN computes a part fastest: of bfloat16 that the processor multiplies all but plain products.

    Of float32, on such processors, those of groups and of volumes that nothing else computes well: a program with such
    a call is compiled in each process.
    """
    if not onednn.may_be_called() or not cpu_features.multiplies_bfloat16() or not is_open_to_onednn(call, a):
        return False
    windows, size = call.windows, Size.of(call, a, b)
    if size.taps == 1 or apart(windows) or size.multiplications(windows) < _LEAST_OF_LIBRARY:
        return False
    if a.dtype != jnp.bfloat16:
        return a.dtype == np.float32 and call.part != "weight_gradient" and _is_far_off(windows, size)
    if windows.groups == 1 and is_small(windows, size.image, size.outputs):
        return False
    if size.is_depthwise and len(windows.kernel) == 1:  # which it has no loop for
        return False
    if call.part == "weight_gradient":  # the images become channels, and the output's gradient the kernel
        planes = len(windows.kernel) == 2 and min(windows.kernel) > 1 and max(windows.stride) == 1
        positions = math.prod(windows.positions(size.image[2:]))
        return planes and size.image[0] >= MANY_IMAGES and positions >= _MANY_POSITIONS
    return not has_few_channels(call, size)


_LEAST_OF_GROUP, _MOST_OF_VOLUME = 8, 16  # channels


def _is_far_off(windows: Windows, size: Size) -> bool:
    """True if other ways to compute a convolution of float32 take up to twice as long as oneDNN."""
    if windows.groups > 1:
        return min(size.of_group) >= _LEAST_OF_GROUP
    return len(windows.kernel) > 2 and windows.kernel[0] > 1 and size.channels <= _MOST_OF_VOLUME


# --- the rules, with channels first -----------------------------------------------------------------------------------

_LITTLE, _RATHER_LITTLE = 32, 80  # terms of a sum
_MOST_IN_PRODUCT, _FEW_POSITIONS = 25, 64  # elements of a kernel, and of an image
_FEW_PRODUCTS = 9  # elements of a small kernel
# terms that are written out where matrix products are slow, of groups of as many channels
_RATHER_MANY, _CHANNELS_OF_FEW = 100, 12

WRITTEN_OUT = TAPS._replace(weight_gradient=PATCHES.weight_gradient)
STRIDED = TAPS._replace(forward=PATCHES.forward)
FILTERS = TAPS._replace(weight_gradient=EIGEN.weight_gradient)
PATCHED = EIGEN._replace(forward=PATCHES.forward)
BY_LIBRARY = Way(ONEDNN, last=True)


def _of_images(part: str, a: jax.Array, b: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return compute(ConvCall(part, windows, () if part == "forward" else shape), a, b)


DEPTH = by_images(_of_images, FIRST)


def choose(windows: Windows, shape: Shape, outputs: int, window_fits: bool) -> Lowering:
    """For an input's shape (N, C, ...) and the number of output channels."""
    taps, channels = math.prod(windows.kernel), shape[1]
    if len(windows.kernel) == 3 and windows.groups == 1 and not apart(windows):
        if _is_small_volume(windows, shape, outputs):
            return PATCHES
        if windows.kernel[0] > 1:
            return DEPTH
    if taps > MOST_TAPS and not apart(windows):
        return EIGEN
    if windows.groups > 1:
        terms = max(channels, outputs) // windows.groups * taps
        if windows.groups != channels and terms > FEW_TERMS:
            slow = not cpu_features.multiplies_fast() and channels // windows.groups <= _CHANNELS_OF_FEW
            return WRITTEN_OUT if slow and terms <= _RATHER_MANY and max(windows.stride) == 1 else PATCHES
        return STRIDED if windows.groups != channels and max(windows.stride) > 1 else TAPS
    little = channels * taps <= _LITTLE
    if taps == 1 or apart(windows) or is_small(windows, shape, outputs) or little or not window_fits:
        return PATCHES
    return PATCHED if channels * taps <= _RATHER_LITTLE else EIGEN


def is_small(windows: Windows, shape: Shape, outputs: int) -> bool:
    """True if images are so small that to bring the weight in order costs more than the convolution."""
    return shape[0] * math.prod(windows.positions(shape[2:])) <= outputs // 4


def _is_small_volume(windows: Windows, shape: Shape, outputs: int) -> bool:
    """True if volumes have so few positions that one product, of what lies under each, takes less than one an image."""
    return shape[0] * math.prod(windows.positions(shape[2:])) <= outputs


# --- the rules, with channels last ------------------------------------------------------------------------------------

_LEADING_CHANNELS = 4
_MANY_POSITIONS = 256  # of smaller images XLA's own is as fast
_LEAST_OF_ROWS = 32  # channels; and outputs
_MOST_IN_ROWS = 3 * 2**20  # elements under the rows of a kernel
_LANES_OF_SUMS = 48  # channels side by side, whose sums are vectors


def leads(call: ConvCall, a: Any, b: Any) -> bool:
    """True if a call is a reason to bring its operands into those orders."""
    # one with a kernel for each channel mostly lies between products, which are computed in any order
    return call.image(a)[1] >= _LEADING_CHANNELS and lowering(call, a, b, follows=is_depthwise(call, a, b)) is not None


def is_depthwise(call: ConvCall, a: Any, b: Any) -> bool:
    """True if there is one kernel for each channel."""
    return Size.of(call, a, b).is_depthwise


def _choose_last(call: ConvCall, a: Any, b: Any, follows: bool) -> Lowering | None:
    windows, part, size = call.windows, call.part, Size.of(call, a, b)
    image, outputs, channels = size.image, size.outputs, size.channels
    if windows.groups > 1:
        return _choose_for_groups(call, a, b, follows)
    if size.taps == 1 and not any(windows.padding):
        return _choose_for_one_element(call, a, channels) if follows else None
    if part != "weight_gradient" and has_few_channels(call, size):
        return None
    if is_small(windows, image, outputs) or (apart(windows) and (not follows or len(windows.kernel) > 2)):
        return None
    if not follows and len(windows.kernel) <= 2 and (_slides_far(call, a) or _is_product_of_short(call, a, size)):
        return None
    if computes_in_bfloat16(a.dtype) and conv_matrix.is_one_product(windows):
        return PRODUCT
    if len(windows.kernel) > 2:
        return None if _is_small_volume(windows, image, outputs) else _choose_for_volumes(call, channels, outputs)
    if part != "weight_gradient" and not fits(windows, a.shape[2:]):
        return None
    if _is_by_rows(call, a, size, _LEAST_OF_ROWS):
        return ROWS
    if _is_by_tiles(call, a.dtype, image, channels, outputs):
        return TILES
    if part != "weight_gradient" and channels * size.taps <= _LITTLE:
        return None
    by_blocks = conv_space_to_depth.blocks_possible(part, windows) and (
        _slides_far(call, a) or conv_space_to_depth.blocks_pay(part, windows, channels, outputs)
    )
    return BLOCKS if by_blocks else LAST_DIRECT


def _choose_for_one_element(call: ConvCall, a: Any, channels: int) -> Lowering:
    # padded between its elements, a gradient with channels last takes many times as long, but for short elements
    taken = call.part == "input_gradient" and max(call.windows.stride) > 1 and not computes_in_bfloat16(a.dtype)
    return LAST_DIRECT if taken or (call.part == "forward" and channels < FEW_CHANNELS) else PRODUCT


def _is_by_rows(call: ConvCall, a: Any, size: Size, least: int) -> bool:
    """True if a part, of at least so many channels and outputs, is one product for each row of the kernel."""
    windows, few = call.windows, min(size.channels, size.outputs) < least
    if few or size.taps == 1 or len(windows.kernel) > 2 or not is_open_to_rows(call, a):
        return False
    if is_small(windows, size.image, size.outputs):
        return False
    return math.prod(a.shape) * windows.kernel[-1] <= _MOST_IN_ROWS  # what the kernel slides over


def _slides_far(call: ConvCall, a: Any) -> bool:
    """True if a weight's gradient is one with strides that XLA takes long for.

    XLA slides the output's gradient, with gaps, over the input, and adds the products of all images at each place.
    """
    if call.part != "weight_gradient" or max(call.windows.stride) == 1:
        return False
    if a.shape[0] < MANY_IMAGES:
        return True
    return cpu_features.multiplies_fast() and math.prod(call.windows.positions(a.shape[2:])) >= _MANY_POSITIONS


def _choose_for_groups(call: ConvCall, a: Any, b: Any, follows: bool) -> Lowering | None:
    windows, part, size = call.windows, call.part, Size.of(call, a, b)
    if len(windows.kernel) > 2 or 0 in (*a.shape, *b.shape, *call.shape):
        return None
    if size.is_depthwise:
        few = part == "weight_gradient" and size.channels < _LANES_OF_SUMS and windows.stride[-1] > 1
        return DEPTHWISE if follows and size.taps <= MOST_TAPS and not few else None
    of_group, taps = size.of_group, size.taps
    if not follows and taps == 1:
        return None
    if max(of_group) * taps <= FEW_TERMS and (part == "weight_gradient" or not follows):
        return None  # products written out, in the program's order
    if conv_grouped.are_sums(part, windows.kernel, *of_group):
        return SUMS
    if not follows and a.shape[0] == 1 and _stays_in_order(call, size):
        return None
    takes = part == "weight_gradient" or fits(windows, a.shape[2:])
    return ONE_BY_ONE if takes and conv_grouped.are_large(*of_group) else None


def _stays_in_order(call: ConvCall, size: Size) -> bool:
    """True if the groups of one image are computed in the program's order: each one's convolution saves too little."""
    if call.part == "weight_gradient" or cpu_features.multiplies_fast():
        return True
    return size.of_group[0] <= _CHANNELS_OF_FEW or is_small(call.windows, size.image, size.outputs)


def _choose_for_volumes(call: ConvCall, channels: int, outputs: int) -> Lowering | None:
    windows, part = call.windows, call.part
    if len(windows.kernel) > 3:
        return None
    if part == "input_gradient" and channels < FEW_CHANNELS:
        return None
    return SUMS if conv_volumes.are_sums_of_volumes(part, windows.kernel, channels, outputs) else VOLUMES


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
    return (found or LAST_DIRECT).of(part)(a, b, windows, shape)


VOLUMES = by_images(of_images, LAST)
