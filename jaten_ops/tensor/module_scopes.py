"""The names of modules over the operations that JAX traces, in steps and torch functions, for profiles and messages.

Which module runs is read from Python's stack, for each operator while JAX traces: hooks on modules would be seen by the
program. A backward pass has no module on the stack; autograd numbers its nodes, which tell where each was recorded.
"""

from __future__ import annotations

import functools
import sys
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import torch

from ..arrays.observers import Observer

_CALL = torch.nn.Module._call_impl.__code__
_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
_TORCH = str(Path(torch.__file__).parent)


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
        modules: list[torch.nn.Module] = []
        outside = None
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not _BACKWARD:
            if frame.f_code is _CALL:
                modules.append(frame.f_locals["self"])
                outside = frame.f_back
            frame = frame.f_back
        if not modules:
            return ""
        root = modules[-1]
        if id(root) not in self._known:
            prefix = _variable(root, outside)
            for name, module in root.named_modules():
                self._known.setdefault(id(module), (module, ".".join(filter(None, (prefix, name)))))
        return next(self._known[id(module)][1] for module in modules if id(module) in self._known)


def _variable(root: torch.nn.Module, frame: FrameType | None) -> str:
    """The name by which a program calls a module; empty where torch calls it, as for the module of `as_jax`."""
    while frame is not None and frame.f_code.co_name in ("_wrapped_call_impl", "_call_impl"):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_TORCH):
        return ""
    owner = frame.f_locals.get("self")
    members = {**getattr(owner, "__dict__", {}), **getattr(owner, "_modules", {})}
    for scope in (frame.f_locals, members, frame.f_globals):
        for name, value in scope.items():
            if value is root and name != "self":
                return name
    return type(root).__name__


def _within(path: str, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with jax.named_scope(path):
        return handler(*args, **kwargs)
