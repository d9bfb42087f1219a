"""The calls of a jitted function before it pays to compile it."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
import torch
from jax.extend import core

from ..xla.jitted import jitted
from .interpreted_program import Interpreted
from .primitive_rules import NotInterpreted

pxla: Any
try:
    # private: `jax.device_put` takes ten times as long
    from jax._src.interpreters import pxla
except ImportError:  # pragma: no cover  # a JAX that has moved it: everything is compiled
    pxla = None

_log = logging.getLogger(__name__)

SECONDS = 0.005
"""So much is interpreted for each kind of operands, some 70 calls: a quarter of a compile, which then follows.

A longer program gets more: it takes longer to interpret, and to compile.
"""
_LONG = 10  # steps

_CALM = 256  # so many calls without a new kind end it: looking for one costs as much as a call
_COMPILED = 16  # such a call counts as so many if the program cannot be interpreted
_MOST_KINDS = 256  # of which a function knows the programs; a loop over ever new shapes has no end of them

_NUMBERS = (bool, int, float, complex)
_TINY = np.float32(1e-39)
_Array: Any = None


@functools.cache
def is_used() -> bool:
    """True if this process may interpret: JAX has one device, a CPU, and `JATEN_INTERPRETER` is not 0."""
    global _Array
    if os.environ.get("JATEN_INTERPRETER") == "0" or pxla is None:
        return False
    with jax.ensure_compile_time_eval():  # JAX may be tracing
        _Array = type(jax.device_put(np.zeros(())))
    return jax.default_backend() == "cpu" and jax.device_count() == 1


@functools.cache
def _place() -> tuple[Any, Any]:
    (device,) = jax.local_devices()
    return device, jax.sharding.SingleDeviceSharding(device)


def as_array(value: Any, aval: Any, committed: bool = False) -> jax.Array:
    """NumPy's values as an array with memory of its own, which XLA may be told to overwrite."""
    device, sharding = _place()
    values = [np.array(value, order="C")]
    found: jax.Array = pxla.batched_device_put(aval, sharding, values, [device], committed=committed)
    return found


def as_xla(program: Interpreted, values: list[Any]) -> list[Any]:
    """A program's results with denormal numbers taken for zeros, as XLA's CPU has them."""
    flushes = _TINY * np.float32(1) == 0
    torch.set_flush_denormal(True)
    try:
        with np.errstate(all="ignore"):
            return program(values)
    finally:
        torch.set_flush_denormal(bool(flushes))


class _Kind:
    """Operands of the same shapes and dtypes.

    Attributes:
        program: what computes them; None if it must be compiled.
        form: the tree of its results.
        is_interpreted: false if it must be compiled, or has been interpreted long enough.
    """

    __slots__ = ("form", "is_interpreted", "program")

    def __init__(self, program: Interpreted | None = None, form: Any = None) -> None:
        self.program, self.form = program, form
        self.is_interpreted = program is not None


