"""The state of torch's capture: functions that it must not trace into, and calls that no graph records."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import _disable_current_modes

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def opaque(fn: F) -> F:
    """Marks a function's code, and everything that it calls, to be run and never traced by Dynamo.

    Between the graphs of a compiled program Dynamo watches every Python frame, including those of kernels, and would
    compile them. `torch.compiler.disable` has the same effect, but costs a microsecond a call and imports Dynamo; this
    is private to torch and costs nothing.
    """
    return _marked(fn, eval_frame._FrameAction.SKIP)


def uncaptured(fn: F) -> F:
    """Marks a function that Dynamo leaves out of its graphs, and calls between them: it is `opaque`.

    `torch.compiler.disable` without what that costs; see there.
    """
    setattr(fn, "_torchdynamo_disable", True)  # noqa: B010  # mypy knows no such attribute
    return opaque(fn)


def unwatched(fn: F) -> F:
    """`opaque` for a function's own code only: it may call functions of the user."""
    return _marked(fn, eval_frame._FrameAction.DEFAULT)


def opaque_methods(cls: C) -> C:
    """Marks a class's own methods and properties as `opaque`: programs call them between their graphs."""
    for member in vars(cls).values():
        parts = (member, getattr(member, "__func__", None), *(getattr(member, name, None) for name in _ACCESSORS))
        for fn in parts:
            if isinstance(fn, types.FunctionType):
                opaque(fn)
    return cls


_ACCESSORS = ("fget", "fset", "fdel")


def _marked(fn: F, called: Any) -> F:
    strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, called)
    eval_frame.set_code_exec_strategy(fn.__code__, strategy)
    return fn


_KEYS = torch._C._TorchDispatchModeKey
_TRACERS = (_KEYS.FAKE, _KEYS.PROXY, _KEYS.FUNCTIONAL)


def is_traced_now() -> bool:
    """True in a mode by which torch captures a program. Private: there is no public function for it."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)


def is_faked_now() -> bool:
    """True in a mode in which tensors are fake ones."""
    return torch._C._get_dispatch_mode(_KEYS.FAKE) is not None


def out_of_sight() -> contextlib.AbstractContextManager[Any]:
    """A context without dispatch modes. Private: there is no public way to switch them off."""
    return _disable_current_modes()


def _set_of(*keys: torch._C.DispatchKey) -> torch._C.DispatchKeySet:
    return functools.reduce(torch._C.DispatchKeySet.__or__, map(torch._C.DispatchKeySet, keys))


_DISPATCH = torch._C.DispatchKey
# what torch adds, and leaves out, while it asks an operator for a fake result
_ADDED = _set_of(_DISPATCH.Functionalize, _DISPATCH.Meta, _DISPATCH.PythonDispatcher)
_LEFT_OUT = _set_of(_DISPATCH.Python, _DISPATCH.PythonTLSSnapshot)


def out_of_capture() -> Any:
    """A context for a kernel that calls torch itself, as functions of `as_jax` do, while torch asks for a fake result.

    Private: torch has no public way to set these keys.
    """
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(included - _ADDED, excluded - _LEFT_OUT)


class _ByThread:
    """A stand-in for a bool, and used as one: another in threads that trace a program than in all others.

    Args:
        inside: what it is in those threads.

    Attributes:
        threads: the threads that trace.
        lock: held while they change.
    """

    def __init__(self, inside: bool) -> None:
        self._inside = inside
        self.threads: set[int] = set()
        self.lock = threading.Lock()

    def enter(self, flag: bool) -> None:
        """Notes that this thread traces, or that it does not any more; the lock is held."""
        (self.threads.add if flag else self.threads.discard)(threading.get_ident())

    def __bool__(self) -> bool:
        return (threading.get_ident() in self.threads) == self._inside

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __hash__(self) -> int:
        return hash(bool(self))

    def __repr__(self) -> str:
        return repr(bool(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, (not self._inside,)  # a pickle is of no thread

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __xor__(self, other: Any) -> Any:
        return bool(self) ^ other

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__


_COMPILING: Any = _ByThread(True)
_VALIDATING: Any = _ByThread(False)


def set_compiling(flag: bool) -> None:
    """Makes `torch.compiler.is_compiling()` true in this thread only, or resets it.

    torch's flag, which is private, is global. Dynamo in another thread restores the value that it found, even if it has
    changed since: then that is an object which is false.
    """
    with _COMPILING.lock:
        _COMPILING.enter(flag)
        if _COMPILING.threads and torch.compiler._is_compiling_flag is False:
            torch.compiler._is_compiling_flag = _COMPILING
        elif not _COMPILING.threads and torch.compiler._is_compiling_flag is _COMPILING:
            torch.compiler._is_compiling_flag = False


@contextlib.contextmanager
def unvalidated() -> Iterator[None]:
    """A context in which distributions do not validate arguments by default, in this thread only: that reads values.

    torch's default is global. Dynamo sets it to False for good.
    """
    if not _VALIDATING:
        yield
        return
    default = torch.distributions.Distribution
    with _VALIDATING.lock:
        _VALIDATING.enter(True)
        if default._validate_args is True:
            default.set_default_validate_args(_VALIDATING)
    try:
        yield
    finally:
        with _VALIDATING.lock:
            _VALIDATING.enter(False)
            if not _VALIDATING.threads and default._validate_args is _VALIDATING:
                default.set_default_validate_args(True)


class _Eager:
    """Blocks in which functions that torch would compile run as they are written.

    Attributes:
        lock: held while the others change.
        count: the number of blocks in all threads: torch's stance is global.
        stances: contexts that restore the stance.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.stances: list[Any] = []


