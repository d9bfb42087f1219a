"""Rules that say how each primitive of JAX is applied to values in other orders than the program's.

A rule takes an equation and its operands, and returns the results; None if the operands must be as the program has
them. A primitive without a rule is such a one: gathers, scatters, loops, branches, and what chooses an element of a
window, as the order decides between equal ones.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaten_ops.xla.equations import ELEMENTWISE, rebind

from .. import conv_choice
from ..conv_primitive import convolution_p
from .exchanged_factors import exchanged
from .values import Order, Ordered, places, program_order, without

LayoutRule = Callable[[Any, Sequence[Ordered]], list[Ordered] | None]
RULES: dict[str, LayoutRule] = {}
"""The rules for programs with convolutions."""


SIMPLE = """
abs add add_any and bitcast_convert_type ceil clamp convert_element_type copy eq floor ge gt is_finite le lt max min mul
ne neg not or round select_n shift_left shift_right_logical sign square stop_gradient sub xor
"""
_MOVES = "concatenate pad reshape rev slice split squeeze transpose"
MUCH_WORK = 13  # more than to store it and read it again


def work_of(name: str, operands: Sequence[Ordered]) -> int:
    """The `Ordered.work` of what a primitive gives: that of its operands and its own, if it is fused with its users.

    What is repeated is computed once, for as many elements as it had before.
    """
    if name not in _FUSED:
        return 0
    most = max(math.prod(x.shape) for x in operands)
    return sum(x.work for x in operands if math.prod(x.shape) == most) + _FUSED[name]


def _rule(*names: str) -> Callable[[LayoutRule], LayoutRule]:
    def add(rule: LayoutRule) -> LayoutRule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def traced_scope(equation: Any) -> str:
    """The names of the scopes that an equation was traced in, as of `jax.named_scope`, for profiles."""
    return str(equation.source_info.name_stack)


def within(scope: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which what JAX traces has a scope, or none if its name is empty."""
    return jax.named_scope(scope) if scope else contextlib.nullcontext()


def _common(operands: Sequence[Ordered], ndim: int) -> Order | None:
    """The order in which to compute with operands of so many dimensions; None for the program's."""
    return next((x.order for x in operands if x.ndim == ndim and x.order), None)


def _results(equation: Any, arrays: Sequence[jax.Array], order: Order) -> list[Ordered]:
    return [Ordered(v.aval.shape, {order: a}) for v, a in zip(equation.outvars, arrays, strict=True)]


# Element by element


