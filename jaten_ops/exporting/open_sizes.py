"""Sizes that torch.export leaves open, as symbolic dimensions of `jax.export`."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.export
import torch

from ..backend.layout import evaluated_size

_LARGEST = 2**31  # torch's bound of a size that has none is far above


class OpenSizes:
    """The open sizes of a program.

    Args:
        program: the exported program.
        names: for each symbol the name that the user has given it.
    """

    def __init__(self, program: torch.export.ExportedProgram, names: Mapping[Any, str]) -> None:
        ranges = program.range_constraints
        self._names = {symbol: names.get(symbol, str(symbol)) for symbol in ranges}
        constraints = []
        for symbol, bounds in ranges.items():
            constraints.append(f"{self._names[symbol]} >= {max(int(bounds.lower), 1)}")
            if bounds.upper.is_number and bounds.upper < _LARGEST:
                constraints.append(f"{self._names[symbol]} <= {int(bounds.upper)}")
        made = jax.export.symbolic_shape(", ".join(self._names.values()), constraints=constraints) if ranges else ()
        self._values = dict(zip(ranges, made, strict=True))

    def value(self, size: Any) -> Any:
        """A size of the program: an int, or a symbolic dimension of JAX's.

        Raises:
            UnsupportedInputError: an expression that JAX's dimensions do not have.
        """
        return size if isinstance(size, int) else evaluated_size(size.node.expr, self._values)


def names_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any) -> list[str | None]:
    """The user's names of open sizes: for each tensor of a call, in order, one for each dimension, None for others."""
    found: list[str | None] = []

    def visit(value: Any, wanted: Any) -> None:
        if isinstance(value, torch.Tensor):
            sizes = wanted if isinstance(wanted, Mapping) else dict(enumerate(wanted or ()))
            found.extend(_name(sizes.get(d)) for d in range(value.dim()))
        elif isinstance(value, Mapping):
            for key, each in value.items():
                visit(each, wanted.get(key) if isinstance(wanted, Mapping) else None)
        elif isinstance(value, tuple | list):
            parts = wanted if isinstance(wanted, tuple | list) and len(wanted) == len(value) else [None] * len(value)
            for each, part in zip(value, parts, strict=True):
                visit(each, part)

    if isinstance(dynamic, Mapping):
        bound = inspect.signature(fn).bind(*args, **kwargs).arguments
        visit(dict(bound), dynamic)
    else:
        visit([*args, *kwargs.values()], [*(dynamic or ()), *[None] * (len(args) + len(kwargs) - len(dynamic or ()))])
    return found


def _name(dim: Any) -> str | None:
    name = getattr(dim, "__name__", None)
    usable = name is not None and re.fullmatch(r"[A-Za-z_]\w*", name) and not keyword.iskeyword(name)
    return name if usable and name not in ("mod", "floordiv", "max", "min") else None
