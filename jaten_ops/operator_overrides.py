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
    """A kernel or a gradient in place of an operator's own, as `override` makes it.

    Example:
        >>> o = jaten_ops.override("sin", kernel=lambda self: jnp.sin(self) + 1)
        >>> with o:
        ...     torch.ops.jaten.sin(torch.zeros(2))
        tensor([1., 1.])
        >>> isinstance(o.install(), jaten_ops.Override), torch.ops.jaten.sin(torch.zeros(2))
        (True, tensor([1., 1.]))
        >>> o.remove()
    """

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
    """Puts another kernel, another gradient, or both in place of an operator's own.

    It is active in a `with` block (in the context of `contextvars` that enters it: a thread, a task of asyncio), from
    `install()` to `remove()` in all threads, or in one program, `torch.compile(..., options={"overrides": [o]})`. It
    takes direct calls, calls on the device `jax`, and programs that jaten compiles, above autograd; calls of PyTorch
    itself on the CPU stay as they are. Of several that match a call the innermost takes it, of equal ones the latest.
    docs/guides/overrides.md has the details.

    Args:
        target: an overload of ATen that computes ("gelu", "add.Tensor", `torch.ops.aten.mm.default`), one that ATen
            composes ("linear"), or a function of `torch.nn.functional` ("cross_entropy"). The in-place form is
            overridden, too, the out= form is not.
        kernel: a JAX function of the target's arguments, as `jaten_ops.kernel` takes it, which returns arrays of the
            target's shapes and dtypes. Without a gradient its gradient is `jax.vjp` of it.
        gradient: a JAX function `gradient(grads, args, results)`, of lists in schema order: the gradients of the
            results, the kernel's arguments, and its results. It returns a dict from names of arguments to gradients of
            their shapes and dtypes; those left out get zeros. Without a kernel the values stay those of the next
            override that matches, or the target's own.
        when: a function of the target's arguments that returns True for calls to take; None takes all. Of a tensor it
            sees shape, strides, dtype, device and class. A call that draws random numbers is never taken.
        static: the numeric arguments that the kernel needs as Python numbers, as for `jaten_ops.kernel`.
        residuals: how many more arrays than the target's results the kernel returns, at the end, for the gradient.

    Returns:
        The override: a context manager with the methods `install` and `remove`.

    Raises:
        UnknownOpError: there is no such operator.
        OverrideTargetError: it writes to an argument, returns a view, draws random numbers, or has no types.
        InvalidSchemaError: one of the functions cannot be called with its arguments.
        UnsupportedInputError: neither kernel nor gradient. When it runs: `when` reads a value, a gradient does not fit.
        KernelResultError: when it runs, the kernel returns other shapes or dtypes than the target.

    Example:
        >>> clipped = jaten_ops.override(
        ...     "exp", gradient=lambda grads, args, results: {"self": jnp.clip(grads[0] * results[0], -1, 1)}
        ... )
        >>> x = torch.tensor([0.0, 5.0], device="jax", requires_grad=True)
        >>> with clipped:
        ...     x.exp().sum().backward()
        >>> x.grad
        tensor([1., 1.], device='jax:0')
    """
    where = registry.caller()
    _require_parts(target, kernel, gradient, residuals)
    spec = target_of(target, where)
    active_overrides.note_first()
    own = functools.partial(_own_kernel, spec)
    return Override(spec, kernel, gradient, when, frozenset(static), residuals, own, where)


def _require_parts(target: Any, kernel: Any, gradient: Any, residuals: int) -> None:
    if kernel is None and gradient is None:
        raise UnsupportedInputError(f"override({target!r})", "neither a kernel nor a gradient", "one of them, or both")
    if residuals and (kernel is None or gradient is None):
        raise UnsupportedInputError(
            f"override({target!r})", f"residuals={residuals}", "0 without a kernel that returns them and a gradient"
        )


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
