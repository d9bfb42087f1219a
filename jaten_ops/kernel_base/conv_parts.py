"""Convolutions and their two gradients as XLA has them, of images with channels first or last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays.strides import Shape
from .platform import is_over_mesh
from .promotion import cast, compute_type


class Windows(NamedTuple):
    """The windows of a kernel on an input: a value for each spatial dimension."""

    kernel: Shape
    stride: Shape
    padding: Shape  # zeros at both ends
    dilation: Shape
    groups: int

    def flat(self) -> Windows:
        """The same without the first dimension: on the images that a volume is made of."""
        return Windows(*(setting[1:] for setting in self[:4]), self.groups)

    def reach(self) -> Shape:
        """The distance from the first element under a window to its last."""
        return tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True))

    def positions(self, sizes: Sequence[int]) -> Shape:
        """The number of windows: the sizes of the output for the sizes of an input."""
        settings = zip(sizes, self.reach(), self.stride, self.padding, strict=True)
        return tuple((size + 2 * p - reach - 1) // s + 1 for size, reach, s, p in settings)

    def behind(self, positions: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """The zeros behind an input with which the last windows end; negative for elements under none."""
        ends = [s * (n - 1) + r + 1 for s, n, r in zip(self.stride, positions, self.reach(), strict=True)]
        return [end - size - p for end, size, p in zip(ends, sizes, self.padding, strict=True)]

    def around_gradient(self, positions: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """The zeros around the output's gradient, and between its elements, over which the turned kernel slides."""
        low = [r - p for r, p in zip(self.reach(), self.padding, strict=True)]
        widened = [s * (n - 1) + 1 for s, n in zip(self.stride, positions, strict=True)]
        whole = [size + r for size, r in zip(sizes, self.reach(), strict=True)]
        return low, [w - b - n for w, b, n in zip(whole, low, widened, strict=True)], [s - 1 for s in self.stride]


class ConvCall(NamedTuple):
    """A convolution or one of its gradients.

    Attributes:
        part: "forward", of the input (N, C, ...) and the weight (O, C / groups, ...): the output (N, O, ...);
            "input_gradient", of the output's gradient and the weight; or "weight_gradient", of the input and the
            output's gradient. The gradient has as many elements as there are windows on the input.
        windows: how the kernel lies on the input.
        shape: the result's; empty for "forward".
        is_wide: true if the result has the dtype that sums are computed in, float32 for half precision: something is
            added to it before it is rounded.
    """

    part: str
    windows: Windows
    shape: Shape
    is_wide: bool = False

    def image(self, a: Any) -> Shape:
        """The input's shape, with channels first; `a` is the first operand, or its shape and dtype."""
        return self.shape if self.part == "input_gradient" else tuple(a.shape)

    def result(self, a: Any, b: Any) -> Shape:
        """The result's shape."""
        return self.shape or (a.shape[0], b.shape[0], *self.windows.positions(a.shape[2:]))

    def dtype(self, a: Any) -> np.dtype:
        """The result's dtype."""
        return compute_type(a.dtype) if self.is_wide else np.dtype(a.dtype)


class ConvLayout(NamedTuple):
    """The order of the dimensions of images and kernels.

    Attributes:
        last: true if an image is (N, ..., C) and a kernel (..., C / groups, O), false if they are (N, C, ...)
            and (O, C / groups, ...).
    """

    last: bool

    def numbers(self, ndim: int) -> lax.ConvDimensionNumbers:
        """The dimensions of an image and of a kernel, for XLA."""
        order = tuple(range(ndim))
        if not self.last:
            return lax.ConvDimensionNumbers(order, order, order)
        image, kernel = (0, ndim - 1, *order[1:-1]), (ndim - 1, ndim - 2, *order[:-2])
        return lax.ConvDimensionNumbers(image, kernel, image)

    def sizes(self, shape: Sequence[int]) -> Shape:
        """The spatial sizes of an image of a shape."""
        return tuple(shape[1:-1] if self.last else shape[2:])

    def pad(
        self, x: jax.Array, low: Sequence[int], high: Sequence[int], between: Sequence[int] | None = None
    ) -> jax.Array:
        """Zeros around (or elements away, where negative) and between the elements of each spatial dimension."""
        spatial, none = zip(low, high, between or [0] * len(low), strict=True), (0, 0, 0)
        widths = [none, *spatial, none] if self.last else [none, none, *spatial]
        return lax.pad(x, np.zeros((), x.dtype), widths)

    def under(
        self, x: jax.Array, windows: Windows, index: Sequence[int], positions: Sequence[int], first: int = 0,
        step: int = 1,
    ) -> jax.Array:  # fmt: skip
        """The elements of a padded input under one element of the kernel, at all positions.

        Only every `step`-th channel, from `first` on.
        """
        start = [d * i for d, i in zip(windows.dilation, index, strict=True)]
        stop = [b + s * (n - 1) + 1 for b, s, n in zip(start, windows.stride, positions, strict=True)]
        if self.last:
            return lax.slice(x, (0, *start, first), (x.shape[0], *stop, x.shape[-1]), (1, *windows.stride, step))
        return lax.slice(x, (0, first, *start), (*x.shape[:2], *stop), (1, step, *windows.stride))


