"""JAX's 64-bit types: on within a block, in its thread only; and the program's own setting outside."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax

enter: Callable[[], Any]  # turns 64-bit types on
leave: Callable[[Any], None]  # takes what `enter` has returned


def _enter_context() -> Any:
    context = jax.enable_x64(True)
    context.__enter__()
    return context


def _leave_context(context: Any) -> None:
    context.__exit__(None, None, None)


try:  # private, and a fifth of the cost of the public context manager
    from jax._src.config import enable_x64 as _state

    _swap, _restore = _state.swap_local, _state.set_local
    if _state._update_thread_local_hook is not None:  # the hook would have to be called
        raise AttributeError

    enter, leave = functools.partial(_swap, True), _restore
except (ImportError, AttributeError):  # pragma: no cover  # a jax that has moved them
    enter, leave = _enter_context, _leave_context


class Enabled:
    """`with Enabled():` as `with jax.enable_x64(True):`."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = enter()

    def __exit__(self, *_exception: Any) -> None:
        leave(self._before)


_outside: ContextVar[bool | None] = ContextVar("jaten_x64_outside", default=None)


def outside() -> bool:
    """True if the program has 64-bit types on, also when called in a block in which jaten has them on (see `told`)."""
    known = _outside.get()
    return jax.config.jax_enable_x64 if known is None else known  # type: ignore[attr-defined]  # JAX makes it at run time


@contextlib.contextmanager
def told(wide: bool) -> Iterator[None]:
    """A context that sets the result of `outside`, for tracing kernels of users."""
    token = _outside.set(wide)
    try:
        yield
    finally:
        _outside.reset(token)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """A context with 64-bit types on, in which traced kernels of users know the program's own setting."""
    with told(outside()), Enabled():
        yield


try:  # private; the public way to keep 64-bit arrays with 32-bit default types is global
    from jax._src.config import ExplicitX64Mode, explicit_x64_dtypes

    _explicit: Callable[[], Any] | None = functools.partial(explicit_x64_dtypes, ExplicitX64Mode.ALLOW)
except ImportError:  # pragma: no cover  # a jax that has moved them: default types in users' kernels have 64 bits then
    _explicit = None

CAN_NARROW = _explicit is not None
"""True if JAX here leaves 64-bit arrays as they are while default types have 32 bits."""


@contextlib.contextmanager
def narrow_defaults() -> Iterator[None]:
    """A context in which JAX's default types have 32 bits, and 64-bit arrays stay as they are."""
    assert _explicit is not None
    with jax.enable_x64(False), _explicit():
        yield
