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


REFUSALS = (
    Refusal(
        *("direct", "grad(grad(grad))", "batch_normalized", "value 0", "not close"),
        "ATen's third derivative of a batch normalization is wrong: that of its formula is jaten's",
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
