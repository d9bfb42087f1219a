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

from ..masking.cpu_forms import in_cpu_forms
from ..masking.masked_values import NotMasked
from ..xla import cheap_puts
from ..xla.jitted import jitted
from .interpreted_program import Interpreted
from .padded_calls import PaddedCall, PaddedCalls
from .primitive_rules import NotInterpreted

_log = logging.getLogger(__name__)

SECONDS = 0.007
"""So much is interpreted for each kind of operands and step of a program, some 70 calls of one operation.

That is a good part of a compile, which then follows.
"""
_OF_PADDED = 8  # as much of it for a program for larger arrays

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
    if os.environ.get("JATEN_INTERPRETER") == "0" or not cheap_puts.can_put():
        return False
    with jax.ensure_compile_time_eval():  # JAX may be tracing
        _Array = type(jax.device_put(np.zeros(())))
    return jax.default_backend() == "cpu" and jax.device_count() == 1


@functools.cache
def _device() -> Any:
    (device,) = jax.local_devices()
    return device


def as_array(value: Any, aval: Any, committed: bool = False) -> jax.Array:
    """NumPy's values as an array with memory of its own, which XLA may be told to overwrite."""
    return cheap_puts.put_on_device(np.array(value, order="C"), aval, _device(), committed=committed)


