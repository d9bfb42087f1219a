"""Computation with small last dimensions: functions of small images, an optimizer with weights of convolutions.

XLA's CPU compiler makes a loop of each dimension, and of the innermost only vectors: with 3x3 weights it divides and
takes roots of one element at a time, with images of 14x14 exponentials, seven times as long as with the same elements
in rows. Its passes take the reshapes away that would make such rows, but not across a branch (`kernels.stored`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from jaten_ops.kernel_base.materialize import stored
from jaten_ops.kernel_base.platform import is_over_mesh
from jaten_ops.kernel_base.promotion import is_float
from jaten_ops.xla.equations import ELEMENTWISE, rebind

from ..conv_primitive import convolution_p
from .rules import within
from .steps import Instruction, Value, list_steps, users_of

_SLOW = frozenset({"atan2", "cbrt", "div", "exp", "log", "pow", "rsqrt", "sqrt", "tanh"})  # one by one
_FUNCTIONS = frozenset(
    {"atan2", "cos", "erf", "erfc", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "sin", "tanh"}
    | {"bitcast_convert_type"}  # of which cpu/exponentials.py makes its own
)  # of many operations each
_LEAST_ELEMENTS = 2**16  # of an array, for which a branch pays
_LEAST_OF_FUNCTIONS = 2**13  # likewise, if it saves the time of a function
_LEAST_ROW = 32  # elements of a last dimension that makes vectors
_ROW = 256  # elements of the rows that are made, at least
_SAME_ELEMENTS = frozenset({"copy", "reshape", "squeeze", "transpose"})
_STORED = frozenset(
    {"cond", "conv_general_dilated", convolution_p.name, "dot_general", "jit", "pjit", "scan", "scatter-add", "while"}
)


class _RowInstruction(Instruction):
    """A step that may be computed in rows.

    Attributes:
        shape: of what it makes, if that may be computed in rows; else None.
        level: how many regions were left on the way to it.
        region: where it is computed with others of its shape, if it may be.
    """

    __slots__ = ("level", "region", "shape")

    def __init__(self, equation: Any, taken: list[Any], scope: str) -> None:
        super().__init__(equation, taken, scope)
        self.shape = _shape_in_rows(self)
        self.level = 0
        self.region: _Region | None = None


class _Region:
    """Steps of one shape, element by element, that depend on each other through nothing else."""

    __slots__ = ("shape", "steps")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.steps: list[_RowInstruction] = []

    def takes(self) -> list[Value]:
        """The values that it takes from outside, each once."""
        found = {id(v): v for s in self.steps for v in s.values() if v.maker is None or v.maker.region is not self}
        return list(found.values())

    def makes(self) -> list[Value]:
        return [v for s in self.steps for v in s.made if v.is_used_outside]

    def pays(self, operands: set[int], results: set[int]) -> bool:
        """True if it is worth a branch: functions of few arrays, or an optimizer's update of operands to results."""
        arrays = [v for v in self.takes() if v.aval.shape == self.shape]
        functions = sum(s.name in _FUNCTIONS and is_float(s.made[0].aval.dtype) for s in self.steps)
        if functions and len(arrays) <= 2 * functions and any(is_float(v.aval.dtype) for v in arrays):
            return True
        return (
            math.prod(self.shape) >= _LEAST_ELEMENTS
            and any(s.name in _SLOW or _rounds(s) for s in self.steps)
            and any(id(v) in operands and is_float(v.aval.dtype) for v in arrays)
            and any(id(v) in results for v in self.makes())
            and all(id(v) in results or _is_stored(v) for v in arrays)
        )


def _rounds(step: _RowInstruction) -> bool:
    """True for a rounding to bfloat16, which is computed on the bits of one element at a time."""
    return step.name == "convert_element_type" and step.made[0].aval.dtype == jnp.bfloat16


def _is_stored(value: Value) -> bool:
    """True if XLA stores the value in memory anyway."""
    while value.maker is not None and value.maker.name in _SAME_ELEMENTS:
        value = value.maker.values()[0]
    return value.maker is None or value.maker.name in _STORED


def flattened(fn: Callable[..., Any], *, platform: str | None = None) -> Callable[..., Any]:
    """A function of arrays that computes what `fn` does, for `jax.jit`.

    Args:
        fn: a JAX function.
        platform: what it runs on, by default JAX's first choice. Only a CPU's program becomes another one.
    """

    @functools.wraps(fn)
    def call(*arrays: Any) -> Any:
        leaves = jax.tree.leaves(arrays)
        is_elsewhere = (platform or jax.default_backend()) != "cpu" or any(map(is_over_mesh, leaves))
        if is_elsewhere or not any(len(a.shape) > 2 or _has_short_rows(a.shape) for a in leaves):
            return fn(*arrays)
        program, shape = jax.make_jaxpr(fn, return_shape=True)(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shape), _run(program, leaves))

    return call