class FirstCalls:
    """A function under `jax.jit`, interpreted at first where the program and the values allow.

    Each kind of operands gives some seconds. When they have passed, the kinds so far are compiled; new ones still are
    interpreted. When no new kind has come for a while, all further calls are those of the compiled function itself.

    Args:
        compiled: the function as `jax.jit` returns it.
        static: the positions of its static arguments.
        ended: called when all further calls are to be compiled.
    """

    def __init__(self, compiled: Any, static: Collection[int] = (), ended: Callable[[], None] | None = None) -> None:
        self._compiled, self._static, self._ended = compiled, frozenset(static), ended
        self._kinds: dict[Any, _Kind] = {}
        self._left, self._calm = SECONDS, 0
        self._run: Callable[..., Any] = self._first

    def __call__(self, *values: Any) -> Any:
        return self._run(*values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def _end(self) -> None:
        self._run = self._compiled
        self._kinds = {}  # a new one: other threads may read the old
        if self._ended is not None:
            self._ended()

    def _first(self, *values: Any) -> Any:
        if not is_used():
            self._end()
            return self._compiled(*values)
        leaves, tree = jax.tree.flatten([None if i in self._static else v for i, v in enumerate(values)])
        key: list[Any] = [tree, jax.config.jax_enable_x64]  # type: ignore[attr-defined]  # JAX makes it at run time
        key += [(type(values[i]), values[i]) for i in self._static if i < len(values)]
        for leaf in leaves:
            if type(leaf) is _Array and type(leaf.sharding) is jax.sharding.SingleDeviceSharding:
                key.append((leaf.shape, leaf.dtype, leaf.aval.weak_type))
            elif isinstance(leaf, np.ndarray | np.generic):
                key.append((leaf.shape, leaf.dtype))
            elif type(leaf) in _NUMBERS:
                key.append(type(leaf))
            else:  # a value that JAX traces, or one over several devices
                return self._compiled(*values)
        if _is_watched():
            return self._compiled(*values)
        kind = self._kinds.get(tuple(key)) or self._new_kind(tuple(key), values)
        if kind.is_interpreted:
            return self._interpreted(kind, leaves, values)
        self._calm += 1 if kind.program else _COMPILED
        if self._calm > _CALM:
            self._end()
        return self._compiled(*values)

    def _new_kind(self, key: Any, values: Any) -> _Kind:
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds = {}
        self._kinds[key] = found = self._kind_of(values)
        if found.program:
            self._left += SECONDS * max(1, found.program.length / _LONG)
            self._calm = 0
        return found

    def _interpreted(self, kind: _Kind, leaves: list[Any], given: tuple[Any, ...]) -> Any:
        start, program = time.perf_counter(), kind.program
        assert program is not None
        try:
            # as `jax.jit` has it; what takes them would be compiled once more otherwise
            committed = any(leaf.committed for leaf in leaves if type(leaf) is _Array)
            values = as_xla(program, leaves)
            results = [as_array(value, aval, committed) for value, aval in zip(values, program.avals, strict=True)]
        except Exception as error:  # an error of the interpreter's; JAX's own are raised below
            is_refused = isinstance(error, jax.errors.JaxRuntimeError)  # as by jax.transfer_guard
            level = logging.INFO if is_refused else logging.WARNING
            _log.log(level, "a program was not interpreted: %s: %s", type(error).__name__, error)
            self._end()
            return self._compiled(*given)
        self._left -= time.perf_counter() - start
        if self._left < 0:
            for known in list(self._kinds.values()):
                known.is_interpreted = False
        return jax.tree.unflatten(kind.form, results)

    def _kind_of(self, values: Any) -> _Kind:
        traced = self._compiled.trace(*values)
        try:
            if any(v.aval.weak_type for v in traced.jaxpr.jaxpr.outvars):
                raise NotInterpreted
            return _Kind(Interpreted(traced.jaxpr), jax.tree.structure(traced.out_info))
        except NotInterpreted:
            return _Kind()
        except Exception as error:  # a JAX whose programs are other than known
            _log.info("a program is not interpreted: %s: %s", type(error).__name__, error)
            return _Kind()


def _is_watched() -> bool:
    """True while JAX traces a program, which must have the call as a part, or looks at each result."""
    config = jax.config
    return (
        core.get_opaque_trace_state(convention="flax") != _outside()
        or config.jax_debug_nans  # type: ignore[attr-defined]  # JAX defines its settings as it runs
        or config.jax_debug_infs  # type: ignore[attr-defined]  # likewise
        or config.jax_disable_jit  # type: ignore[attr-defined]  # likewise
    )


@functools.cache
def _outside() -> Any:
    """JAX's state while it traces nothing."""
    with jax.ensure_compile_time_eval():
        return core.get_opaque_trace_state(convention="flax")


def interpreted(function: Callable[..., Any], *, static_argnums: Collection[int] = ()) -> FirstCalls:
    """A function of jaten's under `jax.jit`, whose first calls are interpreted where they can be."""
    return FirstCalls(jitted(function, static_argnums=tuple(static_argnums)), static_argnums)
