"""The ways to compute a convolution and its gradients on a CPU, by name, and which of them can take a given one.

`conv_choice` chooses one, by rules or, where a program asks for it, by measuring those that can take it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arrays.strides import Shape
from ..kernel_base.conv_parts import FIRST, LAST, ConvCall, ConvLayout, Windows
from ..kernel_base.promotion import cast, compute_type, widened
from ..xla import cpu_features, onednn
from . import (
    conv_direct,
    conv_eigen,
    conv_grouped,
    conv_matrix,
    conv_onednn,
    conv_patches,
    conv_rows,
    conv_space_to_depth,
    conv_taps,
    conv_volumes,
    conv_winograd,
)
from .conv_taps import MOST_TAPS

_Part = Callable[[jax.Array, jax.Array, Windows, Shape], jax.Array]  # the last is the result's shape
Compute = Callable[[jax.Array, jax.Array], jax.Array]
"""Computes a call from its two operands."""

FEW_TERMS = 40
"""The most terms of one element's sum that are written out."""

# of images that are filtered, and of what comes of them
_FEW_CHANNELS, _RATHER_FEW_CHANNELS, _TERMS_OF_FILTERS = 4, 16, 150

_MOST_COPIES = 2**26  # elements under all windows that are copied into a matrix


class Lowering(NamedTuple):
    """One way to compute a convolution and its gradients, in a real dtype.

    Of bfloat16 a result may be of float32, not rounded yet.
    """

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


# channels first
EIGEN = _lowering(conv_eigen)
TAPS = _lowering(conv_taps, FIRST)
PATCHES = _lowering(conv_patches)
ONEDNN_FIRST = _lowering(conv_onednn, FIRST)

# channels last
LAST_DIRECT = _lowering(conv_direct)
DEPTHWISE = _lowering(conv_taps, LAST)
SUMS = _lowering(conv_grouped)
ONE_BY_ONE = Lowering(
    conv_grouped.one_by_one, conv_grouped.gradient_one_by_one, conv_grouped.weight_one_by_one
)  # of each group
PRODUCT = _lowering(conv_matrix)
ROWS = _lowering(conv_rows)
ONEDNN = _lowering(conv_onednn, LAST)
BLOCKS = _lowering(conv_space_to_depth)
TILES = Lowering(
    functools.partial(conv_winograd.forward, plain=conv_direct.forward),
    functools.partial(conv_winograd.input_gradient, plain=conv_direct.forward),
    functools.partial(conv_winograd.weight_gradient, plain=conv_direct.weight_gradient),
)


class Orders(NamedTuple):
    """The orders of a call's operands and of its result, as dimensions of what the program has."""

    first: Shape
    second: Shape
    result: Shape


def program_orders(ndim: int) -> Orders:
    """All with channels first."""
    return Orders(*[tuple(range(ndim))] * 3)


def orders(call: ConvCall, ndim: int) -> Orders:
    """All with channels last."""
    spatial = range(2, ndim)
    image, kernel = (0, *spatial, 1), (*spatial, 1, 0)
    return Orders(image, image, kernel) if call.part == "weight_gradient" else Orders(image, kernel, image)


def usual_orders(call: ConvCall, ndim: int) -> Orders:
    """The usual ones between convolutions: images have channels last, a weight and its gradient are as in programs."""
    kernel = program_orders(ndim).first
    last = orders(call, ndim)
    return last._replace(result=kernel) if call.part == "weight_gradient" else last._replace(second=kernel)


def _reordered(x: jax.Array, have: Shape, want: Shape) -> jax.Array:
    return x if have == want else lax.transpose(x, [have.index(d) for d in want])


