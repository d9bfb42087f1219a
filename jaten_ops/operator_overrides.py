"""`override`: another kernel or another gradient for an operator that exists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import registry
from .dispatch import redirects
from .errors import UnsupportedInputError
from .interop import as_jax
from .ops.override_rules import Gradient, OverrideRule
from .ops.override_targets import operator, target_of
from .registry import active_overrides
from .schema import OpSpec
from .xla.x64 import Enabled


class Override(OverrideRule):
    """A kernel or a gradient in place of an operator's own, as `override` makes it."""

    __module__ = "jaten_ops"

    def install(self) -> Override:
        """Makes it active everywhere, as the innermost of those that are installed."""
        if active_overrides.remove_installed(self):
            active_overrides.add_installed(self)
        else:
            redirects.need(self.spec)
            active_overrides.add_installed(self)
        return self

    def remove(self) -> None:
        """Ends what `install` has begun; nothing if it is not installed."""
        if active_overrides.remove_installed(self):
            redirects.release(self.spec)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._number = active_overrides.numbered(self)

    def __enter__(self) -> Override:
        if torch.compiler.is_dynamo_compiling():
            active_overrides.entered_in_graph(self._number)
            return self
        redirects.need(self.spec)
        active_overrides.enter([self])
        return self

    def __exit__(self, *_exception: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            active_overrides.left_in_graph(self._number)
            return
        active_overrides.leave(self)
        redirects.release(self.spec)

    def __repr__(self) -> str:
        what = [name for name in ("kernel", "gradient", "when") if getattr(self, name) is not None]
        return f"override({self.target!r}, {', '.join(f'{name}=...' for name in what)}) at {self.where}"


def override(
    target: str | torch._ops.OpOverload,
    *,
    kernel: Callable[..., Any] | None = None,
    gradient: Gradient | None = None,
    when: Callable[..., Any] | None = None,
    static: Iterable[str] = (),
    residuals: int = 0,
) -> Override:
    """TODO."""
    where = registry.caller()
    if kernel is None and gradient is None:
        raise UnsupportedInputError(f"override({target!r})", "neither a kernel nor a gradient", "one of them, or both")
    if residuals and (kernel is None or gradient is None):
        raise UnsupportedInputError(
            f"override({target!r})", f"residuals={residuals}", "0 without a kernel that returns them and a gradient"
        )
    spec = target_of(target, where)
    active_overrides.note_first()
    own = functools.partial(_own_kernel, spec)
    return Override(spec, kernel, gradient, when, frozenset(static), residuals, own, where)


def _own_kernel(spec: OpSpec) -> registry.Entry:
    """The kernel of an override without one: it computes what the target does."""
    entry = registry.KERNELS.get(spec.overload) if spec.namespace == "jaten" else None
    if entry is not None:
        fn = entry.fn

        @functools.wraps(fn)
        def own(*args: Any, **kwargs: Any) -> Any:
            with Enabled():
                return fn(*args, **kwargs)

        return registry.Entry(own, entry.where, entry.static, entry.eager)
    if spec.kind == "functional":
        raise registry.missing(f"aten::{spec.overload}")
    op = operator(spec)

    def composed(*args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with active_overrides.suspended():
                return op(*args, **kwargs)

        return as_jax(run)(*args, **kwargs)

    numbers = [a.name for a in spec.arguments if not a.is_tensor]  # which torch takes as such, and not traced
    return registry.Entry(composed, "ATen", frozenset(numbers))
