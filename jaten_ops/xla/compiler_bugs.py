"""The table of bugs of XLA's compilers in released versions of jaxlib, with the options that avoid each.

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
        platform: JAX's name of the platform that has it.
        first, last: the versions that have it; those between have it, too.
        program: what a program that is hit by it has in its text, in StableHLO.
        options: the compiler options that avoid it.
        what: what goes wrong, and with what.
        test: the test that fails without the options, as "file::function" below tests/.
    """

    platform: str
    first: str
    last: str
    program: re.Pattern[str]
    options: dict[str, str | bool]
    what: str
    test: str


BUGS = (
    Bug(
        "cpu",
        "0.11.2",
        "0.12.0.1",
        re.compile(r"bf16>"),
        {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"},
        "Sums and maxima of bfloat16 in YNNPACK (fusion type `REDUCE`, on by default) read and write memory that is not"
        " theirs after two products or convolutions with `relu`: infinities, NaN, or the end of the process.",
        "xla/test_compiler_bugs.py::test_reductions_of_bfloat16_after_products",
    ),
    Bug(
        "cpu",
        "0.10.0",
        "0.10.0",
        re.compile(r"f(32|16)>\) -> tensor<[^>]*f64>"),
        {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"},
        "YNNPACK calls itself without end when it is to convert a sum, maximum or minimum of float32 or bfloat16 to"
        " float64 (fusion type `REDUCE`, on by default): the end of the process.",
        "xla/test_compiler_bugs.py::test_sums_that_are_converted_to_float64",
    ),
    Bug(
        "gpu",
        "0.10.0",
        "0.12.0.1",
        # a slice with steps, in StableHLO and in its generic form, or its transpose, which pads between elements
        re.compile(r"\d:\d+:\d+[,\]]|strides = array<i64: [^>]*(?:[2-9]|1\d)|interior = \[[^\]]*[1-9]"),
        {"xla_gpu_enable_triton_gemm": False},
        "Triton's products of a slice with steps, such as `x[:, ::2].T @ y`, fail a check in"
        " `triton_tiling_propagation.cc` (openxla/xla#47381): the end of the process. Seen with 0.11.2; still open.",
        "xla/test_compiler_bugs.py::test_products_of_slices_with_steps",
    ),
)
"""All known ones. A row stays while a supported version has the bug."""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0].partition("dev")[0]))


def options_around(platform: str, text: str, version: str = jaxlib.version.__version__) -> dict[str, str | bool]:
    """The options that avoid the bugs which a version of jaxlib has for a program.

    Args:
        platform: the one that it is compiled for.
        text: the program in StableHLO.
        version: the version of jaxlib; the installed one by default.
    """
    found: dict[str, str | bool] = {}
    for bug in BUGS:
        is_there = bug.platform == platform and _numbers(bug.first) <= _numbers(version) <= _numbers(bug.last)
        if is_there and bug.program.search(text):
            found |= bug.options
    return found
