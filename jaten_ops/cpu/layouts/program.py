"""A program run in the orders that its convolutions leave."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaten_ops.cpu import conv_choice
from jaten_ops.cpu.conv_primitive import convolution_p
from jaten_ops.kernel_base.conv_parts import ConvCall
from jaten_ops.kernel_base.platform import is_over_mesh
from jaten_ops.xla.equations import rebind
from jaten_ops.xla.platform_branches import cpu_branch

from .break_chains import with_chains_stored
from .folded_sums import with_folded_sums
from .joined_parts import with_joined_parts
from .joined_products import with_joined_products
from .nan_checks import with_quick_nan_checks
from .rules import MATRIX_RULES, RULES, LayoutRule, traced_scope, within, work_of
from .steps import bodies_of, body_of, branch_of
from .sums_as_products import with_sums_as_products
from .tile_batches import in_batches
from .tile_gather_scatter import in_stretches
from .values import Order, Ordered, places, program_order

_JITTED = ("pjit", "jit")
_LOOPS = {"scan": "jaxpr", "while": "body_jaxpr"}
_CALLS = ("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint")


def ordered(
    fn: Callable[..., Any],
    *,
    platform: str | None = None,
    taken: Sequence[Order | None] | None = None,
    free: Callable[[], Sequence[bool]] | None = None,
    left: list[Order | None] | None = None,
) -> Callable[..., Any]:
    """A function of arrays that computes what `fn` does, for `jax.jit`.

    Args:
        fn: a JAX function.
        platform: what it runs on, by default JAX's first choice. Only a CPU's program becomes another one: its
            convolutions ask for an order, padded parts are joined, rows are gathered and scattered in stretches, as are
            products of a batch, sums become products or are folded, long chains are stored.
        taken: for each array that it takes the order in which its dimensions come; None for the program's.
        free: asked after `fn` was traced, for each result whether it may be left in any order.
        left: is filled with the order of each result, None for the program's.
    """

    @functools.wraps(fn)
    def call(*arrays: Any) -> Any:
        leaves, on_cpu = jax.tree.leaves(arrays), (platform or jax.default_backend()) == "cpu"
        orders = [
            order or program_order(len(a.shape)) for order, a in zip(taken or [None] * len(leaves), leaves, strict=True)
        ]
        inputs = [_as_program(a, order) for a, order in zip(leaves, orders, strict=True)]
        program, shape = jax.make_jaxpr(fn, return_shape=True)(*jax.tree.unflatten(jax.tree.structure(arrays), inputs))
        if on_cpu:
            program = in_batches(in_stretches(with_joined_parts(program)))
            if not _has_images(program.jaxpr):  # whose dimensions will lie in another order
                program = with_folded_sums(with_sums_as_products(with_quick_nan_checks(program)))
            program = with_chains_stored(with_joined_products(program))
        values = [Ordered(x.shape, {order: a}) for x, order, a in zip(inputs, orders, leaves, strict=True)]
        rules = _rules_for(program.jaxpr) if on_cpu else {}
        results = _run(program, values, rules)
        may = free() if free is not None else [False] * len(results)
        found = [r.order if is_free else None for r, is_free in zip(results, may, strict=True)]
        if left is not None:
            left[:] = found
        return jax.tree.unflatten(
            jax.tree.structure(shape), [r.array(order) for r, order in zip(results, found, strict=True)]
        )

    return call


def _as_program(array: Any, order: Order) -> jax.ShapeDtypeStruct:
    """An operand as the program has it."""
    shape = tuple(array.shape[i] for i in places(program_order(len(order)), order))
    kind = {"weak_type": getattr(array, "weak_type", False)}
    if is_over_mesh(array):  # in whatever parts, which the compiler chooses: kernels only ask for the mesh
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=jax.typeof(array).sharding, **kind)
    return jax.ShapeDtypeStruct(shape, array.dtype, **kind)


def _rules_for(jaxpr: Any) -> dict[str, LayoutRule]:
    return RULES if _has_images(jaxpr) else MATRIX_RULES


def _has_images(jaxpr: Any) -> bool:
    """True if a convolution is in it that asks for channels last.

    One with a kernel for each channel asks only where images come out of order anyway, as those that are made of
    tokens, or where a library computes it between others: its gradients take longer with channels last.
    """
    equations = list(_equations(jaxpr))
    calls = [(c, [v.aval for v in e.invars]) for e in equations if (c := _call_of(e)) is not None]
    moves = any(e.primitive.name == "transpose" and len(e.params["permutation"]) > 2 for e in equations)
    others = [(c, avals) for c, avals in calls if not conv_choice.is_depthwise(c, *avals)]
    if others and not any(c.part == "weight_gradient" for c, _ in calls):
        moves = moves or any(conv_choice.is_by_library(c, *avals) for c, avals in calls)
    return any(conv_choice.leads(c, *avals) for c, avals in (calls if moves else others))


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program and of the programs in it: of those that depend on the platform, a CPU's."""
    for equation in jaxpr.eqns:
        yield equation
        branch = cpu_branch(equation)
        for body in bodies_of(equation) if branch is None else [branch.jaxpr]:
            yield from _equations(body)