def _run(program: core.ClosedJaxpr, arrays: Sequence[Any]) -> Sequence[Any]:
    known: dict[int, Any] = {}
    operands = [Value(v.aval) for v in program.jaxpr.invars]
    known.update(zip(map(id, operands), arrays, strict=True))
    steps: list[_RowInstruction] = []
    constants = [Value(v.aval) for v in program.jaxpr.constvars]
    known.update(zip(map(id, constants), program.consts, strict=True))
    results = list_steps(program.jaxpr, [*constants, *operands], steps, _RowInstruction)
    _divide(steps, results)
    taken, made = ({id(v) for v in values if isinstance(v, Value)} for values in (operands, results))
    regions = {id(s.region): s.region for s in steps if s.region is not None}
    paying = {key for key, region in regions.items() if region.pays(taken, made)}
    if not paying:
        return core.jaxpr_as_fun(program)(*arrays)

    def read(atom: Any) -> Any:
        return known[id(atom)] if isinstance(atom, Value) else atom

    # the regions of a level need nothing of each other, and nothing else of it needs them
    units: dict[int, tuple[int, bool, Any]] = {}
    for step in steps:
        if id(step.region) in paying:
            units.setdefault(id(step.region), (step.level, True, step.region))
        else:
            units[id(step)] = (step.level, False, step)
    for _, is_region, unit in sorted(units.values(), key=lambda u: u[:2]):
        if is_region:
            values, found = unit.makes(), _in_rows(unit, read)
        else:
            values, found = unit.made, unit.apply(known)
        known.update(zip(map(id, values), found, strict=True))
    return [read(atom) for atom in results]


def _divide(steps: Sequence[_RowInstruction], results: Sequence[Any]) -> None:
    """Gives each step its level, and those that may be computed in rows a region."""
    takers = users_of(steps, results)
    for step in steps:
        for value in step.values():
            if value.maker is not None:
                leaves = value.maker.shape is not None and value.maker.shape != step.shape
                step.level = max(step.level, value.maker.level + leaves)
    for step in reversed(steps):  # as late as those that take from it
        users = [user for value in step.made for user in takers.get(id(value), ())]
        if step.shape is not None and users and all(u is not None and u.shape == step.shape for u in users):
            step.level = min(u.level for u in users if u is not None)
    for step in steps:
        if step.shape is not None:
            _join(step, step.shape)
    for step in steps:
        for value in step.made:
            users = takers.get(id(value), [])
            value.is_used_outside = any(u is None or u.region is not step.region for u in users)


def _join(step: _RowInstruction, shape: tuple[int, ...]) -> None:
    """Puts a step into the regions of its level that it takes from, which are one from then on."""
    joined = [v.maker.region for v in step.values() if v.maker is not None and v.maker.level == step.level]
    found = list({id(r): r for r in joined if r is not None and r.shape == shape}.values())
    region = max(found, key=lambda r: len(r.steps), default=_Region(shape))
    for other in found:
        if other is not region:
            for moved in other.steps:
                moved.region = region
            region.steps += other.steps
    region.steps.append(step)
    step.region = region


def _shape_in_rows(step: _RowInstruction) -> tuple[int, ...] | None:
    """The shape of what a step makes, if it is computed element by element and has a short last dimension."""
    first, *more = step.made
    shape = tuple(first.aval.shape)
    if more or not _has_short_rows(shape) or any(_is_repeated(v) for v in step.values()):
        return None
    taken = {np.shape(_aval(a)) for a in step.taken}
    if step.name == "broadcast_in_dim":
        return shape if taken == {()} else None
    return shape if step.name in ELEMENTWISE and taken <= {shape, ()} else None


def _is_repeated(value: Value) -> bool:
    """True for a vector that is repeated, as for each channel: stored it would take the time that rows save."""
    maker = value.maker
    return maker is not None and maker.name == "broadcast_in_dim" and maker.shape is None


def _has_short_rows(shape: Sequence[int]) -> bool:
    wide = [d for d in shape if d != 1]  # of the others XLA makes no loops
    return len(wide) > 1 and wide[-1] < _LEAST_ROW and math.prod(wide) >= _LEAST_OF_FUNCTIONS


def _aval(atom: Any) -> Any:
    return atom.aval if isinstance(atom, Value) else atom


def _in_rows(region: _Region, read: Callable[[Any], Any]) -> Sequence[Any]:
    """The results of a region, computed in rows, and reshaped as in the program."""
    shape, taken = region.shape, region.takes()
    rows = _rows(shape)
    made = region.makes()

    def compute(*arrays: Any) -> list[Any]:
        known = dict(zip(map(id, taken), arrays, strict=True))
        for step in region.steps:
            operands = [known[id(a)] if isinstance(a, Value) else a for a in step.taken]
            changed = {"shape": rows} if step.name == "broadcast_in_dim" else {}
            with within(step.scope):
                known[id(step.made[0])] = rebind(step.equation, operands, **changed)[0]
        return [known[id(v)] for v in made]

    arrays = [lax.reshape(a, rows) if v.aval.shape == shape else a for v, a in ((v, read(v)) for v in taken)]
    return [lax.reshape(a, shape) for a in stored(compute, *arrays)]


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """A shape of as many elements: the last dimensions joined, and the first ones, which XLA splits among threads."""
    at = next(i for i in reversed(range(len(shape))) if i == 0 or math.prod(shape[i:]) >= _ROW)
    return math.prod(shape[:at]), math.prod(shape[at:])