class Way(NamedTuple):
    """A lowering, and the order of dimensions that it is for.

    Attributes:
        lowering: computes a call.
        last: whether its operands have their channels last.
    """

    lowering: Lowering
    last: bool

    def run(self, call: ConvCall, a: Any, b: Any, given: Orders) -> Compute:
        """The computation of a call, in float32 if the dtype is half, and rounded unless it stays wide.

        Args:
            call: the call.
            a, b: the operands' shapes and dtypes with channels first.
            given: the orders of the operands that the function takes, and of its result. Where they are not those of
                the lowering, it transposes.
        """
        part, result, wide = self._part(call), call.result(a, b), self._computes_in(call, a.dtype)
        wanted = orders(call, len(result)) if self.last else program_orders(len(result))
        shape = tuple(result[d] for d in wanted.result)

        def run(x: jax.Array, y: jax.Array) -> jax.Array:
            x, y = _reordered(x, given.first, wanted.first), _reordered(y, given.second, wanted.second)
            found = cast(part(widened(x, wide), widened(y, wide), call.windows, shape), call.dtype(a))
            return _reordered(found, wanted.result, given.result)

        return run

    def _part(self, call: ConvCall) -> _Part:
        found = self.lowering.of(call.part)
        return functools.partial(found, is_wide=call.is_wide) if self._is_by_onednn() else found

    def _is_by_onednn(self) -> bool:
        return self.lowering in (ONEDNN, ONEDNN_FIRST)

    def _computes_in(self, call: ConvCall, dtype: np.dtype) -> np.dtype:
        """The dtype that the lowering is given operands of: bfloat16 as it is where a library multiplies it."""
        of_short = self.lowering is ROWS or self._is_by_onednn() or self.lowering.of(call.part) in PATCHES
        by_library = of_short and computes_in_bfloat16(dtype)
        by_product = dtype == jnp.bfloat16 and self._is_product(call)
        return dtype if by_library or by_product else compute_type(dtype)

    def _is_product(self, call: ConvCall) -> bool:
        """True if a call is one product of what the program has, and nothing is added but its terms."""
        return self.lowering is PRODUCT or (
            self.lowering.of(call.part) in PATCHES and not conv_patches.windows_overlap(call.windows)
        )

    def computes_as(self, other: Way, call: ConvCall) -> bool:
        """True if a call is computed in the same way."""
        return self.last == other.last and self.lowering.of(call.part) is other.lowering.of(call.part)


class Size(NamedTuple):
    """The sizes that decide how a call is computed.

    Attributes:
        image: the input's shape, with channels first.
        outputs: how many channels the convolution gives.
        taps: the elements of a kernel.
        of_group: the channels and the outputs of a group.
    """

    image: Shape
    outputs: int
    taps: int
    of_group: tuple[int, int]

    @classmethod
    def of(cls, call: ConvCall, a: Any, b: Any) -> Size:
        """For a call, and its operands' shapes with channels first."""
        windows, image = call.windows, call.image(a)
        outputs = b.shape[1] if call.part == "weight_gradient" else b.shape[0]
        of_group = image[1] // windows.groups, outputs // windows.groups
        return cls(image, outputs, math.prod(windows.kernel), of_group)

    @property
    def channels(self) -> int:
        return self.image[1]

    @property
    def is_depthwise(self) -> bool:
        """True if there is one kernel for each channel."""
        return self.of_group == (1, 1) and self.channels > 1

    def multiplications(self, windows: Windows) -> int:
        """The number that the convolution takes, written out."""
        positions = math.prod(windows.positions(self.image[2:]))
        return self.image[0] * positions * self.outputs * self.of_group[0] * self.taps


def computes_in_bfloat16(dtype: np.dtype) -> bool:
    """True for bfloat16, if the processor multiplies it as it is."""
    return dtype == jnp.bfloat16 and cpu_features.multiplies_bfloat16()


def fits(windows: Windows, sizes: Shape) -> bool:
    """True if a kernel is no larger than what it slides over, without padding: Eigen takes no other."""
    return all(reach < size for reach, size in zip(windows.reach(), sizes, strict=True))


def is_open_to_eigen(call: ConvCall, a: Any) -> bool:
    """True if Eigen takes a call; a loop over every product does else."""
    return call.windows.groups == 1 and (call.part == "weight_gradient" or fits(call.windows, a.shape[2:]))


