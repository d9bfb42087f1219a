"""JAX's 64-bit types: on for the length of a block, in its thread alone."""

from __future__ import annotations

from typing import Any

import jax

try:  # private, and half the cost of the public context manager
    from jax._src.config import enable_x64 as _state

    _swap, _restore = _state.swap_local, _state.set_local
    if _state._update_thread_local_hook is not None:  # it would have to be told
        raise AttributeError

    class Enabled:
        """`with Enabled():` as `with jax.enable_x64(True):`."""

        __slots__ = ("_before",)

        def __enter__(self) -> None:
            self._before = _swap(True)

        def __exit__(self, *_exception: Any) -> None:
            _restore(self._before)

except (ImportError, AttributeError):  # pragma: no cover  # a jax that has moved them

    def Enabled() -> Any:  # type: ignore[no-redef]  # the same by public means
        return jax.enable_x64(True)
