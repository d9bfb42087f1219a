"""The tables of kernels, fakes and gradients, keyed by overload, and of handlers.

A key is an overload of ATen ("add.Tensor", "relu" for the default one) or the op of a user or of another library with
its namespace ("mylib::f").
Built-in modules and users fill the tables through the same functions; `jaten_ops.ops.define` reads them.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import DuplicateRegistrationError, GradientRegistrationError, MissingKernelError, UnknownOpError
from ..schema import FIRST, FUNCTIONAL, VARIANTS, OpSpec
from ..schema.exclusions import reason_of
from . import external_ops, parameters

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A registered function and where it was registered ("file.py:12")."""

    fn: Callable[..., Any]
    where: str
    static: frozenset[str] = frozenset()
    eager: bool | Callable[..., bool] = False


SPECS: dict[str, OpSpec] = dict(FUNCTIONAL)
"""Every op that may have a kernel: ATen's functional overloads, and those of others under their qualified names."""

OWN: set[str] = set()
"""Operators that `jaten_ops.op` has made."""

WRITING: dict[str, str] = {}
"""The functional operator of each that `jaten_ops.op` has made and that writes to arguments: it has the kernel."""

USED: set[str] = set()
"""Operators for which something was made of their kernel, fake or gradient."""

FOREIGN: set[str] = set()
"""Operators of other libraries, which keep their own gradients."""

KERNELS: dict[str, Entry] = {}
FAKES: dict[str, Entry] = {}
GRADIENTS: dict[str, Entry] = {}

ABSENT: dict[str, dict[str, Entry]] = {"kernel": {}, "fake": {}, "gradient": {}}
"""Kernels, fakes and gradients of overloads that the installed torch lacks, and another supported release has."""


def _add(table: dict[str, Entry], what: str, overloads: Iterable[str], entry: Entry) -> None:
    parameters.require_function(entry.fn, what)
    overloads = [overload.partition("(")[0] for overload in overloads]
    if str(entry.fn.__module__).partition(".")[0] == __name__.partition(".")[0]:
        absent = [overload for overload in overloads if overload in FIRST and overload not in FUNCTIONAL]
        ABSENT[what].update(dict.fromkeys(absent, entry))
        overloads = [overload for overload in overloads if overload not in absent]
    overloads = [WRITING.get(overload, overload) for overload in overloads]
    for overload in overloads:
        if overload not in SPECS:
            raise unknown(overload, entry.where)
        if overload in table and (overload not in OWN or table is KERNELS):
            raise DuplicateRegistrationError(what, overload, table[overload].where, entry.where)
    for overload in overloads:
        is_seen = overload in table or (overload in OWN and overload in USED)
        table[overload] = entry
        if is_seen:
            _tell_of_replacement(SPECS[overload])


_replacements = 0
_listeners: list[Callable[[OpSpec], None]] = []


def replacements() -> int:
    """The number of kernels, fakes and gradients of users' operators that were replaced: a part of keys of programs."""
    return _replacements


def when_replaced(listener: Callable[[OpSpec], None]) -> None:
    """Has a function called when the kernel, fake or gradient of an operator of a user is replaced."""
    _listeners.append(listener)


def _tell_of_replacement(spec: OpSpec) -> None:
    global _replacements
    _replacements += 1
    for listener in _listeners:
        listener(spec)


def unknown(overload: str, where: str) -> UnknownOpError:
    """The error for a name that no overload has, with those that may have been meant."""
    return UnknownOpError(overload, where, _close(overload))


def _close(overload: str) -> list[str]:
    """Names that may have been meant: the overloads of a packet first."""
    name = overload.removeprefix("aten::").removeprefix("jaten::")
    known = [o for o in SPECS if "_vjp" not in o]
    meant = [name, name.replace("_.", ".").removesuffix("_")]
    packet = [o for m in meant for o in known if o == m or o.partition(".")[0] == m]
    packet.sort(key=lambda o: o.partition(".")[2] not in ("", "Tensor"))
    near = difflib.get_close_matches(name, known, n=3)
    return list(dict.fromkeys([*packet, *near]))[:3]