def has_few_channels(call: ConvCall, size: Size) -> bool:
    """True for filters of images: products of matrices as small as theirs take several times as long as their terms."""
    windows, channels = call.windows, (size.channels, size.outputs)
    if windows.groups > 1 or max(windows.stride) > 1 or len(windows.kernel) > 2:
        return False
    terms = channels[call.part == "input_gradient"] * size.taps
    few = min(channels) <= _FEW_CHANNELS and max(channels) <= _RATHER_FEW_CHANNELS
    return few and size.taps > 1 and terms <= _TERMS_OF_FILTERS


def possible(call: ConvCall, a: Any, b: Any) -> dict[str, Way]:
    """The ways, by name, that can take a call, and are not known to be far off; shapes are with channels first."""
    first = {name: Way(found, last=False) for name, found in _possible_first(call, a, b).items()}
    last = {f"{name}, channels last": Way(found, last=True) for name, found in _possible_last(call, a, b).items()}
    return first | last


def _possible_first(call: ConvCall, a: Any, b: Any) -> dict[str, Lowering]:
    size, windows = Size.of(call, a, b), call.windows
    found = {}
    if is_open_to_eigen(call, a) and len(windows.kernel) <= 2:
        found["eigen"] = EIGEN
    most = FEW_TERMS if windows.groups == 1 else MOST_TAPS
    if size.taps * size.of_group[0] <= most or has_few_channels(call, size):
        found["taps"] = TAPS
    # of bfloat16 with channels first, threads of XLA's wait for each other in it without end
    if a.dtype == np.float32 and is_open_to_onednn(call, a) and 0 not in (*a.shape, *b.shape, *call.shape):
        found["onednn"] = ONEDNN_FIRST
    copies = math.prod(windows.positions(size.image[2:])) * size.image[0] * size.channels * size.taps
    if not size.is_depthwise and copies <= _MOST_COPIES:
        found["patches"] = PATCHES
    return found


def _possible_last(call: ConvCall, a: Any, b: Any) -> dict[str, Lowering]:
    size, windows = Size.of(call, a, b), call.windows
    if 0 in (*a.shape, *b.shape, *call.shape):
        return {}
    found = {"onednn": ONEDNN} if is_open_to_onednn(call, a) else {}
    if is_open_to_rows(call, a):
        found["rows"] = ROWS
    if len(windows.kernel) > 2:
        return found
    if windows.groups > 1:
        return found | _possible_groups(call, a, size)
    if is_open_to_eigen(call, a):
        found["direct"] = LAST_DIRECT
    if conv_matrix.is_one_product(windows):
        found["product"] = PRODUCT
    if conv_winograd.takes(windows) and is_open_to_eigen(call, a):
        found["tiles"] = TILES
    if conv_space_to_depth.blocks_possible(call.part, windows) and is_open_to_eigen(call, a):
        found["blocks"] = BLOCKS
    return found


def is_open_to_onednn(call: ConvCall, a: Any) -> bool:
    """True if oneDNN is there, and computes a call, in float32 or bfloat16."""
    if compute_type(a.dtype) != np.float32 or not conv_onednn.computes_part(call, tuple(a.shape[2:])):
        return False
    return onednn.is_there("bfloat16" if computes_in_bfloat16(a.dtype) else "float32")


def is_open_to_rows(call: ConvCall, a: Any) -> bool:
    """True for bfloat16 that the processor multiplies, if the operands have one group, and gradients no strides."""
    windows = call.windows
    if windows.groups > 1 or (call.part == "input_gradient" and max(windows.stride) > 1):
        return False
    return computes_in_bfloat16(a.dtype)


def _possible_groups(call: ConvCall, a: Any, size: Size) -> dict[str, Lowering]:
    windows, found = call.windows, {}
    if size.is_depthwise:
        return {"depthwise": DEPTHWISE} if size.taps <= MOST_TAPS else {}
    if conv_grouped.are_sums(call.part, windows.kernel, *size.of_group):
        found["sums"] = SUMS
    if conv_grouped.are_large(*size.of_group) and (call.part == "weight_gradient" or fits(windows, a.shape[2:])):
        found["one by one"] = ONE_BY_ONE
    return found