def as_xla(program: Callable[[list[Any]], list[Any]], values: list[Any]) -> list[Any]:
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
        program: what computes them without a compile of their own; None if they must be compiled.
        form: the tree of its results.
        waits: true as long as the program computes them.
        left: the seconds that a program for larger arrays may still take.
    """

    __slots__ = ("form", "left", "program", "waits")

    def __init__(self, program: Interpreted | PaddedCall | None = None, form: Any = None) -> None:
        self.program, self.form = program, form
        self.waits, self.left = program is not None, SECONDS * _OF_PADDED


class Padding:
    """Questions about calls for which a program for larger arrays runs; this one is for functions without errors."""

    def validate(self, values: Any, avals: list[Any], form: Any) -> None:
        """Raises the error of a call that has not been traced, if it has one.

        Args:
            values: the operands, static ones too.
            avals: the types of the results.
            form: the tree of these.
        """

    def is_refused(self, results: Any) -> bool:
        """True if an error is to be raised for the values of a call."""
        return False


class FirstCalls:
    """A function under `jax.jit` whose first calls need no compile of their own.

    Where the program and the values allow it, they are interpreted, or one program for larger arrays serves operands of
    many sizes. Each kind of operands gives some seconds. When they have passed, the kinds so far are compiled; new ones
    still are not. A kind of which a program for larger arrays has taken as much time is compiled by itself. When no new
    kind has come for a while, all further calls are those of the compiled function itself, until `resume`.

    Args:
        compiled: the function as `jax.jit` returns it.
        static: the positions of its static arguments.
        placed: called with this, and whether its compiled function is to be called in its place, when that changes.
        padding: what is asked of calls for which a program for larger arrays runs; None if none may.
        sizes: the positions of static arguments that are sizes of results, as tuples.

    Attributes:
        compiled: the compiled function.
    """

    def __init__(
        self,
        compiled: Any,
        static: Collection[int] = (),
        placed: Callable[[FirstCalls, bool], None] | None = None,
        padding: Padding | None = None,
        sizes: Collection[int] = (),
    ) -> None:
        self.compiled, self._static, self._placed, self._padding = compiled, frozenset(static), placed, padding
        self._sizes = tuple(sizes)
        self._kinds: dict[Any, _Kind] = {}
        self._padded: dict[Any, PaddedCalls] = {}
        self._left, self._calm = 0.0, 0
        self._run: Callable[..., Any] = self._first

    def __call__(self, *values: Any) -> Any:
        return self._run(*values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def _end(self) -> None:
        self._run = self.compiled
        self._kinds = {}  # a new one: other threads may read the old
        if self._placed is not None:
            self._placed(self, True)

    def resume(self) -> None:
        """Looks at calls anew, since a kind has come after the last of them."""
        if is_used():
            self._run, self._calm = self._first, 0
            if self._placed is not None:
                self._placed(self, False)

    def _first(self, *values: Any) -> Any:
        if not is_used():
            self._end()
            return self.compiled(*values)
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
                return self.compiled(*values)
        if _is_watched():
            return self.compiled(*values)
        kind = self._kinds.get(tuple(key)) or self._new_kind(tuple(key), values, leaves)
        if kind.waits:
            return self._uncompiled(kind, leaves, values)
        self._calm += 1 if kind.program else _COMPILED
        if self._calm > _CALM:
            self._end()
        return self.compiled(*values)

    def _new_kind(self, key: Any, values: Any, leaves: list[Any]) -> _Kind:
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds = {}
        self._kinds[key] = found = self._kind_of(values, leaves)
        if found.program:
            self._calm = 0
        if isinstance(found.program, Interpreted):
            self._left += SECONDS * found.program.saved_steps
        return found

    def _uncompiled(self, kind: _Kind, leaves: list[Any], given: tuple[Any, ...]) -> Any:
        program = kind.program
        assert program is not None
        start = time.perf_counter() - _seconds_of_calls(program)
        try:
            # as `jax.jit` has it; what takes them would be compiled once more otherwise
            committed = any(leaf.committed for leaf in leaves if type(leaf) is _Array)
            values = as_xla(program, leaves)
            results = [as_array(value, aval, committed) for value, aval in zip(values, program.avals, strict=True)]
        except NotMasked as reason:
            _log.info("a program has no form for larger arrays: %s", reason)
            kind.program, kind.waits = None, False
            return self.compiled(*given)
        except Exception as error:  # an error of the interpreter's; JAX's own are raised below
            is_refused = isinstance(error, jax.errors.JaxRuntimeError)  # as by jax.transfer_guard
            level = logging.INFO if is_refused else logging.WARNING
            _log.log(level, "a program was not interpreted: %s: %s", type(error).__name__, error)
            self._end()
            return self.compiled(*given)
        self._pay(kind, time.perf_counter() - _seconds_of_calls(program) - start)
        made = jax.tree.unflatten(kind.form, results)
        if isinstance(program, PaddedCall) and self._padding is not None and self._padding.is_refused(made):
            return self.compiled(*given)  # whose errors have words for the sizes that there are
        return made

    def _pay(self, kind: _Kind, seconds: float) -> None:
        if isinstance(kind.program, PaddedCall):  # it is compiled in its first call, as others need it
            kind.left -= min(seconds, SECONDS)
            kind.waits = kind.left > 0
            return
        self._left -= seconds
        if self._left < 0:
            for known in list(self._kinds.values()):
                known.waits &= isinstance(known.program, PaddedCall)

    def _kind_of(self, values: Any, leaves: list[Any]) -> _Kind:
        shapes = [*map(np.shape, leaves), *(values[i] for i in self._sizes)]
        calls = self._calls_like(values, leaves, shapes) if self._padding is not None else None
        changing = calls.meet(shapes) if calls is not None else None
        if self._padding is not None and calls is not None and changing is not None and changing.are_many:
            known = _padded_call(calls, changing, leaves, shapes, None)
            if known is not None:
                self._padding.validate(values, known[0].avals, known[1])
                return _Kind(*known)
        traced = self.compiled.trace(*values)
        if any(v.aval.weak_type for v in traced.jaxpr.jaxpr.outvars):
            return _Kind()
        program: Interpreted | None = None
        try:
            program = Interpreted(traced.jaxpr)
        except NotInterpreted:
            pass
        except Exception as error:  # a JAX whose programs are other than known
            _log.info("a program is not interpreted: %s: %s", type(error).__name__, error)
        form = jax.tree.structure(traced.out_info)
        # a library's call is compiled for each size
        is_costly = program is None or bool(program.calls)
        if program is not None and not program.saved_steps:
            program = None
        if calls is not None and changing is not None and (is_costly or changing.are_many):
            padded = _padded_call(calls, changing, leaves, shapes, functools.partial(self._traced, values))
            if padded is not None and padded[0].avals == traced.jaxpr.out_avals:
                return _Kind(padded[0], form)
        return _Kind(program, form)

    def _calls_like(self, values: Any, leaves: list[Any], shapes: list[tuple[int, ...]]) -> PaddedCalls:
        """The calls that differ in sizes alone."""
        key: list[Any] = [self._tree(values), jax.config.jax_enable_x64]  # type: ignore[attr-defined]  # as in `_first`
        key += [(type(values[i]), values[i]) for i in self._static if i < len(values) and i not in self._sizes]
        key += [*map(len, shapes), *((getattr(x, "dtype", type(x)), getattr(x, "weak_type", False)) for x in leaves)]
        found = self._padded.get(tuple(key))
        if found is None:
            if len(self._padded) >= _MOST_KINDS:  # a static argument may be ever new, too
                self._padded = {}
            found = self._padded[tuple(key)] = PaddedCalls(shapes)
        return found

    def _tree(self, values: Any) -> Any:
        return jax.tree.structure([None if i in self._static else v for i, v in enumerate(values)])

    def _traced(self, values: Any, others: list[Any]) -> Any:
        """The function traced for other leaves of its operands, and behind them other sizes."""
        leaves, sizes = others[: len(others) - len(self._sizes)], others[len(others) - len(self._sizes) :]
        taken = jax.tree.unflatten(self._tree(values), leaves)
        given = [v if i in self._static else taken[i] for i, v in enumerate(values)]
        for i, size in zip(self._sizes, sizes, strict=True):
            given[i] = size
        with in_cpu_forms():
            return self.compiled.trace(*given)


def _seconds_of_calls(program: Interpreted | PaddedCall) -> float:
    """The part of its time so far that does not count, since a compiled program takes it as well."""
    return program.seconds_of_calls if isinstance(program, Interpreted) and program.calls else 0.0


def _padded_call(calls: PaddedCalls, *given: Any) -> tuple[PaddedCall, Any] | None:
    try:
        return calls.call(*given)
    except Exception as error:  # a JAX whose expressions of sizes are other than known
        _log.info("a program for larger arrays is not made: %s: %s", type(error).__name__, error)
        return None


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
    return FirstCalls(jitted(function, static_argnums=tuple(static_argnums)), static_argnums, padding=Padding())
