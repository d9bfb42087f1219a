"""How a convolution and its two gradients are lowered, by platform and shape, from and to (N, C, ...).

On a GPU or TPU XLA's convolution is the best there is. Its CPU compiler hands a convolution to Eigen, or, where that
cannot take it, to a loop over every product: groups, and windows larger than what they slide over, cost 10 to 100
times too much. So here a CPU has three more ways. TAPS adds up one product for each element of a kernel; PATCHES is one
matrix product with what lies under each window; DEPTH, of volumes, is a sum of convolutions of images. The limits in
`choose` are measured, on one core. Each call is a function under `jax.jit` of its own, by whose name it is found again
in a traced program: where there are several, `conv_nhwc` may compute them instead.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from ..kernel_base.materialize import stored
from ..kernel_base.promotion import cast, compute_type, is_complex, is_float, widened

Shape = tuple[int, ...]
MOST_TAPS = 128  # each is an instruction of the loop
FEW_TERMS = 40  # of one element's sum, to be written out
_LITTLE, _RATHER_LITTLE = 32, 80  # terms of a sum
_FEW_POSITIONS = 64  # of an image: below, a matrix product of all images beats one for each


class Windows(NamedTuple):
    """How the windows of a kernel lie on an input, in each of its spatial dimensions."""

    kernel: Shape
    stride: Shape
    padding: Shape  # zeros at both ends
    dilation: Shape
    groups: int

    def flat(self) -> Windows:
        """Those on the images that a volume is made of."""
        return Windows(*(setting[1:] for setting in self[:4]), self.groups)

    def reach(self) -> Shape:
        """How far it is from the first element under a window to its last."""
        return tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True))

    def positions(self, sizes: Sequence[int]) -> Shape:
        """How many windows fit: the sizes of the output for the sizes of an input."""
        settings = zip(sizes, self.reach(), self.stride, self.padding, strict=True)
        return tuple((size + 2 * p - reach - 1) // s + 1 for size, reach, s, p in settings)

    def around_gradient(self, positions: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """The zeros around the output's gradient, and between its elements, over which the turned kernel slides."""
        low = [r - p for r, p in zip(self.reach(), self.padding, strict=True)]
        widened = [s * (n - 1) + 1 for s, n in zip(self.stride, positions, strict=True)]
        whole = [size + r for size, r in zip(sizes, self.reach(), strict=True)]
        return low, [w - b - n for w, b, n in zip(whole, low, widened, strict=True)], [s - 1 for s in self.stride]

    def under(self, x: jax.Array, index: Sequence[int], positions: Shape, first: int = 0, step: int = 1) -> jax.Array:
        """What lies under one element of the kernel at all positions of a padded input (., ., ...).

        With `first` and `step` only every so many of its channels.
        """
        start = [d * i for d, i in zip(self.dilation, index, strict=True)]
        stop = [b + s * (n - 1) + 1 for b, s, n in zip(start, self.stride, positions, strict=True)]
        return lax.slice(x, (0, first, *start), (*x.shape[:2], *stop), (1, step, *self.stride))


# of the input (N, C, ...) and the weight (O, C / groups, ...): the output (N, O, ...)
Forward = Callable[[jax.Array, jax.Array, Windows], jax.Array]
# of the output's gradient and the weight, or of the input and the output's gradient; and the shape of the result
Gradient = Callable[[jax.Array, jax.Array, Windows, Shape], jax.Array]


class Lowering(NamedTuple):
    """One way to compute a convolution and its gradients, in a real dtype."""

    forward: Forward
    input_gradient: Gradient
    weight_gradient: Gradient


