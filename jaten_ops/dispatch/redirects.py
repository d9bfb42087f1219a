"""Calls of overridden operators, taken above autograd: put in torch's tables with a target's first active override.

With the last one they are taken out again, so that nobody pays for overrides that are not there; while there are other
threads, which may be in the middle of a call, they wait for the next time. What is put in serves all threads: it asks
which overrides are active where the call is, and runs what stood there before if none takes it.

| where | calls |
|---|---|
| `aten::f` at AutogradPrivateUse1 | on the device |
| `aten::f` at FuncTorchDynamicLayerFrontMode | under transforms of torch.func, before they take an operator apart |
| `CHOSEN` | on the device in inference mode, where torch skips autograd |
| `jaten::f` at the autograd keys of devices | direct ones |
| `aten::f` at those of plain tensors, if it is composed | within others that are composed, of direct calls |
| `jaten::f` below autograd | direct ones in inference mode |
| `torch.nn.functional` | of a function that is no operator, which then calls one |

Calls in a program that is compiled are taken by `jaten_ops.backend.captured_overrides`, too.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import resolve_key
from torch.utils._pytree import tree_leaves

from ..arrays import partitioned
from ..device import privateuse1
from ..meta import aten_overload
from ..ops import op_call
from ..ops.composite import is_stand_in
from ..ops.namespace import operator_of
from ..ops.override_rules import override_for, with_tensors
from ..ops.override_targets import function_through, operator
from ..registry import active_overrides
from ..registry.handlers import ABOVE_AUTOGRAD, BELOW_PYTHON, CHOSEN, HANDLERS, handler_of
from ..schema import COMPOSITE, VARIANTS, OpSpec
from ..tracing import opaque
from . import partitioned_products

_TRANSFORMS = "FuncTorchDynamicLayerFrontMode"
_BELOW = ("CPU", "CUDA", BELOW_PYTHON)
_ON_PLAIN = ("AutogradCPU", "AutogradCUDA")
_DIRECT = (*_ON_PLAIN, ABOVE_AUTOGRAD)

Runner = Callable[..., Any]


def operators(spec: OpSpec) -> list[tuple[torch._ops.OpOverload, bool]]:
    """The operators, ATen's as a rule, that an override of a target is for, and whether each is in-place."""
    found = [(operator(spec), False)]
    if spec.namespace == "jaten":
        names = [o for o, s in VARIANTS.items() if s.base == spec.overload and s.kind == "inplace"]
        found += [(aten_overload(name), True) for name in names]
    return [(op, in_place) for op, in_place in found if op is not None]


def target_name(spec: OpSpec) -> str:
    """The name by which overrides are looked up: that of an overload of ATen, or a qualified one."""
    return spec.overload if spec.namespace == "jaten" else spec.name


def redirected(target: str, before: Runner, in_place: bool = False) -> Runner:
    """A function of an operator's arguments: an override that takes the call, or what was there before."""

    @opaque
    def call(*args: Any, **kwargs: Any) -> Any:
        run = override_for(target, args, kwargs)
        if run is None:
            return before(*args, **kwargs)
        return _written(run, *args, **kwargs) if in_place else run(*args, **kwargs)

    return call


