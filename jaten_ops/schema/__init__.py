"""The operators of ATen as frozen data, read once from the generated files of this folder."""

from importlib.resources import files

from .spec import KEEPS_MEMORY_ORDER, READS_MEMORY, STORAGE_ARGUMENTS, TOLD_BY_OUT, Argument, OpSpec

__all__ = [
    "COMPOSITE",
    "FUNCTIONAL",
    "KEEPS_MEMORY_ORDER",
    "READS_MEMORY",
    "STORAGE_ARGUMENTS",
    "TOLD_BY_OUT",
    "VARIANTS",
    "Argument",
    "OpSpec",
]


def _read(name: str) -> dict[str, OpSpec]:
    lines = files(__name__).joinpath(name).read_text(encoding="utf-8").splitlines()
    specs = (OpSpec.from_line(line) for line in lines if line and not line.startswith("#"))
    return {spec.overload: spec for spec in specs}


FUNCTIONAL: dict[str, OpSpec] = _read("functional.ops")
"""Every functional overload by name: those that have, or may be given, a kernel."""

VARIANTS: dict[str, OpSpec] = _read("variants.ops")
"""Every in-place and out= overload by name, each naming the functional overload it is derived from."""

COMPOSITE: dict[str, OpSpec] = _read("composite.ops")
"""Every other overload that ATen composes from these, with ATen's schema."""