def _transpose(fn: Callable[[jax.Array], jax.Array], shape: Shape, grad: jax.Array) -> jax.Array:
    return jax.linear_transpose(fn, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


def _by_input(forward: Forward) -> Gradient:
    return lambda grad, weight, windows, shape: _transpose(lambda x: forward(x, weight, windows), shape, grad)


def _by_weight(forward: Forward) -> Gradient:
    return lambda x, grad, windows, shape: _transpose(lambda w: forward(x, w, windows), shape, grad)


def _pad(x: jax.Array, low: Sequence[int], high: Sequence[int], between: Sequence[int] | None = None) -> jax.Array:
    """Zeros around (or elements away, where negative) and between the elements of each spatial dimension."""
    widths = [(0, 0, 0), (0, 0, 0), *zip(low, high, between or [0] * len(low), strict=True)]
    return lax.pad(x, np.zeros((), x.dtype), widths)


# --- XLA's convolution ------------------------------------------------------------------------------------------------


def _direct(x: jax.Array, weight: jax.Array, windows: Windows) -> jax.Array:
    order = tuple(range(x.ndim))
    return lax.conv_general_dilated(
        x,
        weight,
        window_strides=windows.stride,
        padding=[(p, p) for p in windows.padding],
        rhs_dilation=windows.dilation,
        dimension_numbers=lax.ConvDimensionNumbers(order, order, order),
        feature_group_count=windows.groups,
    )


def _direct_of_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose, written out, since JAX has none of integers: by the kernel from its end, its channels swapped."""
    groups, (outputs, per_group), n = windows.groups, weight.shape[:2], len(windows.kernel)
    grouped = lax.reshape(weight, (groups, outputs // groups, per_group, *windows.kernel))
    swapped = lax.transpose(grouped, (0, 2, 1, *range(3, n + 3)))
    flipped = lax.rev(lax.reshape(swapped, (groups * per_group, outputs // groups, *windows.kernel)), range(2, n + 2))
    low, high, _ = windows.around_gradient(grad.shape[2:], shape[2:])
    order = tuple(range(n + 2))
    return lax.conv_general_dilated(
        grad,
        flipped,
        window_strides=(1,) * n,
        padding=list(zip(low, high, strict=True)),
        lhs_dilation=windows.stride,
        rhs_dilation=windows.dilation,
        dimension_numbers=lax.ConvDimensionNumbers(order, order, order),
        feature_group_count=groups,
    )


def _padded_first(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The weight's gradient slides the output's over the input: padded apart, it is never the larger one."""
    padded = lax.optimization_barrier(_pad(x, windows.padding, windows.padding))
    return _by_weight(_direct)(padded, grad, windows._replace(padding=(0,) * len(windows.padding)), shape)


DIRECT = Lowering(_direct, _direct_of_gradient, _by_weight(_direct))
EIGEN = DIRECT._replace(weight_gradient=_padded_first)


# --- one product for each element of a kernel, where groups are of one channel, or of few -----------------------------


def _sum_of_taps(x: jax.Array, weight: jax.Array, windows: Windows, positions: Shape) -> jax.Array:
    """Of a padded input (N, C, ...) and the weight (O, C / groups, elements of a kernel)."""
    groups, (outputs, channels, taps) = windows.groups, weight.shape
    shape = (x.shape[0], groups, outputs // groups, *positions)
    weight = lax.reshape(weight, (groups, outputs // groups, channels * taps))
    total: jax.Array | None = None
    for n, (channel, index) in enumerate(itertools.product(range(channels), np.ndindex(*windows.kernel))):
        under = windows.under(x, index, positions, channel, channels)
        factor = lax.broadcast_in_dim(lax.index_in_dim(weight, n, 2, keepdims=False), shape, (1, 2))
        product = lax.broadcast_in_dim(under, shape, (0, 1, *range(3, len(shape)))) * factor
        total = product if total is None else total + product
    assert total is not None
    return lax.reshape(total, (x.shape[0], outputs, *positions))


def _padded_stored(x: jax.Array, beside: jax.Array, *widths: Sequence[int]) -> jax.Array:
    """Padded, and `beside` is some other operand, which is not empty.

    XLA would compute what x is made of together with the zeros, and ask at each element which it is: an exponential
    there takes five times as long.
    """
    return stored(lambda x, _: _pad(x, *widths), x, beside) if any(map(any, widths)) else x


def _taps(x: jax.Array, weight: jax.Array, windows: Windows) -> jax.Array:
    flat = lax.reshape(weight, (*weight.shape[:2], math.prod(windows.kernel)))
    padded = _padded_stored(x, flat, windows.padding, windows.padding)
    positions = windows.positions(x.shape[2:])
    return stored(lambda x, w: _sum_of_taps(x, w, windows, positions), padded, flat)


def _taps_of_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose, as such a sum too: of the gradient with zeros between its elements and the kernel from its end."""
    groups, (outputs, channels), sizes = windows.groups, weight.shape[:2], shape[2:]
    split = (groups, outputs // groups, channels, math.prod(windows.kernel))
    swapped = lax.transpose(lax.reshape(lax.rev(weight, range(2, weight.ndim)), split), (0, 2, 1, 3))
    swapped = lax.reshape(swapped, (groups * channels, outputs // groups, split[-1]))
    padded = _padded_stored(grad, swapped, *windows.around_gradient(grad.shape[2:], sizes))
    ones = windows._replace(stride=(1,) * len(sizes))
    return stored(lambda x, w: _sum_of_taps(x, w, ones, sizes), padded, swapped)


def _products_with_taps(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The sum over all positions of each element's products, all elements in one pass over the input."""
    groups, (outputs, channels), positions = windows.groups, shape[:2], grad.shape[2:]
    padded = _padded_stored(x, grad, windows.padding, windows.padding)
    grad = lax.reshape(grad, (grad.shape[0], groups, outputs // groups, *positions))
    dims = (0, 1, *range(3, grad.ndim))
    products = [
        lax.broadcast_in_dim(windows.under(padded, index, positions, channel, channels), grad.shape, dims) * grad
        for channel, index in itertools.product(range(channels), np.ndindex(*windows.kernel))
    ]
    zeros = [np.zeros((), grad.dtype)] * len(products)
    sums = lax.reduce(products, zeros, lambda a, b: tuple(map(lax.add, a, b)), tuple(range(3, grad.ndim)))
    by_image = lax.concatenate([lax.expand_dims(s, (3,)) for s in sums], 3)
    return lax.reshape(lax.reduce_sum(by_image, (0,)), shape)


TAPS = Lowering(_taps, _taps_of_gradient, _products_with_taps)


# --- a matrix product with what lies under each window ----------------------------------------------------------------


def _patches(x: jax.Array, weight: jax.Array, windows: Windows) -> jax.Array:
    groups, outputs = windows.groups, weight.shape[0]
    positions = windows.positions(x.shape[2:])
    terms = math.prod(weight.shape[1:])
    matrix = lax.reshape(weight, (groups, outputs // groups, terms))
    if x.shape[0] == 1 or math.prod(positions) >= _FEW_POSITIONS:
        columns = lax.reshape(under_windows(x, windows, 2), (x.shape[0], groups, terms, math.prod(positions)))
        matrices = lax.broadcast_in_dim(matrix, (x.shape[0], *matrix.shape), (1, 2, 3))
        out = lax.dot_general(matrices, columns, (((3,), (2,)), ((0, 1), (0, 1))))
        return lax.reshape(out, (x.shape[0], outputs, *positions))
    # (C, elements of a kernel, N, ...)
    columns = under_windows(lax.transpose(x, (1, 0, *range(2, x.ndim))), windows, 1)
    columns = lax.reshape(columns, (groups, terms, x.shape[0] * math.prod(positions)))
    out = lax.dot_general(matrix, columns, (((2,), (1,)), ((0,), (0,))))
    out = lax.reshape(out, (outputs, x.shape[0], *positions))
    return lax.transpose(out, (1, 0, *range(2, x.ndim)))


def under_windows(x: jax.Array, windows: Windows, axis: int) -> jax.Array:
    """What lies under the windows on x (A, B, ...), with an axis more, for the elements of a kernel."""
    positions = windows.positions(x.shape[2:])
    if apart(windows):
        x = lax.slice(x, (0,) * x.ndim, (*x.shape[:2], *map(operator.mul, positions, windows.kernel)))
        split = lax.reshape(x, (*x.shape[:2], *itertools.chain(*zip(positions, windows.kernel, strict=True))))
        of_kernel, of_position = range(3, split.ndim, 2), range(2, split.ndim, 2)
        columns = lax.transpose(split, (*range(axis), *of_kernel, *range(axis, 2), *of_position))
        return lax.reshape(columns, (*x.shape[:axis], math.prod(windows.kernel), *x.shape[axis:2], *positions))
    padded = _pad(x, windows.padding, windows.padding)
    under = [windows.under(padded, index, positions) for index in np.ndindex(*windows.kernel)]
    return lax.concatenate([lax.expand_dims(u, (axis,)) for u in under], axis)


def apart(windows: Windows) -> bool:
    """Whether the windows lie side by side, without a gap: to take what is under each moves no element twice."""
    return windows.stride == windows.kernel and not any(windows.padding) and max(windows.dilation) == 1


PATCHES = Lowering(_patches, _by_input(_patches), _by_weight(_patches))
STRIDED = TAPS._replace(forward=_patches)


# --- an image for each place in the first of three dimensions ---------------------------------------------------------


def _images(x: jax.Array) -> jax.Array:
    """(N, C, D, ...) as (N * D, C, ...)."""
    moved = lax.transpose(x, (0, 2, 1, *range(3, x.ndim)))
    return lax.reshape(moved, (x.shape[0] * x.shape[2], *moved.shape[2:]))


def _volume(images: jax.Array, depth: int) -> jax.Array:
    """The inverse, of (N * D, C, ...)."""
    split = lax.reshape(images, (images.shape[0] // depth, depth, *images.shape[1:]))
    return lax.transpose(split, (0, 2, 1, *range(3, split.ndim)))


def _slices(x: jax.Array, windows: Windows) -> list[jax.Array]:
    """For each element of the kernel in the first dimension the images under it."""
    zeros = (0,) * (x.ndim - 3)
    depth = Windows(*((setting[0], *rest) for setting, rest in zip(windows[:4], _IDENTITY, strict=True)), 1)
    padded = _pad(x, (windows.padding[0], *zeros), (windows.padding[0], *zeros))
    positions = (windows.positions(x.shape[2:])[0], *x.shape[3:])
    return [_images(depth.under(padded, (i, *zeros), positions)) for i in range(windows.kernel[0])]


_IDENTITY = ((1, 1), (1, 1), (0, 0), (1, 1))  # a window of one element in the other dimensions


def _by_depth(x: jax.Array, weight: jax.Array, windows: Windows) -> jax.Array:
    flat, slices = windows.flat(), _slices(x, windows)
    images = [forward(part, weight[:, :, i], flat) for i, part in enumerate(slices)]
    return _volume(functools.reduce(lax.add, images), windows.positions(x.shape[2:])[0])


def _by_depth_of_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    images, flat = _images(grad), windows.flat()
    small = (images.shape[0], shape[1], *shape[3:])
    parts = [input_gradient(images, weight[:, :, i], flat, small) for i in range(windows.kernel[0])]
    return jax.linear_transpose(lambda x: _slices(x, windows), jax.ShapeDtypeStruct(shape, grad.dtype))(parts)[0]


def _by_depth_of_weight(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    images, flat, small = _images(grad), windows.flat(), (*shape[:2], *shape[3:])
    parts = [weight_gradient(part, images, flat, small) for part in _slices(x, windows)]
    return lax.concatenate([lax.expand_dims(part, (2,)) for part in parts], 2)


DEPTH = Lowering(_by_depth, _by_depth_of_gradient, _by_depth_of_weight)


# --- the choice -------------------------------------------------------------------------------------------------------


def choose(windows: Windows, shape: Shape, outputs: int, window_fits: bool) -> Lowering:
    """For a CPU, an input's shape (N, C, ...) and the number of output channels."""
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
    return EIGEN._replace(forward=_patches) if channels * taps <= _RATHER_LITTLE else EIGEN


def is_small(windows: Windows, shape: Shape, outputs: int) -> bool:
    """Whether images are so small that to bring the weight in order costs more than the convolution."""
    return shape[0] * math.prod(windows.positions(shape[2:])) <= outputs // 4


def fits(windows: Windows, sizes: Sequence[int]) -> bool:
    """Whether a kernel is no larger than what it slides over, without padding: Eigen takes no other."""
    return all(reach < size for reach, size in zip(windows.reach(), sizes, strict=True))


def _lowered(part: str, chosen: Lowering, a: jax.Array, b: jax.Array, *rest: Any) -> jax.Array:
    """A part of the lowering that was chosen for CPUs, in float32 if the dtype is half; of DIRECT elsewhere."""
    if is_complex(a.dtype):
        # lax makes three real products of a complex one, whose differences lose digits; the four do not
        (rr, ri), (ir, ii) = (
            [_lowered(part, chosen, x, y, *rest) for y in (lax.real(b), lax.imag(b))]
            for x in (lax.real(a), lax.imag(a))
        )
        return lax.complex(rr - ii, ri + ir)
    cpu, default = getattr(chosen, part), getattr(DIRECT, part)
    if cpu is default or not is_float(a.dtype):
        return default(a, b, *rest)
    compute = compute_type(a.dtype)
    return lax.platform_dependent(
        *(a, b),
        cpu=lambda a, b: cast(cpu(widened(a, compute), widened(b, compute), *rest), a.dtype),
        default=lambda a, b: default(a, b, *rest),
    )


class Call(NamedTuple):
    """What a convolution asks for, beside its two operands.

    Attributes:
        part: the field of `Lowering`.
        shape: the result's; empty for "forward".
    """

    part: str
    windows: Windows
    shape: Shape


CALLS: dict[str, Call] = {}
"""The calls in traced programs, by the name of the function under `jax.jit` that each is there."""


@functools.cache
def _named(call: Call) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The function of a call, which takes the operands that `forward` and the two gradients name."""
    part, windows, shape = call

    def run(a: jax.Array, b: jax.Array) -> jax.Array:
        inputs, outputs, slid = {
            "forward": (a.shape, b.shape[0], a.shape),
            "input_gradient": (shape, b.shape[0], a.shape),
            "weight_gradient": (a.shape, b.shape[1], None),
        }[part]
        chosen = choose(windows, inputs, outputs, slid is None or fits(windows, slid[2:]))
        return _lowered(part, chosen, a, b, windows, *([shape] if shape else []))

    run.__name__ = f"{part}_{hashlib.sha256(repr(call).encode()).hexdigest()[:16]}"
    CALLS[run.__name__] = call
    return jax.jit(run)


def forward(x: jax.Array, weight: jax.Array, windows: Windows) -> jax.Array:
    """Cross-correlates x (N, C, ...) with weight (O, C / groups, ...): the result is (N, O, ...)."""
    return _named(Call("forward", windows, ()))(x, weight)


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose of `forward` by x, which has this shape: of (N, O, ...), the output's gradient.

    A transposed convolution may ask for so large a result that more windows fit; those contribute nothing.
    """
    grad = resized(grad, windows.positions(shape[2:]))
    return _named(Call("input_gradient", windows, tuple(shape)))(grad, weight)


def resized(x: jax.Array, sizes: Shape) -> jax.Array:
    """With zeros more, or elements less, at the end of each spatial dimension."""
    more = [size - n for size, n in zip(sizes, x.shape[2:], strict=True)]
    return _pad(x, [0] * len(more), more) if any(more) else x


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape) -> jax.Array:
    """The transpose of `forward` by the weight, which has this shape: of (N, O, ...), the output's gradient."""
    grad = resized(grad, windows.positions(x.shape[2:]))
    return _named(Call("weight_gradient", windows, tuple(shape)))(x, grad)
