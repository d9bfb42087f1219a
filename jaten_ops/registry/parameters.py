"""Checks of a kernel's parameters against the schema of its operator."""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable
from typing import Any

from ..errors import InvalidSchemaError
from ..schema import Argument, OpSpec


def arguments_of_kernel(spec: OpSpec) -> list[Argument]:
    """The arguments that a kernel gets: all but those about where a result is stored."""
    return [a for a in spec.arguments if not a.is_of_storage]


def _parameter(argument: Argument, spec: OpSpec) -> str:
    """The parameter's name in a kernel: a Python keyword, or the PRNG key's name, gets a trailing underscore."""
    taken = keyword.iskeyword(argument.name) or (spec.random and argument.name == "key")
    return f"{argument.name}_" if taken else argument.name


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """A function's parameters; None for a C function without a signature."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def keywords_of(spec: OpSpec, fn: Callable[..., Any]) -> dict[str, str]:
    """The kernel's parameter name for each keyword-only argument of the schema."""
    names = {a.name: _parameter(a, spec) for a in arguments_of_kernel(spec) if a.kwarg_only}
    if all(name == own for name, own in names.items()):
        return names
    signature = _signature(fn)
    taken = () if signature is None else signature.parameters
    return {name: own if own in taken else name for name, own in names.items()}


def by_schema(spec: OpSpec, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that takes keyword-only arguments by the schema's names."""
    names = keywords_of(spec, fn)

    @functools.wraps(fn)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **{names[name]: value for name, value in kwargs.items()})

    return fn if all(name == own for name, own in names.items()) else renamed


def require_function(fn: Any, what: str) -> None:
    """Raises TypeError for a kernel, fake or gradient that cannot be called."""
    if not callable(fn):
        raise TypeError(f"a {what} must be a function, got {type(fn).__name__}")


def check(spec: OpSpec, fn: Callable[..., Any]) -> None:
    """Raises InvalidSchemaError if a kernel cannot be called with the arguments of the schema.

    Positional parameters may have other names, as in a lambda, but not those of other arguments.
    """
    require_function(fn, "kernel")
    signature = _signature(fn)
    if signature is None:
        return
    taken = arguments_of_kernel(spec)
    positional = [_parameter(a, spec) for a in taken if not a.kwarg_only]
    keywords = [_parameter(a, spec) for a in taken if a.kwarg_only] + ["key"] * spec.random
    try:
        bound = signature.bind(*positional, **{name: name for name in keywords})
    except TypeError as error:
        _refuse(spec, signature, str(error), positional, keywords)
    for name, given in bound.arguments.items():
        if given != name and isinstance(given, str) and name in positional:
            _refuse(spec, signature, f"its {name!r} is the schema's {given!r}", positional, keywords)


def _refuse(
    spec: OpSpec, signature: inspect.Signature, problem: str, positional: list[str], keywords: list[str]
) -> None:
    written = ", ".join([*positional, *["*"][: len(keywords)], *keywords])
    raise InvalidSchemaError(
        f"{spec.namespace}::{spec.schema}",
        f"its kernel takes {signature}: {problem}",
        f"write def kernel({written}): the schema's arguments in their order, keyword-only ones by name"
        + (", and the PRNG key" if spec.random else "")
        + "; layout, device, pin_memory, memory_format, non_blocking and generator are not passed",
    )
