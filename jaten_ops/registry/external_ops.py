"""Operators that other libraries define with `torch.library`, and that get a kernel here.

Their fakes, gradients and implementations for plain tensors remain the library's.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from ..errors import InvalidSchemaError
from ..schema import OpSpec

_OWN = ("aten", "jaten")


def name_of(op: torch._ops.OpOverload) -> str:
    """The key of an operator in the registry's tables: an overload of ATen, or a qualified name."""
    namespace, _, overload = op.name().partition("::")
    return overload if namespace in _OWN else f"{namespace}::{overload}"


def is_foreign(name: str) -> bool:
    """True if a name, or a schema with its namespace, is of another library than ATen and jaten."""
    namespace, separator, _ = name.partition("(")[0].partition("::")
    return bool(separator) and namespace not in _OWN


def spec_of(text: str) -> OpSpec | None:
    """The `OpSpec` of an operator of another library, by its name or its schema; None if torch does not know it.

    Args:
        text: "lib::f" or "lib::f.overload" of an operator that is defined, or the schema of one that may be defined
            later, as in "lib::f(Tensor x) -> Tensor".

    Raises:
        InvalidSchemaError: the schema does not parse, or the operator mutates or aliases its arguments.
    """
    namespace, _, rest = text.partition("::")
    if "(" in rest:
        spec = OpSpec(schema=rest, namespace=namespace)
    else:
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
        if op is None:
            return None
        tags = frozenset(tag.name for tag in op.tags)
        spec = OpSpec(schema=str(op._schema).partition("::")[2], tags=tags, namespace=namespace)
    require_functional(spec)
    return spec


def require_functional(spec: OpSpec) -> None:
    """Raises InvalidSchemaError if a schema does not parse, or mutates or aliases its arguments."""
    try:
        marked = [a for a in (*spec.parsed.arguments, *spec.parsed.returns) if a.alias_info is not None]
    except RuntimeError as error:
        raise InvalidSchemaError(
            f"{spec.namespace}::{spec.schema}", str(error).strip(), "correct its syntax"
        ) from error
    if any(a.alias_info.is_write for a in marked):
        refuse_schema(spec.name, "it mutates an argument", "return the new value, and copy_ it in a torch function")
    if marked:
        refuse_schema(
            spec.name, "a result aliases an argument", "leave out the alias annotations: results are new tensors"
        )


def require_schema(spec: OpSpec, op: torch._ops.OpOverload) -> None:
    """Raises InvalidSchemaError if a kernel was registered with another schema than the library's operator has."""
    if str(torch._C.parse_schema(f"{spec.namespace}::{spec.schema}")) != str(op._schema):
        refuse_schema(str(op._schema), f"its kernel is for {spec.schema}", "register one for the schema that it has")


def refuse_schema(schema: str, problem: str, remedy: str) -> NoReturn:
    """Raises InvalidSchemaError."""
    raise InvalidSchemaError(schema, problem, remedy)
