"""Operators that other libraries define with `torch.library`, and that get a kernel here.

Their fakes, gradients and implementations for plain tensors remain the library's.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import torch

from ..errors import InvalidSchemaError
from ..schema import OpSpec

_OWN = ("aten", "jaten")


def name_of(op: torch._ops.OpOverload) -> str:
    """The key of an operator in the registry's tables: an overload of ATen, or a qualified name."""
    namespace, _, overload = op.name().partition("::")
    return overload if namespace in _OWN else f"{namespace}::{overload}"


def operator_named(name: str) -> torch._ops.OpOverload | None:
    """The operator "lib::f" or "lib::f.overload"; None if torch does not know it."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)


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
        spec = OpSpec(schema=in_one_spelling(rest), namespace=namespace)
    else:
        op = operator_named(text)
        if op is None:
            return None
        tags = frozenset(tag.name for tag in op.tags)
        spec = OpSpec(schema=str(op._schema).partition("::")[2], tags=tags, namespace=namespace)
    require_functional(spec)
    return spec


_SPACES = re.compile(r"""("[^"]*"|'[^']*')|\s+|(?<=[)\]?])(?=\w)""")
"""A string, or the space between words, which may be missing between a type and a name."""


def in_one_spelling(schema: str) -> str:
    """A schema, without its namespace, with the spaces of the generated rows, which parts of it are read by.

    torch's parser takes any spaces, as in `f( Tensor x )->Tensor`. Its own text of a schema would not do: that has some
    defaults, such as a device, in a form that it does not parse.
    """
    text = _SPACES.sub(lambda found: found[1] or " ", schema)
    name, opening, rest = text.partition("(")
    arguments, arrow, returns = rest.rpartition("->")
    arguments = arguments.strip()
    if not opening or not arrow or not arguments.endswith(")"):
        return schema  # torch's parser says what is wrong
    return f"{name.strip()}({arguments[:-1].strip()}) -> {returns.strip()}"


def require_functional(spec: OpSpec) -> None:
    """Raises InvalidSchemaError if a schema does not parse, or mutates or aliases its arguments."""
    marked = _marked(spec)
    if any(a.alias_info.is_write for a in marked):
        refuse_schema(spec.name, "it mutates an argument", "return the new value, and copy_ it in a torch function")
    if marked:
        refuse_schema(spec.name, "a result aliases an argument", _NEW_RESULTS)


def require_own_results(spec: OpSpec) -> bool:
    """True if an operator writes to arguments, False if it is functional.

    Raises:
        InvalidSchemaError: its schema does not parse; or a result aliases an argument that it does not write to, or it
            writes to arguments of other types than Tensor and Tensor[].
    """
    marked = _marked(spec)
    written = [a for a in spec.parsed.arguments if a.alias_info is not None and a.alias_info.is_write]
    sets = [a.alias_info.before_set for a in written]
    for a in marked:
        if a.alias_info.before_set not in sets or a.alias_info.after_set != a.alias_info.before_set:
            refuse_schema(spec.name, "a result aliases an argument", _NEW_RESULTS)
    by_name = {a.name: a.type for a in spec.arguments}
    for a in written:
        if by_name[a.name] not in ("Tensor", "Tensor[]"):
            problem = f"it writes to {a.name!r}, a {by_name[a.name]}"
            refuse_schema(spec.name, problem, "write to a Tensor or a Tensor[]; what may be absent is another operator")
    return bool(written)


_NEW_RESULTS = "leave out the alias annotations: results are new tensors"


def _marked(spec: OpSpec) -> list[Any]:
    """The arguments and results with alias annotations."""
    try:
        return [a for a in (*spec.parsed.arguments, *spec.parsed.returns) if a.alias_info is not None]
    except RuntimeError as error:
        raise InvalidSchemaError(
            f"{spec.namespace}::{spec.schema}", str(error).strip(), "correct its syntax"
        ) from error


def require_schema(spec: OpSpec, op: torch._ops.OpOverload) -> None:
    """Raises InvalidSchemaError if a kernel was registered with another schema than the library's operator has."""
    if str(torch._C.parse_schema(f"{spec.namespace}::{spec.schema}")) != str(op._schema):
        refuse_schema(str(op._schema), f"its kernel is for {spec.schema}", "register one for the schema that it has")


def refuse_schema(schema: str, problem: str, remedy: str) -> NoReturn:
    """Raises InvalidSchemaError."""
    raise InvalidSchemaError(schema, problem, remedy)