_EAGER = _Eager()


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """A context in which compiled functions run eagerly, since executables take no traced arrays."""
    with _EAGER.lock:
        _EAGER.count += 1
        if not _EAGER.stances and "torch._dynamo" in sys.modules:
            with _unwatched():
                _EAGER.stances.append(torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _EAGER.lock:
            _EAGER.count -= 1
            if not _EAGER.count and _EAGER.stances:
                with _unwatched():
                    _EAGER.stances.pop().__exit__(None, None, None)


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """A context in which Dynamo captures functions, even within `uncompiled`, as `torch.cond` requires."""
    if not _EAGER.stances:
        yield
        return
    with _unwatched():
        stance = torch.compiler.set_stance("default")
    try:
        yield
    finally:
        with _unwatched():
            stance.__exit__(None, None, None)


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """A context in which Dynamo watches no frames of this thread: torch cannot set a stance where it does."""
    watching = eval_frame.set_eval_frame(None)
    try:
        yield
    finally:
        eval_frame.set_eval_frame(watching)


is_recording: Callable[[], bool] = torch._C._is_tracing
"""True while `torch.jit.trace` records a program. Private: the public function takes ten times as long."""


_RECORDER = torch._C._dispatch_key_parse("Tracer")


def unrecorded(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function unseen by `torch.jit.trace`, which would turn sizes of tensors into tensors."""
    state = torch._C._get_tracing_state()
    with _recorder_on():  # the only way to set the state
        torch._C._set_tracing_state(None)  # type: ignore[attr-defined]  # torch's stubs forget it
    try:
        return fn(*args, **kwargs)
    finally:
        with _recorder_on():
            torch._C._set_tracing_state(state)  # type: ignore[attr-defined]  # as above


def recorded(op: torch._ops.OpOverload, *args: Any) -> Any:
    """Calls an operator so that `torch.jit.trace` records it, within another that it has not recorded."""
    with _recorder_on():
        return op(*args)


@contextlib.contextmanager
def _recorder_on() -> Iterator[None]:
    """A context in which operators are recorded, as they are not within another operator."""
    was_off = torch._C._dispatch_tls_is_dispatch_key_excluded(_RECORDER)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_RECORDER, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_RECORDER, was_off)