def missing(name: str, source: str = "") -> MissingKernelError:
    """The error for an overload without a kernel, with the reason if it is excluded.

    Args:
        name: as in "aten::add.Tensor" or "jaten::add.Tensor".
        source: the line of the user's program.
    """
    namespace, _, overload = name.rpartition("::")
    if namespace not in ("aten", "jaten"):
        return MissingKernelError(name, source)
    base = VARIANTS[overload].base if overload in VARIANTS else overload
    return MissingKernelError(f"jaten::{overload}", source, reason_of(base))


def add_op(spec: OpSpec, entry: Entry, writing: OpSpec | None = None) -> bool:
    """Adds an op of a user with its kernel, so that it may get a fake and a gradient; False if it replaces the same.

    Args:
        spec: the op; or the functional one, if the user's writes to arguments.
        entry: its kernel.
        writing: the user's, then.
    """
    added = [spec] if writing is None else [spec, writing]
    if all(s.name in OWN and SPECS[s.name] == s for s in added):
        KERNELS[spec.name] = entry
        _tell_of_replacement(spec)
        return False
    for s in reversed(added):
        if s.name in SPECS or external_ops.operator_named(s.name) is not None:
            known = KERNELS.get(WRITING.get(s.name, s.name))
            first = known.where if known else "the library that defines it"
            raise DuplicateRegistrationError("operator", s.name, first, entry.where)
    SPECS.update({s.name: s for s in added})
    OWN.update(s.name for s in added)
    KERNELS[spec.name] = entry
    if writing is not None:
        WRITING[writing.name] = spec.name
    return True


def is_taken(name: str) -> bool:
    """True if an operator has this name with its namespace, but for those that jaten makes of a user's."""
    return name in OWN or name in FOREIGN or (name not in SPECS and external_ops.operator_named(name) is not None)


def name_of_user(name: str) -> str:
    """The name by which a user has registered an operator, of which this may be the functional form."""
    return next((writing for writing, functional in WRITING.items() if functional == name), name)


