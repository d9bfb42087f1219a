"""The operators of the installed torch's ATen as frozen data, read once from the generated files of this folder."""

from collections.abc import Mapping
from importlib.resources import files

import torch

from . import releases
from .spec import KEEPS_MEMORY_ORDER, READS_MEMORY, STORAGE_ARGUMENTS, TOLD_BY_OUT, Argument, OpSpec

__all__ = [
    "COMPOSITE",
    "FIRST",
    "FUNCTIONAL",
    "KEEPS_MEMORY_ORDER",
    "READS_MEMORY",
    "RELEASE",
    "STORAGE_ARGUMENTS",
    "TOLD_BY_OUT",
    "VARIANTS",
    "Argument",
    "OpSpec",
]

_HISTORY = releases.history(files(__name__))
RELEASE = releases.release_of(torch.__version__)
"""The installed release of torch, for what ATen answers in another way from some release on."""
_INSTALLED = releases.tables_of(RELEASE, _HISTORY)


def _specs(rows: Mapping[str, str]) -> dict[str, OpSpec]:
    return {overload: OpSpec.from_line(row) for overload, row in rows.items()}


FUNCTIONAL: dict[str, OpSpec] = _specs(_INSTALLED["functional"])
"""Every functional overload by name: those that have, or may be given, a kernel."""

VARIANTS: dict[str, OpSpec] = _specs(_INSTALLED["variants"])
"""Every in-place and out= overload by name, each naming the functional overload it is derived from."""

COMPOSITE: dict[str, OpSpec] = _specs(_INSTALLED["composite"])
"""Every other overload that ATen composes from these, with ATen's schema."""


def _first() -> dict[str, OpSpec]:
    """The functional overloads of all releases, as the first of them has each."""
    rows: dict[str, str] = {}
    for tables in _HISTORY.values():
        rows = {**tables["functional"], **rows}
    installed = _INSTALLED["functional"]
    return {o: FUNCTIONAL[o] if installed.get(o) == row else OpSpec.from_line(row) for o, row in rows.items()}


FIRST: dict[str, OpSpec] = _first()
"""Every functional overload of a supported torch as the oldest that has it has it; kernels are named and written so."""
