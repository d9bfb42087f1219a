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


_UNRAISED = "nothing is raised, where torch raises RuntimeError"


def _not_torchs(reason: str, error: str, words: str, *places: tuple[str, str, str]) -> list[Refusal]:
    """Rows of one reason for which torch is wrong or has less, by ways, surroundings and programs."""
    return [Refusal(*place, error, words, reason, "not torch's") for place in places]


REFUSALS = (
    *_not_torchs(
        "ATen's derivative of its gradient is wrong, or NaN: that of the function's formula is jaten's",
        *("value 0", "not close"),
        *(("direct*", "grad(grad(grad))", program) for program in ("normalized", "batch_normalized", "scanned")),
        *(("direct*", "grad(jvp)", program) for program in ("normalized", "batch_normalized", "solved")),
    ),
    *_not_torchs(
        "ATen's fused kernel for the CPU has no second derivative: the device's attention has all",
        *(_UNRAISED, "is not implemented"),
        ("device", "double backward", "attention"),
        *(
            (way, surrounding, "attention")
            for way in ("device", "compiled device")
            for surrounding in ("grad(grad)", "grad(grad(grad))", "grad, then backward")
        ),
    ),
    *_not_torchs(
        "ATen's kernel saves the result, which is written to: jaten's computes it anew, and the gradient is right",
        *(_UNRAISED, "modified by an inplace operation"),
        ("direct*", "in-place around, backward", "perceptron"),
        ("device", "in-place around, backward", "attention"),
    ),
    *_not_torchs(
        "results of operators are row-major on the device, and of recorded clones: any view of them can be taken",
        *(_UNRAISED, "view size is not compatible"),
        ("direct*", "strided inputs", "written_inside"),
        ("compiled device", "strided inputs", "written_inside"),
        ("*device", "strided inputs", "base_and_view"),
    ),
    *_not_torchs(
        "torch captures the branches, and its capture takes no tensors of a subclass inside functionalize",
        *("AssertionError", "Expected SubclassSymbolicContext"),
        ("device", "functionalize", "branched"),
    ),
    *_not_torchs(
        "torch's own capture of a branch under both transforms fails for tensors of the CPU",
        *("nothing is raised, where torch raises AssertionError", "Expected FakeTensor"),
        ("compiled device", "grad(vmap)", "branched"),
    ),
    *_not_torchs(
        "torch's capture of what a checkpoint calls takes no literals under inference mode, with any backend",
        *("BackendCompilerFailed", "Inference tensors do not track version counter"),
        ("compiled*", "checkpoint", "inference_inside"),
    ),
)


def refusal_of(case: Any, program: Any) -> Refusal | None:
    """The row of a case, if there is one."""
    for row in REFUSALS:
        patterns = (row.ways, case.way), (row.surroundings, case.surrounding), (row.programs, program.name)
        if all(fnmatchcase(name, pattern) for pattern, name in patterns):
            return row
    return None
