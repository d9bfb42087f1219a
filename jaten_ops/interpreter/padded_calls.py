"""Calls of a jitted function that differ in sizes: one program, for larger arrays, serves many of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from ..masking.masked_values import NotMasked, size_value
from ..masking.open_program import LARGEST_SIZE, OpenProgram
from ..masking.size_choice import SizeHistory, larger_sizes
from ..xla.jitted import jitted

_log = logging.getLogger(__name__)

_LITTLE = 2.5e5
"""Operations on an element: some tenths of a millisecond, which is little beside the compile of an operator."""

_MANY = 16
"""So many shapes, and sizes of several dimensions of an operand change as well: before, they may be those of layers."""

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
        length: a number of steps that take as long to compile.
        avals: the types of the results.
    """

    length = 80

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
        results = self._program.run(self._sizes, self._larger, *given)
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
    """

    def __init__(self, traced: Any, groups: dict[str, list[_Place]]) -> None:
        self.form = jax.tree.structure(traced.out_info)
        self.open = OpenProgram(traced.jaxpr)
        self._avals = traced.jaxpr.out_avals
        self.made: list[dict[str, int]] = []
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

    Args:
        shapes: those of one call.

    Attributes:
        met: the number of calls whose shapes were noted.
    """

    def __init__(self, shapes: _Shapes) -> None:
        self._history = SizeHistory([(i, d) for i, shape in enumerate(shapes) for d in range(len(shape))])
        self.met = 0
        self._programs: dict[Any, _PaddedProgram | None] = {}

    def meet(self, shapes: _Shapes) -> None:
        """Notes the shapes of a new call."""
        self._history.meet(_by_place(shapes))
        self.met += 1

    @property
    def is_many(self) -> bool:
        """True if there have been so many shapes that each of them is unlikely to come again."""
        return self.met > _MANY

    def call(
        self, operands: Sequence[Any], shapes: _Shapes, trace: Callable[[list[Any]], Any] | None
    ) -> tuple[PaddedCall, Any] | None:
        """The call of a program for larger sizes and the tree of its results; None if there is none.

        Args:
            operands: those of the call.
            shapes: theirs.
            trace: traces the function for operands, and arguments that are sizes, as `jax.jit(...).trace`; None if it
                has to be traced already.
        """
        sizes, changing = _by_place(shapes), self._history.changing
        if not self._may_be_rounded(sizes):
            return None
        by_size: dict[int, list[_Place]] = {}
        for place in sorted(changing):
            by_size.setdefault(sizes[place], []).append(place)
        groups = {f"open{i}": places for i, places in enumerate(by_size.values())}
        key = tuple(map(tuple, groups.values())), tuple([s for place, s in sizes.items() if place not in changing])
        if key not in self._programs and trace is not None:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs = {}
            self._programs[key] = _traced(operands, shapes, groups, trace)
        program, given = self._programs.get(key), dict(zip(groups, by_size, strict=True))
        if program is None:
            return None
        larger, is_new = larger_sizes(program.open, given, program.made, _LITTLE)
        if not program.open.fits(given, larger):
            return None
        if is_new:
            program.made.append(larger)
        padded = _padded(shapes, groups, larger)[: len(operands)]
        return PaddedCall(program, given, larger, padded), program.form

    def _may_be_rounded(self, sizes: dict[_Place, int]) -> bool:
        changing = self._history.changing
        if not changing or not all(2 <= sizes[place] <= LARGEST_SIZE for place in changing):
            return False
        return self.is_many or len({i for i, _ in changing}) == len(changing)


def _by_place(shapes: _Shapes) -> dict[_Place, int]:
    return {(i, d): size for i, shape in enumerate(shapes) for d, size in enumerate(shape)}


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