@_rule(*ELEMENTWISE)
def _elementwise(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    ndim = equation.outvars[0].aval.ndim
    order = _common(operands, ndim)
    if order is None:
        return None
    arrays = [x.array(order if x.ndim == ndim else None) for x in operands]  # a number may stand beside
    return _results(equation, rebind(equation, arrays), order)


_FUSED = dict.fromkeys(ELEMENTWISE, MUCH_WORK) | dict.fromkeys(SIMPLE.split(), 1)
_FUSED |= dict.fromkeys(_MOVES.split(), 0)


# Repetition: a value that costs nothing in whatever order it is wanted


@_rule("broadcast_in_dim")
def _broadcast_in_dim(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    (operand, *sizes), shape = operands, equation.params["shape"]
    dims = equation.params["broadcast_dimensions"]
    if sizes:  # that are not known
        return None

    def make(order: Order) -> jax.Array:
        at = places(dims, order)
        inner = tuple(sorted(range(len(at)), key=at.__getitem__))
        return lax.broadcast_in_dim(operand.array(inner), [shape[d] for d in order], sorted(at))

    return [Ordered(shape, {}, make, _with_new(operand.order, dims, len(shape)))]


def _with_new(order: Order | None, dims: Sequence[int], ndim: int) -> Order | None:
    """The order of a value that gets more dimensions: each beside the one before it in the program."""
    if order is None:
        return None
    found = [dims[d] for d in order]
    for d in range(ndim):
        if d not in dims:
            found.insert(found.index(d - 1) + 1 if d else 0, d)
    return tuple(found)


@_rule("iota")
def _iota(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    params = equation.params

    def make(order: Order) -> jax.Array:
        shape = [params["shape"][d] for d in order]
        return lax.broadcasted_iota(params["dtype"], shape, order.index(params["dimension"]))

    return None if operands else [Ordered(params["shape"], {}, make)]


# Along some of the dimensions


_MOST_ADDED = 16
_PARTS = 8  # more, and XLA would store each beforehand


def _sum_in_stretches(array: jax.Array, axes: tuple[int, ...], *, is_simple: bool) -> jax.Array:
    """The sum over dimensions, in float32, of what is simple to compute anew or not.

    XLA adds up elements that are apart in memory one after the other, and those that are not in several sums side by
    side. The former are added in stretches, and the stretches' sums in double precision.
    """
    together = [a for a in axes if all(b in axes for b in range(a, array.ndim))]
    apart = [a for a in axes if a not in together]
    count = math.prod(array.shape[a] for a in axes)
    if not apart or count <= _MOST_ADDED:
        return lax.reduce_sum(array, axes)
    if is_simple and not together and axes[-1] - axes[0] < len(axes) and count >= _MOST_ADDED * _PARTS:
        return _sum_of_rows(array, axes)
    if math.prod(array.shape[a] for a in together) >= _MOST_ADDED:
        first, rest = lax.reduce_sum(array, together), apart
    else:
        *_, last = apart
        size = array.shape[last]
        stretch = next(n for n in range(min(size, _MOST_ADDED), 0, -1) if size % n == 0)
        cut = lax.reshape(array, (*array.shape[:last], size // stretch, stretch, *array.shape[last + 1 :]))
        first, rest = lax.reduce_sum(cut, (last + 1,)), list(axes)
    return lax.convert_element_type(lax.reduce_sum(lax.convert_element_type(first, np.float64), rest), array.dtype)


def _sum_of_rows(array: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The sum over neighbouring dimensions, several rows at once and what they give as a product.

    XLA makes of a sum a kernel for which all that goes into it is stored, and which runs operator by operator; what
    goes into a product is a compiled loop, in which its operands are computed anew.
    """
    before, kept = array.shape[: axes[0]], array.shape[axes[-1] + 1 :]
    several, count = math.prod(before), math.prod(array.shape[a] for a in axes)
    rows = lax.reshape(array, (several, count, math.prod(kept)))
    length = count // _PARTS
    parts = [lax.slice_in_dim(rows, i * length, (i + 1) * length, axis=1) for i in range(_PARTS)]
    first = lax.convert_element_type(functools.reduce(lax.add, parts), np.float64)
    total = lax.dot_general(np.ones((several, length)), first, (((1,), (1,)), ((0,), (0,))))
    if rest := count % _PARTS:
        last = lax.convert_element_type(lax.slice_in_dim(rows, count - rest, count, axis=1), np.float64)
        total = total + lax.reduce_sum(last, (1,))
    return lax.reshape(lax.convert_element_type(total, array.dtype), (*before, *kept))


@_rule(
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin"
)
def _reduction(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    (operand,), axes = operands, equation.params["axes"]
    order = operand.order
    if order is None:
        return None
    array, at = operand.array(order), tuple(sorted(places(axes, order)))
    is_sum = equation.primitive.name == "reduce_sum" and array.dtype == np.float32
    results = (
        [_sum_in_stretches(array, at, is_simple=operand.work < MUCH_WORK)]
        if is_sum
        else rebind(equation, [array], axes=at)
    )
    return _results(equation, results, without(order, axes))


@_rule("reduce")
def _reduce(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    half, axes = len(operands) // 2, equation.params["dimensions"]
    order = _common(operands[:half], operands[0].ndim)
    if order is None:
        return None
    arrays = [x.array(order) for x in operands[:half]] + [x.array() for x in operands[half:]]
    results = rebind(equation, arrays, dimensions=tuple(sorted(places(axes, order))))
    return _results(equation, results, without(order, axes))


def _along(name: str) -> LayoutRule:
    """The rule of a primitive with one dimension as a parameter."""

    def rule(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
        order = _common(operands, operands[0].ndim)
        if order is None:
            return None
        arrays = [x.array(order) for x in operands]
        return _results(equation, rebind(equation, arrays, **{name: order.index(equation.params[name])}), order)

    return rule


_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split")(_along("axis"))
_rule("sort", "concatenate")(_along("dimension"))


def _settings(*names: str) -> LayoutRule:
    """The rule of a primitive with parameters that have a value for each dimension; numbers may stand beside."""

    def rule(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
        order = _common(operands, operands[0].ndim)
        if order is None:
            return None
        moved = {
            name: None if (value := equation.params[name]) is None else tuple(value[d] for d in order) for name in names
        }
        arrays = [x.array(order if x.ndim else None) for x in operands]
        return _results(equation, rebind(equation, arrays, **moved), order)

    return rule


_rule("pad")(_settings("padding_config"))
_rule("slice")(_settings("start_indices", "limit_indices", "strides"))
_rule("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")(
    _settings("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
)


@_rule("dynamic_slice")
def _dynamic_slice(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    (operand, *starts), sizes = operands, equation.params["slice_sizes"]
    order = operand.order
    if order is None:
        return None
    arrays = [operand.array(order), *[starts[d].array() for d in order]]
    return _results(equation, rebind(equation, arrays, slice_sizes=tuple(sizes[d] for d in order)), order)


@_rule("dynamic_update_slice")
def _dynamic_update_slice(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    operand, update, *starts = operands
    order = _common((operand, update), operand.ndim)
    if order is None:
        return None
    arrays = [operand.array(order), update.array(order), *[starts[d].array() for d in order]]
    return _results(equation, rebind(equation, arrays), order)


@_rule("rev")
def _rev(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    (operand,) = operands
    order = operand.order
    if order is None:
        return None
    dims = places(equation.params["dimensions"], order)
    return _results(equation, rebind(equation, [operand.array(order)], dimensions=dims), order)


# Other dimensions, the same elements


@_rule("transpose")
def _transpose(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    return [operands[0].transposed(equation.params["permutation"])]


@_rule("squeeze")
def _squeeze(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    (operand,), dims = operands, equation.params["dimensions"]
    order = operand.order
    if order is None:
        return None
    return _results(equation, [lax.squeeze(operand.array(order), places(dims, order))], without(order, dims))


@_rule("reshape")
def _reshape(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    operand, shape = operands[0], equation.params["new_sizes"]
    order = operand.order
    if order is None or len(operands) > 1 or 0 in operand.shape:
        return None
    parts = _parts(operand.shape, shape)
    for before, _ in parts:
        order = _brought_together(before, order, operand.shape)
    if order == program_order(operand.ndim):
        return None
    found: list[tuple[int, list[int]]] = [(order.index(before[0]), after) for before, after in parts]
    new_order = [d for _, after in sorted(found) for d in after]
    ones = [d for d in range(len(shape)) if d not in new_order]  # they lie anywhere
    for d in ones:
        new_order.insert(new_order.index(d - 1) + 1 if d else 0, d)
    array = lax.reshape(operand.array(order), [shape[d] for d in new_order])
    return _results(equation, [array], tuple(new_order))


def _brought_together(dims: Sequence[int], order: Order, shape: Sequence[int]) -> Order:
    """The order in which some dimensions lie one after the other, from the place of the first of them on."""
    at = places(dims, order)
    if _beside(at, order, shape):
        return order
    first = order[: min(at)]
    return (*first, *dims, *(d for d in order if d not in first and d not in dims))


def _beside(at: Sequence[int], order: Order, shape: Sequence[int]) -> bool:
    """True if places in memory are consecutive, except for dimensions of one element."""
    rising = all(a < b for a, b in itertools.pairwise(at))
    return rising and all(shape[order[i]] == 1 or i in at for i in range(at[0], at[-1] + 1))


def _parts(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of dimensions that a reshape maps to each other, without those of one element."""
    parts, i, j = [], 0, 0
    old, new = [d for d, n in enumerate(before) if n != 1], [d for d, n in enumerate(after) if n != 1]
    while i < len(old):
        first, start = i, j
        i, j = i + 1, j + 1
        have, want = before[old[first]], after[new[start]]
        while have != want:
            if have < want:
                have, i = have * before[old[i]], i + 1
            else:
                want, j = want * after[new[j]], j + 1
        parts.append((old[first:i], new[start:j]))
    return parts


# Products


@_rule(convolution_p.name)
def _convolution(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    """With channels last, if that is a way to compute it."""
    call, avals = equation.params["call"], [v.aval for v in equation.invars]
    run = conv_choice.lowering(call, *avals, follows=any(x.order for x in operands))
    if run is None:
        return None
    *taken, order = conv_choice.orders(call, operands[0].ndim)
    result = run(*[x.array(o) for x, o in zip(operands, taken, strict=True)])
    (found,) = _results(equation, [result], order)
    # an optimizer computes with it and the weight, which is in the program's order
    return [Ordered.of(found.array()) if call.part == "weight_gradient" else found]


@_rule("dot_general")
def _dot_general(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    arrays, numbers = _as_they_lie(equation, operands)
    if (found := exchanged(equation, arrays, numbers)) is not None:
        return [Ordered.of(found)]
    if not any(x.order for x in operands):
        return None
    results = rebind(equation, arrays, dimension_numbers=numbers)
    contracted, batch = equation.params["dimension_numbers"]
    made, start = list(range(len(batch[0]))), len(batch[0])
    for x, dims, of_batch in zip(operands, contracted, batch, strict=True):
        free = without(x.order or program_order(x.ndim), [*dims, *of_batch])
        made += [start + d for d in free]
        start += len(free)
    return _results(equation, results, tuple(made))


def _as_they_lie(equation: Any, operands: Sequence[Ordered]) -> tuple[list[jax.Array], Any]:
    """The factors of a product in the orders in which they lie, and `dimension_numbers` for those."""
    orders = [x.order or program_order(x.ndim) for x in operands]
    numbers = tuple(
        tuple(places(dims, order) for dims, order in zip(pair, orders, strict=True))
        for pair in equation.params["dimension_numbers"]
    )
    return [x.array(order) for x, order in zip(operands, orders, strict=True)], numbers


@_rule("optimization_barrier")
def _optimization_barrier(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    orders = [x.order or program_order(x.ndim) for x in operands]
    results = rebind(equation, [x.array(order) for x, order in zip(operands, orders, strict=True)])
    return [Ordered(x.shape, {order: a}) for x, order, a in zip(operands, orders, results, strict=True)]


@_rule("in_order")
def _in_order(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    """The program's, also between images with channels last."""
    return None


# Programs without convolutions: transposed matrices are folded into their products. XLA does that too, but for the
# product with one row: there it copies the transposed weight at every call, five times the product itself.


def _transposed_matrix(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    permutation = equation.params["permutation"]
    is_matrix = (*permutation[:-2], *permutation[:-3:-1]) == program_order(len(permutation))
    return _transpose(equation, operands) if is_matrix else None


def _product_of_matrices(equation: Any, operands: Sequence[Ordered]) -> list[Ordered] | None:
    if not any(map(len, equation.params["dimension_numbers"][1])):
        return _dot_general(equation, operands)
    found = exchanged(equation, *_as_they_lie(equation, operands))
    return None if found is None else [Ordered.of(found)]


MATRIX_RULES: dict[str, LayoutRule] = {"transpose": _transposed_matrix, "dot_general": _product_of_matrices}
"""The rules for other programs."""
