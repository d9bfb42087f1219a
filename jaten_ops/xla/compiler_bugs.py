"""The table of bugs of XLA's CPU compiler in released versions of jaxlib, with the options that avoid each.

docs/versions.md is made of it, too. Only what is compiled by jaten gets the options: a function of `as_jax` that the
user hands to `jax.jit` is compiled with the user's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import jaxlib.version


class Bug(NamedTuple):
    """A bug of some versions of jaxlib.

    Attributes:
        first, last: the versions that have it; those between have it, too.
        program: what a program that is hit by it has in its text, in StableHLO.
        options: the compiler options that avoid it.
        what: what goes wrong, and with what.
        test: the test that fails without the options, as "file::function" below tests/.
    """

    first: str
    last: str
    program: re.Pattern[str]
    options: dict[str, str | bool]
    what: str
    test: str


BUGS = (
    Bug(
        "0.11.2",
        "0.12.0.1",
        re.compile(r"bf16>"),
        {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"},
        "Sums and maxima of bfloat16 in YNNPACK (fusion type `REDUCE`, on by default) read and write memory that is not"
        " theirs after two products or convolutions with `relu`: infinities, NaN, or the end of the process.",
        "xla/test_compiler_bugs.py::test_reductions_of_bfloat16_after_products",
    ),
    Bug(
        "0.10.0",
        "0.10.0",
        re.compile(r"f(32|16)>\) -> tensor<[^>]*f64>"),
        {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"},
        "YNNPACK calls itself without end when it is to convert a sum, maximum or minimum of float32 or bfloat16 to"
        " float64 (fusion type `REDUCE`, on by default): the end of the process.",
        "xla/test_compiler_bugs.py::test_sums_that_are_converted_to_float64",
    ),
)
"""All known ones. A row stays while a supported version has the bug."""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0].partition("dev")[0]))


def options_around(text: str, version: str = jaxlib.version.__version__) -> dict[str, str | bool]:
    """The options that avoid the bugs which a version of jaxlib has for a program.

    Args:
        text: the program in StableHLO.
        version: the version of jaxlib; the installed one by default.
    """
    found: dict[str, str | bool] = {}
    for bug in BUGS:
        if _numbers(bug.first) <= _numbers(version) <= _numbers(bug.last) and bug.program.search(text):
            found |= bug.options
    return found
