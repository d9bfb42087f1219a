"""The run of a traced program with open sizes on arrays of larger ones, equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.export import is_symbolic_dim
from jax.extend import core

from ..xla.equations import programs_of, rebind
from .masked_values import Masked, Masks, NotMasked, PaddedSizes, has_open_size

MaskedRule = Callable[["MaskedStep"], Sequence[Any]]
MASKED_RULES: dict[str, MaskedRule] = {}
"""Rules by primitive: from operands to results, arrays or `Masked`. They raise `NotMasked`."""


def masked_rule(*primitives: str) -> Callable[[MaskedRule], MaskedRule]:
    """Registers a rule for primitives."""

    def register(fn: MaskedRule) -> MaskedRule:
        MASKED_RULES.update(dict.fromkeys(primitives, fn))
        return fn

    return register


@dataclass(frozen=True)
class MaskedStep:
    """One equation, with its operands."""

    equation: Any
    operands: Sequence[Any]
    run: MaskedRun

    @property
    def masks(self) -> Masks:
        return self.run.masks

    @property
    def sizes(self) -> PaddedSizes:
        return self.run.masks.sizes

    @property
    def params(self) -> dict[str, Any]:
        return self.equation.params

    def shape(self, result: int = 0) -> tuple[Any, ...]:
        """The shape of a result, with open sizes."""
        return self.equation.outvars[result].aval.shape

    def in_shape(self, operand: int) -> tuple[Any, ...]:
        return self.equation.invars[operand].aval.shape

    def array(self, operand: int) -> Any:
        value = self.operands[operand]
        return value.array if isinstance(value, Masked) else value

    def bind(self, arrays: Sequence[Any], **changed: Any) -> list[Any]:
        """The primitive's results for these arrays, in the larger sizes."""
        params = {k: self._larger(v) for k, v in {**self.params, **changed}.items()}
        return list(rebind(self.equation, arrays, **params))

    def _larger(self, value: Any) -> Any:
        if is_symbolic_dim(value):
            return self.sizes.larger(value)
        if type(value) is tuple:
            return tuple(map(self._larger, value))
        return value

    def of(self, array: Any, axes: Sequence[Any] | None = None, result: int = 0) -> Any:
        return self.masks.of(array, self.shape(result), axes)

    def only(self, *operands: int) -> None:
        """Requires that no other operand has open sizes."""
        if any(isinstance(v, Masked) for i, v in enumerate(self.operands) if i not in operands):
            raise NotMasked("has an operand with an open size that is not known")


class MaskedRun:
    """The interpreter of a program."""

    def __init__(self, sizes: PaddedSizes) -> None:
        self.masks = Masks(sizes)
        self._open: dict[int, bool] = {}

    def __call__(self, closed: core.ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
        jaxpr = closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else env[atom]

        for equation in jaxpr.eqns:
            try:
                results = self._results(equation, list(map(read, equation.invars)))
            except NotMasked as error:
                error.scopes = f"{equation.source_info.name_stack}/{error.scopes}"
                raise
            env.update(zip(equation.outvars, results, strict=True))
        return list(map(read, jaxpr.outvars))

    def _results(self, equation: Any, operands: list[Any]) -> Sequence[Any]:
        if not self.has_open_sizes(equation):
            return rebind(equation, operands)
        name = equation.primitive.name
        how = MASKED_RULES.get(name)
        if how is None:
            raise NotMasked(f"is not known for sizes that are rounded (XLA's {name})")
        try:
            return how(MaskedStep(equation, operands, self))
        except (KeyError, IndexError, ValueError, TypeError) as error:  # an unknown form of the operation
            raise NotMasked(f"is not known for sizes that are rounded (XLA's {name}: {error!r})") from error

    def has_open_sizes(self, equation: Any) -> bool:
        """True if an open size is in an equation, or in the programs that it calls."""
        key = id(equation)
        if key not in self._open:
            self._open[key] = (
                any(has_open_size(getattr(v.aval, "shape", ())) for v in (*equation.invars, *equation.outvars))
                or any(map(_mentions, equation.params.values()))
                or any(map(self.has_open_sizes, (e for p in programs_of(equation) for e in p.eqns)))
            )
        return self._open[key]


def _mentions(value: Any) -> bool:
    return is_symbolic_dim(value) or (type(value) is tuple and any(map(_mentions, value)))
