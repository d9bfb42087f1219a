"""Operators of users: new torch operators with a JAX kernel, by the path of the built-in ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import torch

from . import library, registry
from .errors import InvalidSchemaError
from .schema import OpSpec


def op(
    schema: str, *, differentiable: Iterable[str] = (), static: Iterable[str] = (), tags: Iterable[str] = ()
) -> Callable[[registry.F], registry.F]:
    """Registers the decorated JAX function as a new torch operator.

    Args:
        schema: the operator's schema with its namespace, as in "mylib::swish(Tensor x, float beta=1.0) -> Tensor".
            It neither mutates nor aliases its arguments.
        differentiable: the names of the tensor arguments that get gradients, by `jax.vjp` of the function unless
            `jaten_ops.gradient` registers another.
        static: the numeric arguments that the function needs as Python numbers, as for `jaten_ops.kernel`.
        tags: names of `torch.Tag`s; "nondeterministic_seeded" gives the function a PRNG key as `key`.

    Raises:
        InvalidSchemaError: the schema, or a name in the other arguments, is wrong.
        DuplicateRegistrationError: there is such an operator already.
    """
    where = registry.caller()
    namespace, separator, rest = schema.partition("::")
    if not separator or "(" in namespace:
        _refuse(schema, "it has no namespace", "name it as in 'mylib::f(Tensor x) -> Tensor'")
    tags = frozenset(tags) | {"pt2_compliant_tag"}
    spec = OpSpec(schema=rest, differentiable=tuple(differentiable), tags=tags, namespace=namespace)
    _check(spec, frozenset(static))

    def register(fn: registry.F) -> registry.F:
        registry.add_op(spec, registry.Entry(fn, where, frozenset(static)))
        library.register_op(spec)
        if spec.differentiable and not spec.random:
            library.define_vjp(spec)
        return fn

    return register


def _refuse(schema: str, problem: str, remedy: str) -> NoReturn:
    raise InvalidSchemaError(schema, problem, remedy)


def _check(spec: OpSpec, static: frozenset[str]) -> None:
    if "(" not in spec.schema:
        _refuse(spec.name, "this is a name, not a schema", "write '(Tensor x, ...) -> Tensor' behind it")
    try:
        arguments = {a.name: a for a in spec.arguments}
        marked = [a for a in (*spec.parsed.arguments, *spec.parsed.returns) if a.alias_info is not None]
    except RuntimeError as error:
        raise InvalidSchemaError(f"{spec.namespace}::{spec.schema}", str(error).strip(), "mend its syntax") from error
    if any(a.alias_info.is_write for a in marked):
        _refuse(spec.name, "it mutates an argument", "return the new value, and copy_ it in a torch function")
    if marked:
        _refuse(spec.name, "a result aliases an argument", "leave the alias marks out: results are new tensors")
    for name in spec.differentiable:
        if name not in arguments or not arguments[name].is_tensor:
            _refuse(spec.name, f"differentiable names {name!r}", "name tensor arguments of the schema")
    for name in static - arguments.keys():
        _refuse(spec.name, f"static names {name!r}", "name arguments of the schema")
    for name in spec.tags:
        if not hasattr(torch.Tag, name):
            _refuse(spec.name, f"there is no torch.Tag {name!r}", "see dir(torch.Tag)")
