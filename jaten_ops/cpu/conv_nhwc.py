"""Convolutions and their gradients of images with channels last, on a CPU: which is how XLA computes them.

An image is (N, ..., C) here, a kernel (..., C / groups, O). `conv_nchw` takes and gives (N, C, ...), and a
transposition around each costs more than the choice between ways to compute it; `jaten_ops.cpu.layouts` leaves them out
where there are several convolutions in a program, and asks here for each. The limits in `lowering` are measured, on
one core.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from ..kernel_base.materialize import stored
from ..kernel_base.promotion import cast, compute_type, is_float, widened
from . import conv_depthwise, conv_grouped, conv_nchw, conv_volumes, conv_winograd
from .conv_nchw import Call, Shape, Windows
from .conv_space_to_depth import FEW_CHANNELS, Blocks, side_by_side
from .dot_reductions import all_finite

Part = Callable[[jax.Array, jax.Array, Windows, Shape], jax.Array]  # the last is the result's shape


def orders(call: Call, ndim: int) -> tuple[Shape, Shape, Shape]:
    """The orders of a call's two operands and of its result, as dimensions of what `conv_nchw` has."""
    spatial = range(2, ndim)
    image, kernel = (0, *spatial, 1), (*spatial, 1, 0)
    return {
        "forward": (image, kernel, image),
        "input_gradient": (image, kernel, image),
        "weight_gradient": (image, image, kernel),
    }[call.part]


def lowering(call: Call, a: Any, b: Any, *, follows: bool) -> Callable[[jax.Array, jax.Array], jax.Array] | None:
    """How to compute it from operands in those orders; None if it is better computed as `conv_nchw` has it.

    Args:
        call: what is to be computed.
        a, b: the operands' shapes and dtypes as `conv_nchw` has them.
        follows: whether an operand is in such an order already.
    """
    found = _choose(call, a, b, follows)
    if found is None or not is_float(a.dtype):
        return None
    result = call.shape or (a.shape[0], b.shape[0], *call.windows.positions(a.shape[2:]))
    shape = tuple(result[d] for d in orders(call, len(result))[2])
    compute = compute_type(a.dtype)
    return lambda x, y: cast(found(widened(x, compute), widened(y, compute), call.windows, shape), a.dtype)


def leads(call: Call, a: Any, b: Any) -> bool:
    """Whether a call is a reason to bring its operands into those orders."""
    channels, _ = _channels(call, a, b)
    # one with a kernel for each channel mostly lies between products, which are computed in any order
    return channels >= _LEADING_CHANNELS and lowering(call, a, b, follows=is_depthwise(call, a, b)) is not None


def is_depthwise(call: Call, a: Any, b: Any) -> bool:
    """Whether there is one kernel for each channel."""
    channels, outputs = _channels(call, a, b)
    return 1 < call.windows.groups == channels == outputs


_LEADING_CHANNELS = 4
_MANY_POSITIONS = 256  # of smaller images XLA's own is as fast


def _channels(call: Call, a: Any, b: Any) -> tuple[int, int]:
    """How many the convolution takes and gives."""
    return {
        "forward": lambda: (a.shape[1], b.shape[0]),
        "input_gradient": lambda: (call.shape[1], b.shape[0]),
        "weight_gradient": lambda: (a.shape[1], b.shape[1]),
    }[call.part]()


def _choose(call: Call, a: Any, b: Any, follows: bool) -> Part | None:
    windows, part, (channels, outputs) = call.windows, call.part, _channels(call, a, b)
    if windows.groups > 1:
        return _choose_for_groups(call, a, b, follows)
    if math.prod(windows.kernel) == 1 and not any(windows.padding):
        return _PRODUCT[part] if follows else None
    image = call.shape if part == "input_gradient" else a.shape
    if conv_nchw.apart(windows) or conv_nchw.is_small(windows, image, outputs):
        return None
    if len(windows.kernel) > 2:
        return _choose_for_volumes(call, channels, outputs)
    if part != "weight_gradient" and not conv_nchw.fits(windows, a.shape[2:]):
        return None
    if _is_by_tiles(call, a.dtype, image, channels, outputs):
        return _BY_TILES[part]
    many = part == "weight_gradient" and math.prod(windows.positions(a.shape[2:])) >= _MANY_POSITIONS
    if max(windows.dilation) == 1:
        if many and max(windows.stride) > 1:
            return _by_blocks_of_weight
        if _is_by_blocks(call, channels, outputs):
            return _BY_BLOCKS[part]
    return _DIRECT[part]


