"""Operators of users: new torch operators with a JAX kernel, registered like the built-in ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch

from .. import registry
from ..registry import external_ops, parameters
from ..schema import OpSpec
from . import define


def op(
    schema: str,
    *,
    differentiable: Iterable[str] = (),
    static: Iterable[str] = (),
    tags: Iterable[str] = (),
    eager: bool = False,
) -> Callable[[registry.F], registry.F]:
    """Registers the decorated JAX function as a new torch operator.

    The function takes the schema's arguments in their order, keyword-only ones by name, as `jaten_ops.kernel` says.
    Arrays that it makes have the default dtypes that JAX has in the program: `jnp.zeros(3)` is float32 unless 64-bit
    types are on there, or float64 or complex128 are among the arguments. Its results must agree with the schema and
    the fake, or the first call, or the compile of a graph, raises KernelResultError.

    Args:
        schema: the operator's schema with its namespace, as in "mylib::swish(Tensor x, float beta=1.0) -> Tensor".
            An argument `Tensor(a!) x` or `Tensor(a!)[] xs` is written: the function returns its new value, in its
            shape and dtype, after the operator's own results.
        differentiable: the names of the tensor arguments that get gradients, by `jax.vjp` of the function unless
            `jaten_ops.gradient` registers another.
        static: the numeric arguments that the function needs as Python numbers, as for `jaten_ops.kernel`.
        tags: names of `torch.Tag`s; "nondeterministic_seeded" gives the function a PRNG key as `key`.
        eager: whether the function is called with concrete arrays, outside `jax.jit`, as the shapes of its results
            depend on values. Compiled graphs are parted there, and need a `jaten_ops.fake` that makes such a size with
            `torch.library.get_ctx().new_dynamic_size()`.

    The same operator again, as when a cell of a notebook is run twice, gets the new function as its kernel, and keeps
    its fake and gradient; what `torch.compile` has compiled in the process is compiled anew.

    Raises:
        InvalidSchemaError: the schema, or a name in the other arguments, is wrong, or the function's parameters are
            not the schema's.
        DuplicateRegistrationError: there is an operator of this name with another schema, gradient or tag.
        UnsupportedInputError: when torch traces a call of an `eager` operator without a fake.

    Example:
        >>> @jaten_ops.op("docs::swish(Tensor x, float beta=1.0) -> Tensor", differentiable=["x"])
        ... def swish(x, beta):  # any shape, floating point; the same shape and dtype
        ...     return x * jax.nn.sigmoid(beta * x)
        >>> x = torch.zeros(3, requires_grad=True)
        >>> torch.ops.docs.swish(x).sum().backward()
        >>> x.grad
        tensor([0.5000, 0.5000, 0.5000])
    """
    where = registry.caller()
    given = _spec_of(schema, tuple(differentiable), frozenset(tags) | {"pt2_compliant_tag"})
    writes = _check(given, frozenset(static))
    spec = given.functional_form() if writes else given
    writing = dataclasses.replace(given, kind="inplace", base=spec.name) if writes else None

    def register(fn: registry.F) -> registry.F:
        parameters.check(given, fn)
        if registry.add_op(spec, registry.Entry(fn, where, frozenset(static), bool(eager)), writing):
            _define(spec, writing)
        return fn

    return register


def _spec_of(schema: str, differentiable: tuple[str, ...], tags: frozenset[str]) -> OpSpec:
    namespace, separator, rest = schema.partition("::")
    if not separator or "(" in namespace:
        external_ops.refuse_schema(schema, "it has no namespace", "name it as in 'mylib::f(Tensor x) -> Tensor'")
    return OpSpec(
        schema=external_ops.in_one_spelling(rest), differentiable=differentiable, tags=tags, namespace=namespace
    )


def _define(spec: OpSpec, writing: OpSpec | None) -> None:
    define.register_op(spec)
    if spec.differentiable and not spec.random:
        define.define_vjp(spec)
    if writing is not None:
        define.define_variant(writing)


_RESULTS = ("Tensor", "Tensor?", "Tensor[]", "int", "SymInt", "float", "complex", "bool", "Scalar")
"""The types of results."""


def _check(spec: OpSpec, static: frozenset[str]) -> bool:
    """Raises InvalidSchemaError for what is wrong; returns whether the operator writes to arguments."""
    if "(" not in spec.schema:
        external_ops.refuse_schema(spec.name, "this is a name, not a schema", "append '(Tensor x, ...) -> Tensor'")
    writes = external_ops.require_own_results(spec)
    arguments = {a.name: a for a in spec.arguments}
    for name in spec.differentiable:
        if name not in arguments or not arguments[name].is_tensor:
            external_ops.refuse_schema(
                spec.name, f"differentiable names {name!r}", "name tensor arguments of the schema"
            )
    for kind in spec.returns:
        if kind not in _RESULTS:
            external_ops.refuse_schema(spec.name, f"it returns a {kind}", f"return one of {', '.join(_RESULTS)}")
    for name in static - arguments.keys():
        external_ops.refuse_schema(spec.name, f"static names {name!r}", "name arguments of the schema")
    for name in spec.tags:
        if not hasattr(torch.Tag, name):
            external_ops.refuse_schema(spec.name, f"there is no torch.Tag {name!r}", "see dir(torch.Tag)")
    return writes
