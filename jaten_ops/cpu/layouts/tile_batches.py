"""Two batches of products, and what is computed between them, as attention that a program writes out: in stretches.

XLA's CPU stores the results of the first products, the scores of all pairs, and goes over them several times: for their
maximum, their exponentials, the sums of these and the second products. A loop over stretches of the batch finds them in
the processor's cache. Each matrix is computed as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core

from jaten_ops.xla import cpu_features
from jaten_ops.xla.equations import ELEMENTWISE, rebind

from .steps import Instruction, Listed, Value

_LEAST = 2**20  # bytes of the first products that do not stay in a cache
_STRETCH = 2**19  # bytes of those of a stretch
_FEW = 16  # rows of a matrix: fewer are computed in less time than a stretch takes to begin

_Shape = tuple[int, ...]
_Forms = Sequence[_Shape | None]


def in_batches(program: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program in which such products are computed in stretches; the same object if there are none."""
    if not _may_pay(program.jaxpr):
        return program
    listed = Listed(program)
    return listed.looped(lambda at: _loop_at(listed, at))


def _may_pay(jaxpr: Any) -> bool:
    products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    operands = [*jaxpr.constvars, *jaxpr.invars]  # over a mesh each device has a part of the batch already
    are_large = any(_is_large(e.outvars[0].aval) for e in products)
    return len(products) > 1 and are_large and not any(v.aval.sharding.mesh.size > 1 for v in operands)


def _is_large(aval: Any) -> bool:
    is_known = all(isinstance(n, int) for n in aval.shape)
    return is_known and aval.dtype == np.float32 and math.prod(aval.shape) * 4 >= _LEAST