def _choose_for_groups(call: Call, a: Any, b: Any, follows: bool) -> Part | None:
    windows, part, (channels, outputs) = call.windows, call.part, _channels(call, a, b)
    if len(windows.kernel) > 2 or 0 in (*a.shape, *b.shape, *call.shape):
        return None
    if is_depthwise(call, a, b):
        return _DEPTHWISE[part] if follows and math.prod(windows.kernel) <= conv_nchw.MOST_TAPS else None
    of_group, taps = (channels // windows.groups, outputs // windows.groups), math.prod(windows.kernel)
    if not follows and taps == 1:
        return None
    if max(of_group) * taps <= conv_nchw.FEW_TERMS and (part == "weight_gradient" or not follows):
        return None  # products written out, in the program's order
    if conv_grouped.are_sums(part, windows.kernel, *of_group):
        return _SUMS[part]
    if not follows and a.shape[0] == 1:
        return None
    fits = part == "weight_gradient" or conv_nchw.fits(windows, a.shape[2:])
    return _ONE_BY_ONE[part] if fits and conv_grouped.are_large(*of_group) else None


def _choose_for_volumes(call: Call, channels: int, outputs: int) -> Part | None:
    windows, part = call.windows, call.part
    if len(windows.kernel) > 3:
        return None
    if part == "input_gradient" and channels < FEW_CHANNELS:
        return None
    if conv_volumes.are_sums(part, windows.kernel, channels, outputs):
        return _SUMS[part]
    return functools.partial(_VOLUMES[part], of_images)


def of_images(part: str, a: jax.Array, b: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """A part of a convolution of images, as it is computed best."""
    ndim = len(shape)
    *taken, left = orders(Call(part, windows, ()), ndim)
    operands = [
        jax.ShapeDtypeStruct([x.shape[o.index(d)] for d in range(ndim)], x.dtype)
        for x, o in zip((a, b), taken, strict=True)
    ]
    result = () if part == "forward" else tuple(shape[left.index(d)] for d in range(ndim))
    found = _choose(Call(part, windows, result), *operands, follows=True)
    return (found or _DIRECT[part])(a, b, windows, shape)


# --- XLA's convolution ------------------------------------------------------------------------------------------------


def _direct(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        weight,
        window_strides=windows.stride,
        padding=[(p, p) for p in windows.padding],
        rhs_dilation=windows.dilation,
        dimension_numbers=conv_grouped.numbers(x.ndim),
    )


def _direct_of_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    by_input = lambda x: _direct(x, weight, windows, shape)  # noqa: E731  # as an argument
    return jax.linear_transpose(by_input, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


def _direct_of_weight(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    # it slides the output's gradient over the input: padded apart, that is never the larger one
    if max(*windows.stride, *windows.dilation) == 1 and grad.shape[-1] < x.shape[-1]:
        return _swapped_of_weight(x, grad, windows, shape)
    padded = lax.optimization_barrier(conv_winograd.padded(x, [(p, p) for p in windows.padding]))
    windows = windows._replace(padding=(0,) * len(windows.padding))
    by_weight = lambda w: _direct(padded, w, windows, shape)  # noqa: E731  # as an argument
    return jax.linear_transpose(by_weight, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


def _swapped_of_weight(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The same products, with the input slid over the output's gradient: XLA transposes what is slid over."""
    around = tuple(r - p for r, p in zip(windows.reach(), windows.padding, strict=True))
    swapped = (*shape[:-2], shape[-1], shape[-2])
    found = _direct_of_weight(grad, x, windows._replace(padding=around), swapped)
    last = len(shape) - 1
    return lax.transpose(lax.rev(found, range(last - 1)), (*range(last - 1), last, last - 1))


def turned(weight: jax.Array, windows: Windows) -> tuple[jax.Array, Windows]:
    """For the transpose, without strides a convolution: by the kernel from its end, its channels swapped."""
    last = weight.ndim - 1
    turned = lax.transpose(lax.rev(weight, range(last - 1)), (*range(last - 1), last, last - 1))
    around = tuple(r - p for r, p in zip(windows.reach(), windows.padding, strict=True))
    return turned, windows._replace(padding=around)


_DEPTHWISE: dict[str, Part] = {
    "forward": conv_depthwise.forward,
    "input_gradient": conv_depthwise.input_gradient,
    "weight_gradient": conv_depthwise.weight_gradient,
}

_SUMS: dict[str, Part] = {
    "forward": conv_grouped.forward,
    "input_gradient": conv_grouped.input_gradient,
    "weight_gradient": conv_grouped.weight_gradient,
}

_ONE_BY_ONE: dict[str, Part] = {
    "forward": conv_grouped.one_by_one,
    "input_gradient": conv_grouped.gradient_one_by_one,
    "weight_gradient": conv_grouped.weight_one_by_one,
}

_VOLUMES: dict[str, Callable[..., jax.Array]] = {
    "forward": conv_volumes.forward,
    "input_gradient": conv_volumes.input_gradient,
    "weight_gradient": conv_volumes.weight_gradient,
}

_DIRECT: dict[str, Part] = {
    "forward": _direct,
    "input_gradient": _direct_of_gradient,
    "weight_gradient": _direct_of_weight,
}


# --- with fewer products ---------------------------------------------------------------------------------------------


def _is_by_tiles(call: Call, dtype: Any, image: Shape, channels: int, outputs: int) -> bool:
    windows = call.windows
    if not conv_winograd.takes(windows) or compute_type(dtype) != np.float32:
        return False
    sizes = image[2:] if call.part == "input_gradient" else windows.positions(image[2:])
    return conv_winograd.pays(image[0], sizes, channels, outputs, of_weight=call.part == "weight_gradient")


def _by_tiles(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return conv_winograd.forward(x, weight, windows, shape, _direct)


def _by_tiles_of_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return conv_winograd.forward(grad, *turned(weight, windows), shape, _direct)


def _by_tiles_of_weight(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return conv_winograd.weight_gradient(x, grad, windows, shape, _direct_of_weight)


_BY_TILES: dict[str, Part] = {
    "forward": _by_tiles,
    "input_gradient": _by_tiles_of_gradient,
    "weight_gradient": _by_tiles_of_weight,
}


# --- blocks of elements as channels -----------------------------------------------------------------------------------


def _is_by_blocks(call: Call, channels: int, outputs: int) -> bool:
    windows = call.windows
    if call.part == "forward":
        strided = max(windows.stride) > 1 and channels <= FEW_CHANNELS
        return strided or side_by_side(windows, channels, outputs) > 1
    within = all(p <= r for p, r in zip(windows.padding, windows.reach(), strict=True)) and max(windows.stride) == 1
    return call.part == "input_gradient" and within and side_by_side(windows, outputs, channels) > 1


def _on_blocks(image: jax.Array, weight: jax.Array, blocks: Blocks) -> jax.Array:
    return blocks.output(_direct(image, blocks.kernel(weight), blocks.windows_on_blocks, ()))


def _by_blocks(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """Where no element is infinite or NaN: the zeros between the windows on blocks would spread it."""
    blocks = Blocks(windows, shape[1:-1], side_by_side(windows, x.shape[-1], shape[-1]))
    image = stored(lambda x, _: blocks.image(x), x, weight)
    if blocks.without_zeros:
        return _on_blocks(image, weight, blocks)

    def on_blocks(image: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        return _on_blocks(image, weight, blocks)

    def on_elements(image: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        more = [(0, m - n, 0) for n, m in zip(blocks.positions, blocks.positions_in_blocks, strict=True)]
        return lax.pad(_direct(x, weight, windows, shape), np.zeros((), x.dtype), [(0, 0, 0), *more, (0, 0, 0)])

    found = lax.cond(all_finite(image), on_blocks, on_elements, image, x, weight)
    return lax.slice(found, (0,) * found.ndim, shape)


def _by_blocks_of_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return _by_blocks(grad, *turned(weight, windows), shape)


def _by_blocks_of_weight(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    blocks = Blocks(windows, grad.shape[1:-1])
    image = stored(lambda x, _: blocks.image(x), x, grad)
    by_weight = functools.partial(_on_blocks, image, blocks=blocks)
    return jax.linear_transpose(by_weight, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


_BY_BLOCKS: dict[str, Part] = {"forward": _by_blocks, "input_gradient": _by_blocks_of_gradient}


# --- a kernel of one element: a product of matrices ------------------------------------------------------------------


def _taken(x: jax.Array, windows: Windows) -> jax.Array:
    """Every stride-th element, as a matrix of channels."""
    x = lax.slice(x, (0,) * x.ndim, x.shape, (1, *windows.stride, 1))
    return lax.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _matrix(weight: jax.Array) -> jax.Array:
    return lax.reshape(weight, weight.shape[-2:])


def _product(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    return lax.reshape(lax.dot(_taken(x, windows), _matrix(weight)), shape)


def _product_of_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    rows = lax.reshape(grad, (math.prod(grad.shape[:-1]), grad.shape[-1]))
    product = lax.dot_general(rows, _matrix(weight), (((1,), (1,)), ((), ())))
    image = lax.reshape(product, (*grad.shape[:-1], shape[-1]))
    rest = zip(shape[1:-1], image.shape[1:-1], windows.stride, strict=True)
    widths = [(0, size - s * (n - 1) - 1, s - 1) for size, n, s in rest]
    return lax.pad(image, np.zeros((), image.dtype), [(0, 0, 0), *widths, (0, 0, 0)])


def _product_of_weight(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    rows = lax.reshape(grad, (math.prod(grad.shape[:-1]), grad.shape[-1]))
    return lax.reshape(lax.dot_general(_taken(x, windows), rows, (((0,), (0,)), ((), ()))), shape)


_PRODUCT: dict[str, Part] = {
    "forward": _product,
    "input_gradient": _product_of_gradient,
    "weight_gradient": _product_of_weight,
}
