"""The names of modules over the operations that JAX traces, in steps and torch functions, for profiles and messages.

Which module runs is read from Python's stack, for each operator while JAX traces: hooks on modules would be seen by the
program. A backward pass has no module on the stack; autograd numbers its nodes, which tell where each was recorded.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import jax
import torch

from ..arrays.observers import Observer
from ..program_lines import modules_of_stack, name_of_module


class ModuleScopes(Observer):
    """Has operators run in scopes with the paths of their modules, as "model.layers.3" or "backward/model.head"."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.nn.Module, str]] = {}  # by id, which a module has while it is kept
        self._seen = torch._C._autograd._get_sequence_nr()
        self._starts: list[int] = []
        self._paths: list[str] = []

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        path = self._scope()
        return functools.partial(_within, path, handler) if path else handler

    def _scope(self) -> str:
        path, node = self._path(), torch._C._current_autograd_node()
        if node is not None and not path:
            number = node._sequence_nr()
            at = bisect_right(self._starts, number) - 1 if number < self._seen else -1
            return f"backward/{self._paths[at]}" if at >= 0 and self._paths[at] else "backward"
        if not self._paths or self._paths[-1] != path:
            self._starts.append(self._seen)  # nodes since the last operator are of this one
            self._paths.append(path)
        self._seen = torch._C._autograd._get_sequence_nr()
        return path

    def _path(self) -> str:
        """The path of the innermost module that runs; empty if there is none."""
        modules, outside = modules_of_stack()
        if not modules:
            return ""
        root = modules[-1]
        if id(root) not in self._known:
            prefix = name_of_module(root, outside)
            for name, module in root.named_modules():
                self._known.setdefault(id(module), (module, ".".join(filter(None, (prefix, name)))))
        return next(self._known[id(module)][1] for module in modules if id(module) in self._known)


def _within(path: str, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with jax.named_scope(path):
        return handler(*args, **kwargs)
