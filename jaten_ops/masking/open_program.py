"""A program that JAX has traced with open sizes, run on larger arrays with the sizes that there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.export import is_symbolic_dim
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from ..xla.equations import ELEMENTWISE, programs_of
from . import masked_indices, masked_places, masked_programs, masked_rules  # noqa: F401  # register the rules
from .masked_run import MaskedRun
from .masked_values import NotMasked, PaddedSizes, padded_array, size_value

LARGEST_SIZE = 2**24
"""The bound of open sizes, about which kernels ask."""

_PER_PRODUCT = 0.1  # the time of a product and a sum, in that of an operation on an element


class OpenProgram:
    """A program with open sizes, which have names, as a function of larger arrays.

    Args:
        traced: the program.
    """

    def __init__(self, traced: core.ClosedJaxpr) -> None:
        used, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
        self._program = core.ClosedJaxpr(used, traced.consts)
        self._assumed = frozenset(_open_sizes(used))
        self._work = _work_of(used)

    def __call__(self, arrays: Sequence[Any], larger: Mapping[str, int], given: Mapping[str, Any]) -> list[Any]:
        """The results, in the larger sizes; what they have is in front.

        Args:
            arrays: the operands, in the larger sizes.
            larger: these.
            given: the sizes that there are.

        Raises:
            NotMasked: it cannot be run so.
        """
        sizes = PaddedSizes(larger, given)
        run = MaskedRun(sizes)
        pairs = zip(arrays, self._program.jaxpr.invars, strict=True)
        try:
            results = run(self._program, [run.masks.of(array, v.aval.shape) for array, v in pairs])
            found = [padded_array(run.masks.all_leading(r)) for r in results]
        except NotMasked:
            raise
        except Exception as error:  # of JAX, for sizes that are larger
            raise NotMasked(f"cannot be traced with larger sizes: {error}") from error
        self._assumed |= sizes.assumed
        return found

    def fits(self, given: Mapping[str, int], larger: Mapping[str, int]) -> bool:
        """True if all sizes of the program are at most those of the larger one.

        Until it has been traced for larger sizes, not all that it assumes of them is known.
        """
        return all(size_value(size, given) <= size_value(size, larger) for size in self._assumed)

    def work(self, sizes: Mapping[str, int]) -> float:
        """An estimate of the work of the program, in operations on an element."""
        return sum(weight * size_value(size, sizes) for size, weight in self._work.items())


def _open_sizes(jaxpr: Any) -> Iterator[str]:
    """The open sizes of a program's arrays, as text."""
    for variable in (*jaxpr.invars, *(v for equation in jaxpr.eqns for v in equation.outvars)):
        yield from (str(size) for size in getattr(variable.aval, "shape", ()) if is_symbolic_dim(size))
    for equation in jaxpr.eqns:
        for inner in programs_of(equation):
            yield from _open_sizes(inner)


def _work_of(jaxpr: Any) -> dict[str, float]:
    """The work of a program by sizes, as text: its operands are filled up, its results are cut."""
    found: dict[str, float] = {}

    def add(size: Any, weight: float = 1.0) -> None:
        found[str(size)] = found.get(str(size), 0) + weight

    for variable in (*jaxpr.invars, *jaxpr.outvars):
        add(_elements(variable))
    for equation in jaxpr.eqns:
        for inner in programs_of(equation):
            for size, weight in _work_of(inner).items():
                add(size, weight)
        if equation.primitive.name == "dot_general":
            shape, ((contracted, _), _) = equation.invars[0].aval.shape, equation.params["dimension_numbers"]
            add(math.prod([_elements(equation.outvars[0]), *(shape[d] for d in contracted)]), _PER_PRODUCT)
        elif equation.outvars:  # none of what prints
            add(_elements(equation.outvars[0]))
            if equation.primitive.name not in ELEMENTWISE and equation.invars:
                add(_elements(equation.invars[0]))
    return found


def _elements(variable: Any) -> Any:
    return math.prod(getattr(variable.aval, "shape", ()))