FIRST, LAST = ConvLayout(last=False), ConvLayout(last=True)

# of two operands, the windows and the result's shape
Part = Callable[[jax.Array, jax.Array, Windows, Shape, ConvLayout], jax.Array]


def forward(x: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """Cross-correlates x with weight."""
    return lax.conv_general_dilated(
        x,
        weight,
        window_strides=windows.stride,
        padding=[(p, p) for p in windows.padding],
        rhs_dilation=windows.dilation,
        dimension_numbers=layout.numbers(x.ndim),
        feature_group_count=windows.groups,
    )


def input_gradient(grad: jax.Array, weight: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The transpose of `forward` by x, written out, since JAX has none of integers: by the kernel from its end."""
    groups, n, numbers = windows.groups, len(windows.kernel), layout.numbers(grad.ndim)
    outputs, per_group, *spatial = numbers.rhs_spec
    flipped = lax.rev(weight, spatial)
    if groups > 1:  # its channels swapped within each group, which XLA does not do
        assert not layout.last
        grouped = lax.reshape(flipped, (groups, flipped.shape[0] // groups, *flipped.shape[1:]))
        swapped = lax.transpose(grouped, (0, 2, 1, *range(3, n + 3)))
        flipped = lax.reshape(swapped, (groups * swapped.shape[1], *swapped.shape[2:]))
    else:
        numbers = numbers._replace(rhs_spec=(per_group, outputs, *spatial))
    low, high, _ = windows.around_gradient(layout.sizes(grad.shape), layout.sizes(shape))
    return lax.conv_general_dilated(
        grad,
        flipped,
        window_strides=(1,) * n,
        padding=list(zip(low, high, strict=True)),
        lhs_dilation=windows.stride,
        rhs_dilation=windows.dilation,
        dimension_numbers=numbers,
        feature_group_count=groups,
    )


def weight_gradient(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The transpose of `forward` by the weight."""
    if windows.groups > 1 and (is_over_mesh(x) or is_over_mesh(grad)):
        return _tap_by_tap(x, grad, windows, shape, layout)
    by_weight = lambda w: forward(x, w, windows, (), layout)  # noqa: E731  # as an argument
    return jax.linear_transpose(by_weight, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


def _tap_by_tap(x: jax.Array, grad: jax.Array, windows: Windows, shape: Shape, layout: ConvLayout) -> jax.Array:
    """The weight's gradient of a convolution with groups, a product of matrices for each element of the kernel.

    JAX's transpose is a convolution with groups of the batch, and those XLA does not partition: it adds parts up more
    than once, or ends the process.
    """
    assert not layout.last
    image, positions = layout.pad(x, windows.padding, windows.padding), layout.sizes(grad.shape)

    def split(a: jax.Array) -> jax.Array:
        """As (N, groups, channels of a group, positions)."""
        return lax.reshape(a, (a.shape[0], windows.groups, a.shape[1] // windows.groups, math.prod(positions)))

    of_grad = split(grad)
    taps = [
        lax.dot_general(
            of_grad, split(layout.under(image, windows, index, positions)), (((0, 3), (0, 3)), ((1,), (1,)))
        )
        for index in np.ndindex(*windows.kernel)
    ]
    return lax.reshape(lax.concatenate([lax.expand_dims(tap, (3,)) for tap in taps], 3), shape)


PARTS: dict[str, Part] = {"forward": forward, "input_gradient": input_gradient, "weight_gradient": weight_gradient}


def compute(call: ConvCall, a: jax.Array, b: jax.Array) -> jax.Array:
    """The result of a call, by XLA's convolution of images with channels first."""
    windows, shape = call.windows, call.result(a, b)
    a, b = (cast(x, call.dtype(x)) for x in (a, b))
    images, kernels = (2, 2) if windows.groups == 1 else (1, 0)
    of_second, of_result = (images, kernels) if call.part == "weight_gradient" else (kernels, images)
    whole = _whole_on_each_device(a, b)
    return whole(PARTS[call.part](whole(a, images), whole(b, of_second), windows, shape, FIRST), of_result)


def _whole_on_each_device(*operands: jax.Array) -> Callable[[jax.Array, int], jax.Array]:
    """A function that keeps arrays from being partitioned over the operands' mesh but by so many first dimensions.

    XLA partitions a convolution by images and channels, one with groups by images alone. By others it adds up weight
    gradients more than once beside devices that have the same part, computes wrong values, or ends the process.
    """
    meshes = [jax.typeof(x).sharding.mesh for x in operands if is_over_mesh(x)]
    if not meshes or any(kind != AxisType.Auto for kind in meshes[0].axis_types):
        return lambda x, dims: x

    def whole(x: jax.Array, dims: int) -> jax.Array:
        spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * dims, *[None] * (x.ndim - dims))
        return lax.with_sharding_constraint(x, NamedSharding(meshes[0], spec))

    return whole


def resized_at_end(x: jax.Array, sizes: Shape) -> jax.Array:
    """With zeros more, or elements less, at the end of each spatial dimension of (N, C, ...)."""
    more = [size - n for size, n in zip(sizes, x.shape[2:], strict=True)]
    return FIRST.pad(x, [0] * len(more), more) if any(more) else x
