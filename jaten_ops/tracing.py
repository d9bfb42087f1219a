"""What Dynamo must not look into: jaten's own Python, which runs below the operators that Dynamo records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

F = TypeVar("F", bound=Callable[..., Any])


def opaque(fn: F) -> F:
    """Marks a function's code, and all that it calls, to be run and never traced by Dynamo.

    Between the graphs of a compiled program Dynamo watches every Python frame, those of a kernel among them, and would
    compile them. `torch.compiler.disable` does the same as this at the cost of a microsecond a call and of importing
    Dynamo; this is private to torch and costs nothing.
    """
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(fn.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return fn
