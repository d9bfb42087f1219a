"""The combinations that jaten refuses, with which error, in which words, and why; and those in which torch is wrong.

A row holds for the cases whose way, surrounding and program match its patterns. A case that a row names must fail so;
one that passes fails the tests until it is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """An error that is expected.

    Attributes:
        ways: a pattern of ways; so with surroundings and programs.
        error: the name of its class, or the result that differs.
        words: a part of its message.
        reason: why it is no defect.
        status: what the record says.
    """

    ways: str
    surroundings: str
    programs: str
    error: str
    words: str
    reason: str
    status: str = "refused"

    def matches(self, failure: str) -> bool:
        """True if a failure is this error."""
        return failure.startswith(f"{self.error}: ") and self.words in failure


_NOT_CLOSE = ("value 0", "not close")
_UNRAISED = "nothing is raised, where torch raises RuntimeError"
_WRONG = {
    "grad(grad(grad))": ("normalized", "batch_normalized", "scanned"),
    "grad(jvp)": ("normalized", "batch_normalized", "solved"),
}
"""Derivatives of ATen's formulas that are not those of the functions, by surrounding."""

REFUSALS = (
    *(
        Refusal(
            *("direct*", surrounding, program, *_NOT_CLOSE),
            "ATen's derivative of its gradient is wrong, or NaN: that of the function's formula is jaten's",
            status="not torch's",
        )
        for surrounding, programs in _WRONG.items()
        for program in programs
    ),
    *(
        Refusal(
            *(ways, surrounding, "attention", _UNRAISED, "is not implemented"),
            "ATen's fused kernel for the CPU has no second derivative: the device's attention has all",
            status="not torch's",
        )
        for ways, surrounding in (
            ("device", "double backward"),
            ("*device", "grad(grad)"),
            ("*device", "grad(grad(grad))"),
            ("*device", "grad, then backward"),
        )
    ),
    *(
        Refusal(
            *(ways, "in-place around, backward", program, _UNRAISED, "modified by an inplace operation"),
            "ATen's kernel saves the result, which is written to: jaten's computes it anew, and the gradient is right",
            status="not torch's",
        )
        for ways, program in (("direct*", "perceptron"), ("device", "attention"))
    ),
    *(
        Refusal(
            *(ways, "strided inputs", program, _UNRAISED, "view size is not compatible"),
            "results of operators are row-major on the device, and of recorded clones: any view of them can be taken",
            status="not torch's",
        )
        for ways, program in (
            ("direct*", "written_inside"),
            ("compiled device", "written_inside"),
            ("*device", "base_and_view"),
        )
    ),
    Refusal(
        *("device", "functionalize", "branched", "AssertionError", "Expected SubclassSymbolicContext"),
        "torch captures the branches, and its capture takes no tensors of a subclass inside functionalize",
        status="not torch's",
    ),
    Refusal(
        *("compiled device", "grad(vmap)", "branched", "nothing is raised, where torch raises AssertionError"),
        *("Expected FakeTensor", "torch's own capture of a branch under both transforms fails for tensors of the CPU"),
        status="not torch's",
    ),
)


def refusal_of(case: Any, program: Any) -> Refusal | None:
    """The row of a case, if there is one."""
    for row in REFUSALS:
        patterns = (row.ways, case.way), (row.surroundings, case.surrounding), (row.programs, program.name)
        if all(fnmatchcase(name, pattern) for pattern, name in patterns):
            return row
    return None