class _Batch:
    """The leading dimensions of arrays, in one of the forms that they have: as one, or as several in order.

    Args:
        size: how many matrices they are.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def of(self, shape: _Shape) -> _Shape | None:
        """The leading dimensions of a shape; None if they are not this batch."""
        for i in range(1, len(shape) + 1):
            if math.prod(shape[:i]) >= self.size:
                return shape[:i] if math.prod(shape[:i]) == self.size else None
        return None


def _sizes_of(length: int, form: _Shape) -> _Shape | None:
    """The sizes of a stretch of so many matrices in a form of the batch; None if it is no block there."""
    found: list[int] = []
    for n in reversed(form):
        size = math.gcd(length, n)
        if length > size < n:
            return None
        found.append(size)
        length //= size
    return tuple(found[::-1])


class _Loop:
    """Products of a batch, and the steps that make one of the factors.

    Attributes:
        steps: in order; the products are the last.
        made: the products.
        batch: the batch.
        length: of how many matrices a stretch is.
    """

    def __init__(self, steps: list[tuple[Instruction, _Forms]], batch: _Batch, length: int) -> None:
        self.steps, self._forms = [s for s, _ in steps], [forms for _, forms in steps]
        self.made, self.batch, self.length = self.steps[-1].made, batch, length

    def run(self, known: dict[int, Any]) -> list[Any]:
        """The products, from the values that are known by their `id`."""

        def stretch(at: jax.Array) -> Any:
            first, made = at * at.dtype.type(self.length), dict[int, Any]()
            for step, forms in zip(self.steps, self._forms, strict=True):
                outside = [known[id(a)] if isinstance(a, Value) and id(a) not in made else a for a in step.taken]
                taken = [
                    made[id(a)] if isinstance(a, Value) else self._part(a, form, first)
                    for a, form in zip(outside, forms, strict=True)
                ]
                made[id(step.made[0])] = self._of_part(step, taken)
            return made[id(self.made[0])]

        count = np.dtype("int32").type(self.batch.size // self.length)
        found = lax.map(stretch, lax.iota(np.dtype("int32"), count))
        return [lax.reshape(found, self.made[0].aval.shape)]

    def _part(self, array: Any, form: _Shape | None, first: jax.Array) -> Any:
        """A stretch of an array, from a matrix on; the array itself if it has one for all."""
        if form is None:
            return array
        zero = np.zeros((), first.dtype)
        starts, sizes, rest = [zero] * array.ndim, [*array.shape], first
        of_stretch = _sizes_of(self.length, form) or ()
        for i in reversed(range(len(form))):
            n = first.dtype.type(form[i])
            if array.shape[i] > 1:
                starts[i], sizes[i] = lax.rem(rest, n), of_stretch[i]
            rest = lax.div(rest, n)
        return lax.dynamic_slice(array, starts, sizes)

    def _of_part(self, step: Instruction, taken: Sequence[Any]) -> Any:
        """The result of a step for a stretch."""
        changed = {"broadcast_in_dim": "shape", "reshape": "new_sizes"}.get(step.name)
        if changed is None:
            return rebind(step.equation, taken)[0]
        shape = step.made[0].aval.shape
        form = self.batch.of(shape) or ()
        sizes = _sizes_of(self.length, form) or ()
        return rebind(step.equation, taken, **{changed: (*sizes, *shape[len(form) :])})[0]


def _loop_at(listed: Listed, at: int) -> _Loop | None:
    """The loop of which a step may be the last."""
    last = listed.steps[at]
    if last.name != "dot_general" or not any(isinstance(a, Value) and _is_large(a.aval) for a in last.taken):
        return None
    shape, dims = last.made[0].aval.shape, last.equation.params["dimension_numbers"][1][0]
    batch = _Batch(math.prod(shape[: len(dims)]))
    forms = _forms(last, batch)
    if batch.size < 2 or forms is None:
        return None
    found, inner = [(last, forms)], {id(last)}
    wanted, whole = {*map(id, last.values())}, set[int]()
    for step in reversed(listed.steps[:at]):
        value = step.made[0]
        if len(step.made) > 1 or id(value) not in wanted - whole:
            continue
        forms = _forms(step, batch) if all(id(u) in inner for u in listed.users[id(value)]) else None
        if forms is None:
            continue
        inner.add(id(step))
        found.append((step, forms))
        for operand, form in zip(step.taken, forms, strict=True):
            is_part = form is not None and operand.aval.shape[: len(form)] == form
            (wanted if is_part else whole).add(id(operand))
    return _paying(found[::-1], batch)


def _paying(steps: list[tuple[Instruction, _Forms]], batch: _Batch) -> _Loop | None:
    """The loop with these steps, if products in it would be stored otherwise that do not stay in a cache."""
    firsts = [s.made[0].aval for s, _ in steps[:-1] if s.name == "dot_general" and _is_large(s.made[0].aval)]
    if not firsts or any(aval.shape[-2] < _FEW for aval in firsts):
        return None
    shapes = [s.made[0].aval.shape for s, _ in steps]
    forms = [batch.of(shape) for shape in shapes] + [form for _, found in steps for form in found]
    of_matrix = max(math.prod(aval.shape) * aval.dtype.itemsize for aval in firsts) // batch.size
    most = max(cpu_features.cores(), _STRETCH // of_matrix)  # as many at a time give each core one
    known = [form for form in forms if form is not None]
    fitting = [n for n in range(1, min(most, batch.size) + 1) if batch.size % n == 0]
    length = max(n for n in fitting if all(_sizes_of(n, form) for form in known))
    return _Loop(steps, batch, length) if length < batch.size else None


def _forms(step: Instruction, batch: _Batch) -> _Forms | None:
    """For each operand the form of the batch in it, None for one that is the same for all matrices.

    None in place of them if a step does not make some matrices of a batch from the same ones of what it takes.
    """
    shapes: list[_Shape] = [np.shape(getattr(a, "aval", a)) for a in step.taken]
    if not all(isinstance(n, int) for shape in (step.made[0].aval.shape, *shapes) for n in shape):
        return None
    prefix = batch.of(step.made[0].aval.shape)
    rule = _RULES.get("elementwise" if step.name in ELEMENTWISE else step.name)
    return None if prefix is None or rule is None else rule(step, shapes, prefix, batch)


def _elementwise(step: Instruction, shapes: list[_Shape], prefix: _Shape, batch: _Batch) -> _Forms | None:
    are_known = all(len(shape) in (0, step.made[0].aval.ndim) for shape in shapes)
    return [_repeated(shape, prefix) for shape in shapes] if are_known else None


def _repeated(shape: _Shape, prefix: _Shape) -> _Shape | None:
    """The form of an operand whose leading dimensions may be 1, for all matrices."""
    return None if all(n == 1 for n in shape[: len(prefix)]) else prefix


def _product(step: Instruction, shapes: list[_Shape], prefix: _Shape, batch: _Batch) -> _Forms | None:
    leading = tuple(range(len(prefix)))
    dims = step.equation.params["dimension_numbers"][1]
    are_same = all(tuple(d) == leading for d in dims) and all(batch.of(s) == prefix for s in shapes)
    return [prefix, prefix] if are_same else None


def _broadcast(step: Instruction, shapes: list[_Shape], prefix: _Shape, batch: _Batch) -> _Forms | None:
    (shape,), places = shapes, step.equation.params["broadcast_dimensions"]
    if all(n == 1 for n, d in zip(shape, places, strict=True) if d < len(prefix)):
        return [None]
    form = batch.of(shape)
    if form is not None and [places[i] for i in _longer(form)] == _longer(prefix):
        return [form]
    return [prefix] if tuple(places[: len(prefix)]) == tuple(range(len(prefix))) else None


def _longer(sizes: _Shape) -> list[int]:
    """The dimensions of more than one element; one of one element may stand anywhere."""
    return [i for i, n in enumerate(sizes) if n > 1]


def _reshape(step: Instruction, shapes: list[_Shape], prefix: _Shape, batch: _Batch) -> _Forms | None:
    form = batch.of(shapes[0])
    return None if form is None or step.equation.params["dimensions"] is not None else [form]


def _reduction(step: Instruction, shapes: list[_Shape], prefix: _Shape, batch: _Batch) -> _Forms | None:
    axes = step.equation.params["axes" if "axes" in step.equation.params else "dimensions"]
    return [prefix] if batch.of(shapes[0]) == prefix and min(axes, default=len(prefix)) >= len(prefix) else None


def _transposition(step: Instruction, shapes: list[_Shape], prefix: _Shape, batch: _Batch) -> _Forms | None:
    form, places = batch.of(shapes[0]), step.equation.params["permutation"]
    return [form] if form is not None and [places[i] for i in _longer(prefix)] == _longer(form) else None


_RULES = {
    "elementwise": _elementwise, "dot_general": _product, "broadcast_in_dim": _broadcast, "reshape": _reshape,
    "squeeze": _reduction, "transpose": _transposition, "optimization_barrier": _elementwise,
} | {f"reduce_{name}": _reduction for name in ("and", "max", "min", "or", "prod", "sum")}  # fmt: skip
