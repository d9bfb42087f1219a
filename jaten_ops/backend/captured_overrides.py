"""Overrides in programs that are compiled: calls on the CPU and on CUDA are taken while AOTAutograd traces them.

What torch does in Python when an operator is traced stands in private tables of the operator, to which the redirects
are added for the length of a capture. Programs are guarded by Dynamo: with other overrides than those that were active
when it was compiled, a function is compiled anew. Before there is an override no program has such a guard; those that
are compiled until then are forgotten when the first is made.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch._C import DispatchKey
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.guards import install_guard
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import Guard, TracingContext
from torch._ops import resolve_key

from jaten_ops.dispatch import redirects
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.registry import active_overrides

_KEYS = (DispatchKey.AutogradCPU, DispatchKey.AutogradCUDA, DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def overridden(gm: torch.fx.GraphModule, rules: Sequence[Any]) -> Iterator[None]:
    """A context in which active overrides, and these, take calls of what is traced. One capture at a time.

    Args:
        gm: the program, which may enter others.
        rules: overrides of this program alone.
    """
    everything: tuple[Any, ...] = (*active_overrides.active(), *rules, *entered_in(gm))
    targets = {rule.target: rule.spec for rule in everything}
    if not targets:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(active_overrides.capturing(rules))
        for target, spec in targets.items():
            redirects.need(spec)
            stack.callback(redirects.release, spec)
            for op, in_place in redirects.operators(spec):
                stack.enter_context(_traced(target, op, in_place))
        yield


@contextlib.contextmanager
def _traced(target: str, op: torch._ops.OpOverload, in_place: bool) -> Iterator[None]:
    before = dict(op.py_kernels)
    runs = {key: run for key in _KEYS if (run := _before(op, key)) is not None}
    for key, run in runs.items():
        op.py_kernels[key] = _captured(target, run, in_place)
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        for key in runs:
            op.py_kernels.pop(key, None)
        op.py_kernels.update(before)
        op._dispatch_cache.clear()


def _before(op: torch._ops.OpOverload, key: DispatchKey) -> Callable[..., Any] | None:
    """The function that torch runs for an operator at a key while it traces; None if there is nothing."""
    if key is DispatchKey.CompositeImplicitAutograd and not op.has_kernel_for_dispatch_key(key):
        return None
    found = resolve_key(op, key)
    return op.py_kernels.get(found) or functools.partial(op._op_dk, found)


def _captured(target: str, before: Callable[..., Any], in_place: bool) -> Callable[..., Any]:
    redirected = redirects.redirected(target, before, in_place)

    def call(*args: Any, **kwargs: Any) -> Any:
        # another thread may trace for another backend
        return (redirected if active_overrides.is_capturing() else before)(*args, **kwargs)

    return call


# Functions that Dynamo has compiled

_COMPILED: dict[int, weakref.ref[CodeType]] = {}  # code objects that are equal may belong to different functions


def guard() -> None:
    """Has Dynamo compile the program that it compiles now anew once other overrides are active."""
    if TracingContext.try_get() is None:
        return
    if active_overrides.were_made():
        known = active_overrides.active()
        install_guard(Guard(GlobalStateSource(), functools.partial(_add, known)))
        return
    try:
        code = InstructionTranslator.current_tx().output.root_tx.f_code
    except AttributeError:  # Dynamo does not trace: the program is somebody else's
        return
    key = id(code)
    _COMPILED[key] = weakref.ref(code, lambda _: _COMPILED.pop(key, None))


def _add(known: Any, builder: Any, guard: Any) -> None:
    def is_current(_: Any) -> bool:
        return active_overrides.active() == known

    builder.guard_manager.root.add_lambda_guard(is_current, ["other overrides are active"], guard.user_stack)


def _forget_all() -> None:
    for found in list(_COMPILED.values()):
        code = found()
        if code is not None:
            reset_code(code)
    _COMPILED.clear()


active_overrides.AT_FIRST.append(_forget_all)


# Blocks inside of programs

for _fn in (active_overrides.entered_in_graph, active_overrides.left_in_graph):
    torch.compiler.allow_in_graph(_fn)


def entered_in(gm: torch.fx.GraphModule) -> list[Any]:
    """The overrides for which a program has a `with` block."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = [n for g in graphs for n in g.find_nodes(op="call_function", target=active_overrides.entered_in_graph)]
    found = [active_overrides.by_number(n.args[0]) for n in nodes]
    refuse_functions(found, "a with block in a compiled function")
    return found


def refuse_functions(rules: Sequence[Any], where: str) -> None:
    """Raises UnsupportedInputError for overrides of Python functions, which Dynamo has traced by now."""
    for rule in rules:
        if rule.is_of_function:
            raise UnsupportedInputError(
                where, f"{rule!r}, of a Python function", "one of an operator; or a with block around the call of the"
                " compiled function, or install()",
            )  # fmt: skip
