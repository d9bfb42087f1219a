"""Differentiable ops, and the companion op `<name>_vjp` that computes their gradients."""

from __future__ import annotations

import dataclasses
import re

from jaten_ops import registry
from jaten_ops.schema import OpSpec


def vjp_spec(spec: OpSpec) -> OpSpec:
    """The companion of a differentiable op.

    `f.o(Tensor x, ...) -> ...` has `f_vjp.o(Tensor[] grads, bool[] output_mask, Tensor x, ...) -> Tensor[]`: grads are
    those of the differentiable results, output_mask selects among the differentiable arguments, and the results are
    the selected gradients. It is differentiable, too. Its own companion, and that of an op with arguments of these
    names, numbers the new ones.
    """
    arguments = spec.schema[len(spec.overload) + 1 : spec.schema.rindex(") ->")]
    name = _name(spec, "vjp")
    grads, output_mask = (_unused(own, arguments) for own in ("grads", "output_mask"))
    return OpSpec(
        schema=f"{name}(Tensor[] {grads}, bool[] {output_mask}, {arguments}) -> Tensor[]",
        differentiable=(grads, *spec.differentiable),
        namespace=spec.namespace,
    )


def vmap_spec(spec: OpSpec) -> OpSpec:
    """The companion of a user's op that computes a batch of its calls.

    `f.o(Tensor x, ...) -> ...` has `f_vmap.o(int[] in_dims, SymInt batch_size, Tensor x, ...) -> ...`: in_dims has the
    batch dimension of each tensor in the arguments, -1 for none. The results have theirs first.
    """
    arguments, returns = spec.schema[len(spec.overload) + 1 :].rsplit(") ->", 1)
    name = _name(spec, "vmap")
    in_dims, batch_size = (_unused(own, arguments) for own in ("in_dims", "batch_size"))
    return OpSpec(
        schema=f"{name}(int[] {in_dims}, SymInt {batch_size}, {arguments}) ->{returns}",
        differentiable=spec.differentiable,
        nondifferentiable_outputs=spec.nondifferentiable_outputs,
        tags=spec.tags,
        namespace=spec.namespace,
    )


def keyed_spec(spec: OpSpec) -> OpSpec:
    """The companion of a user's random op that takes what it draws from: a PRNG key, as a tensor of its words.

    `f.o(Tensor x, ...) -> ...` has `f_keyed.o(Tensor key_words, Tensor x, ...) -> ...`.
    """
    rest = spec.schema[len(spec.overload) + 1 :]
    name = _name(spec, "keyed")
    own = f"Tensor {_unused('key_words', rest)}" + ("" if rest.startswith(")") else ", ")
    return dataclasses.replace(spec, schema=f"{name}({own}{rest}", tags=spec.tags - {"nondeterministic_seeded"})


def _name(spec: OpSpec, kind: str) -> str:
    """The companion's name, with a number if an operator that is no companion has it, as `mylib::f_vjp` may be."""
    packet, _, suffix = spec.overload.partition(".")
    end = f".{suffix}" if suffix else ""
    name = unused = f"{packet}_{kind}"
    count = 0
    while spec.namespace != "jaten" and registry.is_taken(f"{spec.namespace}::{unused}{end}"):
        count += 1
        unused = f"{name}_{count}"
    return f"{unused}{end}"


def _unused(name: str, arguments: str) -> str:
    """The name, with a number if one of the arguments has it."""
    unused, count = name, 0
    while re.search(rf"\b{unused}\b", arguments):
        count += 1
        unused = f"{name}_{count}"
    return unused
