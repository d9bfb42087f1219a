"""JAX's 64-bit types: on for the length of a block, in its thread alone; and what the program has set outside."""

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
    if _state._update_thread_local_hook is not None:  # it would have to be told
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
    """For the length of a block `outside` answers this: for blocks in which kernels of users are traced."""
    token = _outside.set(wide)
    try:
        yield
    finally:
        _outside.reset(token)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """64-bit types are on, and kernels of users that are traced know what is set outside."""
    with told(outside()), Enabled():
        yield


try:  # private; nothing public lets 64-bit arrays be while the default types have 32 bits, but for a whole process
    from jax._src.config import ExplicitX64Mode, explicit_x64_dtypes

    _explicit: Callable[[], Any] | None = functools.partial(explicit_x64_dtypes, ExplicitX64Mode.ALLOW)
except ImportError:  # pragma: no cover  # a jax that has moved them: the defaults of users' kernels have 64 bits then
    _explicit = None

CAN_NARROW = _explicit is not None
"""True if JAX here leaves 64-bit arrays as they are while default types have 32 bits."""


@contextlib.contextmanager
def narrow() -> Iterator[None]:
    """JAX's default types have 32 bits for the length of a block, and arrays of 64 bits stay what they are."""
    assert _explicit is not None
    with jax.enable_x64(False), _explicit():
        yield