def _call_of(equation: Any) -> ConvCall | None:
    """The convolution, or the part of its gradient, that an equation stands for."""
    return equation.params["call"] if equation.primitive is convolution_p else None


def _run(program: core.ClosedJaxpr, values: Sequence[Ordered], rules: dict[str, LayoutRule]) -> list[Ordered]:
    """The results of a program for some operands."""
    jaxpr = program.jaxpr
    known: dict[Any, Ordered] = dict(zip(jaxpr.invars, values, strict=True))
    known |= {v: Ordered.of(a) for v, a in zip(jaxpr.constvars, program.consts, strict=True)}

    def read(atom: Any) -> Ordered:
        if isinstance(atom, core.Literal):
            shape = np.shape(atom.val)
            return Ordered(shape, {program_order(len(shape)): atom.val})
        return known[atom]

    for equation in jaxpr.eqns:
        with within(traced_scope(equation)):
            found = _apply(equation, [read(atom) for atom in equation.invars], rules)
        known.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, operands: list[Ordered], rules: dict[str, LayoutRule]) -> list[Ordered]:
    name = equation.primitive.name
    if (branch := branch_of(equation) if rules is RULES else cpu_branch(equation)) is not None:
        return _run(branch, operands[1:], rules)
    if name in _CALLS or (name in _JITTED and rules is RULES):
        return _run(body_of(equation), operands, rules)
    if name in _JITTED and _has_matrix(body_of(equation).jaxpr):
        with within(f"jit({equation.params['name']})"):  # as JAX names what is in it
            return _run(body_of(equation), operands, rules)
    if name in _LOOPS and (body := _with_matrix_rules(equation.params[_LOOPS[name]])) is not None:
        return [Ordered.of(r) for r in rebind(equation, [x.array() for x in operands], **{_LOOPS[name]: body})]
    rule = rules.get(name)
    found = None if rule is None else rule(equation, operands)
    if found is None:
        found = _as_it_is(equation, operands)
    if rules is RULES:
        for result in found:
            result.work = work_of(name, operands)
    return found


def _with_matrix_rules(body: core.ClosedJaxpr) -> core.ClosedJaxpr | None:
    """A loop's body with its products of matrices as in other programs; None if it has none."""
    if not any(e.primitive.name == "dot_general" for e in body.jaxpr.eqns):
        return None

    def run(*arrays: jax.Array) -> list[jax.Array]:
        return [v.array() for v in _run(body, [Ordered.of(a) for a in arrays], MATRIX_RULES)]

    return jax.make_jaxpr(run)(*body.in_avals)


@functools.lru_cache(maxsize=1024)
def _has_matrix(jaxpr: Any) -> bool:
    """True if a program transposes a matrix, or multiplies one."""
    return any(map(_is_of_matrix, _equations(jaxpr)))


def _is_of_matrix(equation: Any) -> bool:
    return equation.primitive.name == "dot_general" or equation.params.get("permutation") == (1, 0)


def _as_it_is(equation: Any, operands: list[Ordered]) -> list[Ordered]:
    return [Ordered.of(r) for r in rebind(equation, [x.array() for x in operands])]
