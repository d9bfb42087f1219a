"""The place in the user's program at which an operator runs, read from Python's stack: a line, and modules."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType

import torch

_CALL = torch.nn.Module._call_impl.__code__
_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = ("torch", "jax", "jaten_ops", "")  # generated code has no name


def modules_of_stack() -> tuple[list[torch.nn.Module], FrameType | None]:
    """The modules that run, the innermost first, and the frame that called the outermost.

    In a backward pass they are those that run in it, such as modules that are computed again.
    """
    modules: list[torch.nn.Module] = []
    outside = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _BACKWARD:
        if frame.f_code is _CALL:
            modules.append(frame.f_locals["self"])
            outside = frame.f_back
        frame = frame.f_back
    return modules, outside


def name_of_module(module: torch.nn.Module, frame: FrameType | None) -> str:
    """The name by which a program calls a module; empty where torch calls it, as for the module of `as_jax`.

    Args:
        module: the module.
        frame: the frame that calls it.
    """
    while frame is not None and frame.f_code.co_name in ("_wrapped_call_impl", "_call_impl"):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_TORCH):
        return ""
    owner = frame.f_locals.get("self")
    members = {**getattr(owner, "__dict__", {}), **getattr(owner, "_modules", {})}
    for scope in (frame.f_locals, members, frame.f_globals):
        for name, value in scope.items():
            if value is module and name != "self":
                return name
    return type(module).__name__


def place_of_call() -> str:
    """Words for the module that runs and the line of the user's program; empty if there is none.

    As " in the module layers.3.attn (file.py:12: y = f(x))".
    """
    modules, outside = modules_of_stack()
    path = ""
    if modules:
        root, inner = modules[-1], modules[0]
        names = {id(module): name for name, module in root.named_modules()}
        path = ".".join(filter(None, (name_of_module(root, outside), names.get(id(inner), ""))))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return (f" in the module {path}" if path else "") + f" ({file}:{line}{f': {text}' if text else ''})"
