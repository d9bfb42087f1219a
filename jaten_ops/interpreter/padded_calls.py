"""Calls of a jitted function that differ in sizes: one program, for larger arrays, serves many of them."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from ..masking.masked_values import NotMasked, size_value
from ..masking.open_program import LARGEST_SIZE, OpenProgram
from ..masking.size_choice import KEPT, larger_sizes
from ..xla.jitted import jitted

_log = logging.getLogger(__name__)

_LITTLE = 2.5e5
"""Operations on an element: some tenths of a millisecond, which is little beside the compile of an operator."""

_MANY, _VERY_MANY = 16, 48
"""So many shapes, and each of them is unlikely to come again. If an operand has several sizes that change, they may be
those of layers until there are very many."""

_REMEMBERED = 64  # shapes
_MOST_PROGRAMS = 64

_Place = tuple[int, int]
"""An operand, and a dimension of it."""

_Shapes = Sequence[tuple[int, ...]]
"""The shapes of the operands of a call, and behind them arguments that are sizes of its results."""


class PaddedCall:
    """A program for larger arrays as one for operands of some sizes.

    Args:
        program: it.
        sizes: the sizes that there are, by name.
        larger: those for which it runs.
        padded: the larger shape of each operand; None for those that stay as they are.

    Attributes:
        avals: the types of the results.
    """

    def __init__(
        self,
        program: _PaddedProgram,
        sizes: dict[str, int],
        larger: dict[str, int],
        padded: list[tuple[int, ...] | None],
    ) -> None:
        self._program, self._padded, self._fits = program, padded, False
        self._sizes, self._larger = tuple(sizes.values()), tuple(larger.values())
        self.avals = program.avals(sizes)
        self._cut = [tuple(map(slice, a.shape)) for a in self.avals]

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """The results, as NumPy's arrays.

        Raises:
            NotMasked: the program has no form for larger arrays.
        """
        pairs = zip(operands, self._padded, strict=True)
        given = [x if shape is None else _enlarged(x, shape) for x, shape in pairs]
        try:
            results = self._program.run(self._sizes, self._larger, *given)
        except NotMasked:
            self._program.is_refused = True
            raise
        if not self._fits:  # what is assumed of sizes is known when the program has been traced
            self._fits = self._program.fits(self._sizes, self._larger)
            if not self._fits:
                raise NotMasked("a size of the program is above that for larger operands")
        return [np.asarray(r)[place] for r, place in zip(results, self._cut, strict=True)]


def _enlarged(x: Any, shape: tuple[int, ...]) -> np.ndarray:
    made = np.zeros(shape, x.dtype)
    made[tuple(map(slice, x.shape))] = x
    return made


class _PaddedProgram:
    """A traced program with open sizes, jitted for arrays of larger ones.

    Args:
        traced: it.
        groups: the places of each open size.

    Attributes:
        form: the tree of its results.
        open: the program.
        run: a jitted function of the sizes that there are, of the larger ones, and of the operands.
        made: the larger sizes for which it is compiled.
        is_refused: whether it has no form for larger arrays.
    """

    def __init__(self, traced: Any, groups: dict[str, list[_Place]]) -> None:
        self.form = jax.tree.structure(traced.out_info)
        self.open = OpenProgram(traced.jaxpr)
        self._avals = traced.jaxpr.out_avals
        self.made: list[dict[str, int]] = []
        self.is_refused = False
        self._names = list(groups)

        def padded(sizes: tuple[Any, ...], larger: tuple[int, ...], *operands: Any) -> list[Any]:
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                return self.open(operands, self._named(larger), self._named(sizes))

        self.run = jitted(padded, static_argnums=1)

    def _named(self, sizes: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._names, sizes, strict=True))

    def fits(self, sizes: Sequence[int], larger: Sequence[int]) -> bool:
        """True if all its sizes are at most those for the larger ones."""
        return self.open.fits(self._named(sizes), self._named(larger))

    def avals(self, sizes: dict[str, int]) -> list[Any]:
        """The types of its results for some sizes."""
        shapes = [tuple([size_value(size, sizes) for size in a.shape]) for a in self._avals]
        return [jax.core.ShapedArray(shape, a.dtype) for shape, a in zip(shapes, self._avals, strict=True)]


class PaddedCalls:
    """The calls of a function that differ in the sizes of its operands alone.

    A size changes if it is the only one, beside those that are equal to it, in which a call differs from several before
    it. So calls of one operator in several layers, each with sizes of its own, do not hide that their batches change.

    Args:
        shapes: those of one call.
    """

    def __init__(self, shapes: _Shapes) -> None:
        self._places = [(i, d) for i, shape in enumerate(shapes) for d in range(len(shape))]
        self._before: deque[tuple[int, ...]] = deque(maxlen=_REMEMBERED)
        self._programs: dict[Any, _PaddedProgram | None] = {}

    def meet(self, shapes: _Shapes) -> Changing:
        """Notes the shapes of a new call; returns the sizes in which it differs from others."""
        sizes = tuple(itertools.chain.from_iterable(shapes))
        found: Counter[tuple[int, ...]] = Counter()
        for other in list(self._before):
            if other != sizes:
                found[tuple([k for k, size in enumerate(sizes) if size != other[k]])] += 1
        self._before.append(sizes)
        best = Changing({}, (), 0)
        for differing, times in found.items():
            changing = self._changing(sizes, differing, times)
            if changing.may_be_rounded and (times, len(differing)) > (best.times, len(best.places)):
                best = changing
        return best

    def _changing(self, sizes: tuple[int, ...], differing: tuple[int, ...], times: int) -> Changing:
        by_size: dict[int, list[_Place]] = {}
        for k in differing:
            by_size.setdefault(sizes[k], []).append(self._places[k])
        fixed = tuple([size for k, size in enumerate(sizes) if k not in differing])
        return Changing(by_size, fixed, times)

    def call(
        self, changing: Changing, operands: Sequence[Any], shapes: _Shapes, trace: Callable[[list[Any]], Any] | None
    ) -> tuple[PaddedCall, Any] | None:
        """The call of a program for larger sizes and the tree of its results; None if there is none.

        Args:
            changing: what `meet` says of it.
            operands: those of the call.
            shapes: theirs.
            trace: traces the function for operands, and arguments that are sizes, as `jax.jit(...).trace`; None if it
                has to be traced already.
        """
        if not changing.may_be_rounded:
            return None
        groups = {f"open{i}": places for i, places in enumerate(changing.by_size.values())}
        key = tuple(map(tuple, groups.values())), changing.fixed
        if key not in self._programs and trace is not None:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs = {}
            self._programs[key] = _traced(operands, shapes, groups, trace)
        program, given = self._programs.get(key), dict(zip(groups, changing.by_size, strict=True))
        if program is None or program.is_refused:
            return None
        larger, is_new = larger_sizes(program.open, given, program.made, _LITTLE)
        if not program.open.fits(given, larger):
            return None
        if is_new:
            program.made.append(larger)
        padded = _padded(shapes, groups, larger)[: len(operands)]
        return PaddedCall(program, given, larger, padded), program.form


class Changing(NamedTuple):
    """The sizes in which a call differs from some before it.

    Attributes:
        by_size: the places of each.
        fixed: the other sizes.
        times: the number of those calls.
    """

    by_size: dict[int, list[_Place]]
    fixed: tuple[int, ...]
    times: int

    @property
    def places(self) -> list[_Place]:
        return [place for places in self.by_size.values() for place in places]

    @property
    def are_many(self) -> bool:
        """True if there have been so many that it pays to trace none of them any more."""
        return self.times >= _MANY

    @property
    def may_be_rounded(self) -> bool:
        if self.times < KEPT or not all(2 <= size <= LARGEST_SIZE for size in self.by_size):
            return False
        of_operands = [i for places in self.by_size.values() for i in {i for i, _ in places}]
        return self.times >= _VERY_MANY or len(set(of_operands)) == len(of_operands)


def _padded(shapes: _Shapes, groups: dict[str, list[_Place]], sizes: dict[str, int]) -> list[tuple[int, ...] | None]:
    """The shapes of larger operands; None for those that stay as they are."""
    found: list[tuple[int, ...] | None] = [None] * len(shapes)
    for name, places in groups.items():
        for i, d in places:
            shape = found[i] or shapes[i]
            found[i] = (*shape[:d], sizes[name], *shape[d + 1 :])
    return found


def _traced(
    operands: Sequence[Any], shapes: _Shapes, groups: dict[str, list[_Place]], trace: Callable[[list[Any]], Any]
) -> _PaddedProgram | None:
    """The program with open sizes; None if it cannot be traced so."""
    constraints = [f"{name} {bound}" for name in groups for bound in (">= 2", f"<= {LARGEST_SIZE}")]
    opened = export.symbolic_shape(", ".join(groups), constraints=constraints)
    sizes: list[list[Any]] = [list(shape) for shape in shapes]
    for size, places in zip(opened, groups.values(), strict=True):
        for i, d in places:
            sizes[i][d] = size
    specs: list[Any] = [
        jax.ShapeDtypeStruct(shape, x.dtype, weak_type=getattr(x, "weak_type", False)) if hasattr(x, "dtype") else x
        for x, shape in zip(operands, sizes, strict=False)
    ]
    specs += map(tuple, sizes[len(operands) :])
    try:
        return _PaddedProgram(trace(specs), groups)
    except Exception as error:  # kernels raise any for a size that is open
        _log.info("a program has no form for open sizes: %s: %s", type(error).__name__, str(error).partition("\n")[0])
        return None
