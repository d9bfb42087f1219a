"""JAX's 64-bit types: on for the length of a block, in its thread alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
