"""A table of programs for a mesh of eight devices: each asserts what must hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._dynamo


class Programs(dict[str, Callable[[], None]]):
    """Programs by their names; as a decorator it adds a function."""

    def __call__(self, fn: Callable[[], None]) -> Callable[[], None]:
        self[fn.__name__] = fn
        return fn

    def run(self, name: str) -> None:
        """Runs a program, with nothing compiled, and a seed."""
        torch._dynamo.reset()
        torch.manual_seed(0)
        self[name]()