def _written(run: Runner, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    # the operand is saved for the gradient, and may not be written to then
    operand = self.clone() if torch.is_grad_enabled() else self
    return self.copy_(run(operand, *args, **kwargs))


def _before(spec: OpSpec, op: torch._ops.OpOverload, key: str) -> Runner:
    """The function of a set of keys and the arguments that stands in the dispatcher's table at a key now."""
    found = resolve_key(op, getattr(torch._C.DispatchKey, key))
    if found.name != key:  # an alias of several, which is called in the same way as from a program
        run = functools.partial(op._op_dk, found)
        return lambda _, *args, **kwargs: run(*args, **kwargs)
    kernel = torch.library.get_kernel(op, key)
    return lambda keys, *args, **kwargs: kernel.call_boxed(keys, *with_tensors(spec, args), **kwargs)


def _at_key(spec: OpSpec, op: torch._ops.OpOverload, key: str, in_place: bool = False) -> Runner:
    before, target = _before(spec, op, key), target_name(spec)

    @opaque
    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        run = override_for(target, args, kwargs)
        if run is None:
            return before(keys, *args, **kwargs)
        return _written(run, *args, **kwargs) if in_place else run(*args, **kwargs)

    return call


def _under_transforms(spec: OpSpec, op: torch._ops.OpOverload, in_place: bool) -> Runner:
    before, target = _before(spec, op, _TRANSFORMS), target_name(spec)

    @opaque
    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not active_overrides.is_capturing() and not any(t.device.type == "jax" for t in tensors):
            return before(keys, *args, **kwargs)
        run = override_for(target, args, kwargs)
        if run is not None:
            return _written(run, *args, **kwargs) if in_place else run(*args, **kwargs)
        with active_overrides.suspended(target):  # below, tensors have other shapes than the program's
            return before(keys, *args, **kwargs)

    return call


def _within_compositions(spec: OpSpec, op: torch._ops.OpOverload, key: str) -> Runner:
    before, target = _before(spec, op, key), target_name(spec)

    @opaque
    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        within = any(map(is_stand_in, tree_leaves((args, kwargs))))
        run = override_for(target, args, kwargs) if within else None
        if run is None:
            return before(keys, *args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():  # it records what is behind, not the stand-ins
            return run(*args, **kwargs)

    return call


class _Swap:
    """A function that stands where a handler of jaten's stood, since two from Python cannot be told apart there."""

    def __init__(self, operator: str, handler: Runner) -> None:
        self.handler = self.run = handler

        @opaque
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.run(*args, **kwargs)

        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is replaced
            self._library.impl(operator, call, ABOVE_AUTOGRAD)


_SWAPS: dict[str, _Swap] = {}


def _handler_above(op: torch._ops.OpOverload) -> Runner | None:
    """The handler of jaten's that stands above autograd for an operator."""
    overload = op.name().removeprefix("aten::")
    if not partitioned.AT_FIRST and overload in partitioned_products.OVER_A_MESH:  # they are put in
        return partitioned_products.OVER_A_MESH[overload]
    found = HANDLERS.get(op.name())
    return found.run if found is not None and ABOVE_AUTOGRAD in found.keys else None


class _Redirects:
    """All that is put in for one target."""

    def __init__(self, spec: OpSpec) -> None:
        self.count, self.is_in = 0, False
        self._spec, self._target = spec, target_name(spec)
        self._function: Runner | None = None
        self._libraries: list[tuple[torch.library.Library, torch._ops.OpOverload]] = []
        self._handlers: list[tuple[int, Runner]] = []
        self._swaps: list[_Swap] = []
        self._kernels: list[op_call.OpKernel] = []

    def put_in(self) -> None:
        self.is_in = True
        for op, in_place in operators(self._spec):
            self._above(op, in_place)
            if privateuse1.CLAIMED:
                self._below(op, in_place)
        if self._spec.namespace == "jaten":
            self._direct()

    def through_operator(self, on: bool) -> None:
        """Has a function of `torch.nn.functional` that is no operator of ATen call its operator, or ends that."""
        if self._spec.namespace == "jaten":
            return
        name = self._spec.overload
        if on:
            self._function = getattr(torch.nn.functional, name)
        assert self._function is not None
        now = function_through(self._spec, self._function) if on else self._function
        setattr(torch.nn.functional, name, now)

    def _direct(self) -> None:
        direct = operator_of(self._target)
        keys = [key for key in _DIRECT if privateuse1.CLAIMED or key != ABOVE_AUTOGRAD]
        if self._target in COMPOSITE:
            keys += [key for key in _BELOW if privateuse1.CLAIMED or key != BELOW_PYTHON]
        self._register(direct, {key: _at_key(self._spec, direct, key) for key in keys})
        if privateuse1.CLAIMED:
            self._below(direct, False)
        for kernel in op_call.DIRECT.get(self._target, ()):
            kernel.divert(functools.partial(redirected, self._target))
            self._kernels.append(kernel)

    def _above(self, op: torch._ops.OpOverload, in_place: bool) -> None:
        runs = {_TRANSFORMS: _under_transforms(self._spec, op, in_place)}
        handler = _handler_above(op)
        if handler is not None:
            swap = _SWAPS.get(op.name()) or _SWAPS.setdefault(op.name(), _Swap(op.name(), handler))
            swap.run = redirected(self._target, swap.handler, in_place)
            self._swaps.append(swap)
        elif privateuse1.CLAIMED:
            runs[ABOVE_AUTOGRAD] = _at_key(self._spec, op, ABOVE_AUTOGRAD, in_place)
        if self._spec.kind == "composite":
            runs |= {key: _within_compositions(self._spec, op, key) for key in _ON_PLAIN}
        self._register(op, runs)

    def _register(self, op: torch._ops.OpOverload, runs: dict[str, Runner]) -> None:
        library = torch.library.Library(op.namespace, "IMPL")
        self._libraries.append((library, op))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above; of linear torch has its own for transforms
            for key, run in runs.items():
                library.impl(op, run, key, with_keyset=True)
        op._dispatch_cache.clear()

    def _below(self, op: torch._ops.OpOverload, in_place: bool) -> None:
        before = handler_of(op)
        self._handlers.append((id(op), before))
        CHOSEN[id(op)] = redirected(self._target, before, in_place)

    def take_out(self) -> None:
        for library, op in self._libraries:
            library._destroy()
            # torch would go on to trace calls of the key that is empty now, which gives no gradients
            op._dispatch_cache.clear()
        for key, handler in self._handlers:
            CHOSEN[key] = handler
        for swap in self._swaps:
            swap.run = swap.handler
        for kernel in self._kernels:
            kernel.restore()
        self.__init__(self._spec)  # type: ignore[misc]  # empty again, as it was made


_ALL: dict[str, _Redirects] = {}
_LOCK = threading.RLock()


def need(spec: OpSpec) -> None:
    """Puts them in for a target, unless they are."""
    with _LOCK:
        found = _ALL.setdefault(target_name(spec), _Redirects(spec))
        if not found.is_in:
            found.put_in()
        if not found.count:
            found.through_operator(True)
        found.count += 1


def release(spec: OpSpec) -> None:
    """Ends a need for them; they are taken out if nobody else has one."""
    with _LOCK:
        found = _ALL[target_name(spec)]
        found.count -= 1
        if not found.count:
            found.through_operator(False)
        if threading.active_count() == 1:
            take_out_unneeded()


def take_out_unneeded() -> None:
    """Takes out all that nobody needs. No other thread may be in a call: torch would free what it runs."""
    with _LOCK:
        for found in _ALL.values():
            if found.is_in and not found.count:
                found.take_out()


_apart: list[tuple[_Redirects, int]] = []


def _before_a_mesh() -> None:
    """Takes them out where the handlers for tensors over a mesh are about to be put in."""
    with _LOCK:
        for target in partitioned_products.OVER_A_MESH:
            if target in _ALL and _ALL[target].is_in:
                _apart.append((_ALL[target], _ALL[target].count))
                _ALL[target].take_out()


def _after_a_mesh() -> None:
    """Puts them in again, above those handlers."""
    with _LOCK:
        for found, count in _apart:
            found.put_in()
            found.count = count
        _apart.clear()


# the last is called first: these are before and after the one that puts the handlers in
partitioned.AT_FIRST.append(_before_a_mesh)
partitioned.AT_FIRST.insert(0, _after_a_mesh)