def caller() -> str:
    """The file and line that called the public function which calls this one."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame is not None else None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown place"


def kernel(*overloads: str, static: Iterable[str] = (), eager: bool | Callable[..., bool] = False) -> Callable[[F], F]:
    """Registers the decorated JAX function as the kernel of each overload.

    An overload is one of ATen's ("add.Tensor"), or an operator that another library has defined ("lib::f"). The latter
    keeps its own fake and gradient, and its own implementation for plain tensors outside compiled programs. An operator
    that is not defined yet is named with its schema: "lib::f(Tensor x) -> Tensor".

    The function is called with the arguments of the schema in their order, keyword-only ones by name, less those
    that only say where a result is stored (layout, device, pin_memory, memory_format, non_blocking, generator):

    - Tensor: a `jax.Array` or tracer; Tensor[]: a tuple of them; an absent Tensor?: None.
    - Scalar and float: a Python number or a weakly typed 0-d tracer, so that a value which changes at each call does
      not compile anew. Those named in `static` are always Python numbers.
    - int, bool, str, and lists of them: Python values (lists as tuples), static. ScalarType: a `numpy.dtype`.
    - an op that draws random numbers gets a JAX PRNG key as keyword argument `key`.

    It must be traceable by `jax.jit`, for ATen's overloads with x64 types on (for others see `jaten_ops.op`), and
    returns new arrays with the dtypes and shapes of ATen, or of the fake. Only
    where a result's shape depends on values it may be `eager`, which is to be called with concrete arrays, outside
    `jax.jit`: True, or a predicate on the kernel's arguments (concrete arrays or tracers) for those calls that need it.

    Raises:
        UnknownOpError: an overload that does not exist.
        DuplicateRegistrationError: an overload that has a kernel already.
        InvalidSchemaError: the operator of another library mutates or aliases its arguments, or the function's
            parameters are not those of its schema.

    Example:
        >>> @jaten_ops.kernel("otherlib::halve(Tensor x) -> Tensor")
        ... def halve(x):  # any shape, floating point; the same shape and dtype
        ...     return x / 2
    """
    where = caller()

    def register(fn: F) -> F:
        for text in filter(external_ops.is_foreign, overloads):
            spec = external_ops.spec_of(text)
            if spec is not None:
                if spec.name not in KERNELS:  # for a second kernel the error is DuplicateRegistrationError
                    parameters.check(spec, fn)
                SPECS.setdefault(spec.name, spec)
                if spec.name not in OWN:
                    FOREIGN.add(spec.name)
        _add(KERNELS, "kernel", overloads, Entry(fn, where, frozenset(static), eager))
        return fn

    return register


def fake(*overloads: str) -> Callable[[F], F]:
    """Registers the decorated torch function as the fake of each overload, in place of ATen's own meta function.

    The function takes the arguments of the schema, with fake tensors for tensors, and returns fake tensors with the
    shapes, dtypes and strides of the results. An operator of `jaten_ops.op` without a fake uses its kernel's shapes.

    Raises:
        UnknownOpError: an overload that does not exist.
        DuplicateRegistrationError: an overload of ATen's that has a fake already. That of an operator of
            `jaten_ops.op` is replaced, as when a cell of a notebook is run twice.

    Example:
        >>> @jaten_ops.op("docs::largest(Tensor x, int k) -> Tensor")
        ... def largest(x, k):  # (..., n) -> (..., k)
        ...     return jax.lax.top_k(x, k)[0]
        >>> @jaten_ops.fake("docs::largest")
        ... def fake_largest(x, k):
        ...     return x.new_empty(*x.shape[:-1], k)
        >>> torch.ops.docs.largest(torch.tensor([3.0, 1.0, 2.0]), 2)
        tensor([3., 2.])
    """
    where = caller()

    def register(fn: F) -> F:
        _add(FAKES, "fake", overloads, Entry(fn, where))
        return fn

    return register


def gradient(*overloads: str) -> Callable[[F], F]:
    """Registers the decorated function as the gradient of each overload, in place of `jax.vjp` of its kernel.

    A gradient of an ATen operator serves direct calls only, and must agree with ATen's own formula, which holds
    elsewhere. So this is for jaten's own formulas, and `gradient_of_users` for those of users.

    It is called as `fn(grads, args, results)`, all lists of torch values in schema order, and returns a dict from
    argument names to gradients, each with its argument's shape and dtype. Written in `torch.ops.jaten` calls, it is
    differentiable again. A parameter `wanted` gets the names of the arguments whose gradients are asked for: the others
    may be left out.
    """
    where = caller()

    def register(fn: F) -> F:
        _add(GRADIENTS, "gradient", overloads, Entry(fn, where))
        return fn

    return register


def gradient_of_users(*operators: str) -> Callable[[F], F]:
    """Registers the decorated function as the gradient of operators that `jaten_ops.op` has made ("mylib::f").

    It holds in place of `jax.vjp` of the kernel wherever PyTorch differentiates: in direct calls, on the device, in
    compiled graphs and steps, under `torch.func`.

    It is called as `fn(grads, args, results)`, all lists of torch values in schema order, and returns a dict from
    argument names to gradients, each with its argument's shape and dtype. Written in `torch.ops.jaten` calls, it is
    differentiable again. A parameter `wanted` gets the names of the arguments whose gradients are asked for: the others
    may be left out. It replaces the one that the operator has, as when a cell of a notebook is run twice.

    Raises:
        UnknownOpError: an operator that does not exist.
        GradientRegistrationError: one of ATen's, or of another library, which have gradients of their own.

    Example:
        >>> @jaten_ops.op("docs::round_through(Tensor x) -> Tensor", differentiable=["x"])
        ... def round_through(x):  # any shape, floating point
        ...     return jnp.round(x)
        >>> @jaten_ops.gradient("docs::round_through")
        ... def gradient_of_round_through(grads, args, results):  # that of the identity
        ...     return {"x": grads[0]}
        >>> x = torch.tensor([0.4, 1.6], requires_grad=True)
        >>> torch.ops.docs.round_through(x).sum().backward()
        >>> x.grad
        tensor([1., 1.])
    """
    where = caller()

    def register(fn: F) -> F:
        for name in operators:
            if name in SPECS and name not in OWN:
                raise GradientRegistrationError(name, "its library" if name in FOREIGN else "ATen")
        _add(GRADIENTS, "gradient", operators, Entry(fn, where))
        return fn

    return register
