"""The companions of an op: operators that compute its gradients, a batch of its calls, or a call with a given PRNG key.

A companion's kernel is made of the op's kernel, and its gradient of the op's.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import autograd, meta, registry
from ..errors import KernelResultError, MissingGradientError, UnsupportedInputError
from ..kernel_base import prng
from ..kernel_base.vjp import make_vjp
from ..registry import parameters
from ..schema import OpSpec
from . import batched, result_checks, vmap
from .executor import KernelCall, Signature, as_meta
from .op_call import registry_key

Formula = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[str]], dict[str, Any]]
"""A gradient: of grads, args, results and the names of the arguments that want one, as `jaten_ops.gradient` has it."""

BASES: dict[str, tuple[str, OpSpec]] = {}
"""For each companion that is defined, but those for gradients, its kind and its op."""

DRAW = "jaten_random::draw_keys"
"""The operator that draws PRNG keys."""


def vjp_kernel(spec: OpSpec) -> Callable[..., Any]:
    """The kernel of the companion that computes gradients: `jax.vjp` of the op's."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        entry = registry.KERNELS.get(registry_key(spec))
        if entry is None:
            raise registry.missing(spec.name)
        call = KernelCall(spec, entry.fn)
        fn = make_vjp(
            parameters.by_schema(spec, entry.fn),
            call.positional_names,
            call.keyword_names,
            spec.differentiable,
            spec.nondifferentiable_outputs,
        )
        if spec.namespace == "jaten":
            return fn(*args, **kwargs)
        try:
            return fn(*args, **kwargs)
        except UnsupportedInputError:
            raise
        except Exception as error:  # the forward call was right, so it is the differentiation that fails
            refusal = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise MissingGradientError(_name_of_user(spec), refusal) from error

    return kernel


def _name_of_user(spec: OpSpec) -> str:
    """The name by which a user has registered an op."""
    while registry_key(spec) in BASES:
        _, spec = BASES[registry_key(spec)]
    return registry.name_of_user(spec.name)


def vjp_fake(spec: OpSpec) -> Callable[..., Any]:
    """The fake of that companion: gradients like the arguments."""

    def fake(grads: Any, output_mask: Sequence[bool], /, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        values = Signature(spec).bind(args, kwargs)
        names = [a.name for a in spec.arguments]
        wanted = [values[names.index(n)] for n, on in zip(spec.differentiable, output_mask, strict=True) if on]
        flat = [t for w in wanted for t in (w if isinstance(w, list | tuple) else (w,)) if t is not None]
        return [meta.as_contiguous(t) for t in flat]

    return fake


def _vmap_kernel(spec: OpSpec) -> Callable[..., Any]:
    def kernel(in_dims: Sequence[int], batch_size: int, /, *args: Any, **kwargs: Any) -> Any:
        fn = parameters.by_schema(spec, registry.KERNELS[registry_key(spec)].fn)
        fake = fake_of_user(spec)

        def one(*args: Any, **kwargs: Any) -> Any:
            got = result_checks.settled(spec, fn(*args, **kwargs))
            if fake is not None:
                own, named = as_meta(Signature(spec), [*args, *kwargs.values()])
                result_checks.hold_against(spec, got, fake(*own, **named))
            return got

        return batched.call_batch(one, in_dims, batch_size, args, kwargs)

    return kernel


def _keyed_kernel(spec: OpSpec) -> Callable[..., Any]:
    def kernel(key_data: jax.Array, /, *args: Any, **kwargs: Any) -> Any:
        fn = parameters.by_schema(spec, registry.KERNELS[registry_key(spec)].fn)
        words = jax.lax.bitcast_convert_type(key_data, "uint32")
        return fn(*args, key=jax.random.wrap_key_data(words, impl=prng.IMPL), **kwargs)

    return kernel


SPECS: dict[str, Callable[[OpSpec], OpSpec]] = {"vmap": autograd.vmap_spec, "keyed": autograd.keyed_spec}
"""The schemas of companions by kind."""

KERNELS: dict[str, Callable[[OpSpec], Callable[..., Any]]] = {"vmap": _vmap_kernel, "keyed": _keyed_kernel}
"""Their kernels."""


def fake_of_user(spec: OpSpec) -> Callable[..., Any] | None:
    """The fake of an op, by its own arguments; None if there is none but its kernel's shapes."""
    kind, base = BASES.get(registry_key(spec), ("", spec))
    found = meta.fake_of(base)
    if kind != "keyed" or found is None:
        return None if kind == "vmap" else found
    return lambda key_data, *args, **kwargs: found(*args, **kwargs)


def formula_of(spec: OpSpec, *, one_by_one: bool = False) -> Formula | None:
    """The gradient that is registered for an op, or follows from that of the op whose companion it is.

    Args:
        spec: the op.
        one_by_one: whether the gradient of a batch is that of each call in turn, in place of `torch.vmap` of it, which
            cannot be used where torch runs an operator in forward mode.
    """
    entry = registry.GRADIENTS.get(registry_key(spec))
    if entry is not None:
        fn = entry.fn
        takes_wanted = "wanted" in inspect.signature(fn).parameters

        def formula(grads: Any, args: Any, results: Any, wanted: Any) -> Any:
            return fn(grads, args, results, wanted=wanted) if takes_wanted else fn(grads, args, results)

        return formula if spec.namespace == "jaten" else _held_against_arguments(spec, formula)
    if registry_key(spec) not in BASES:
        return None
    kind, base = BASES[registry_key(spec)]
    own = formula_of(base, one_by_one=one_by_one)
    if own is None:
        return None
    if kind == "keyed":
        return lambda grads, args, results, wanted: own(grads, args[1:], results, wanted)
    return _of_batch(base, own, _one_by_one if one_by_one else _vmapped)


def _held_against_arguments(spec: OpSpec, formula: Formula) -> Formula:
    """A user's gradient, which raises KernelResultError for what autograd would drop, or give to another argument."""
    positions = {a.name: i for i, a in enumerate(spec.arguments)}

    def refuse(got: str) -> NoReturn:
        names = ", ".join(spec.differentiable)
        raise KernelResultError(_name_of_user(spec), got, f"differentiable: {names}", of="gradient", by="registration")

    def held(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Any], wanted: Sequence[str]) -> Any:
        by_name = formula(grads, args, results, wanted)
        if not isinstance(by_name, Mapping):
            refuse(type(by_name).__name__)
        for name, gradient in by_name.items():
            if gradient is None:
                continue
            if name not in spec.differentiable:
                refuse(f"one of {name!r}")
            value = args[positions[name]]
            if isinstance(value, list | tuple) and (
                not isinstance(gradient, list | tuple) or len(gradient) != len(value)
            ):
                refuse(f"{result_checks.in_words(gradient)} of {name!r}, a list of {len(value)}")
        return by_name

    return held


_Mapped = Callable[[Callable[..., Any], Sequence[Any], Sequence[Any], int], Sequence[torch.Tensor]]
"""The results of a function of leaves for each of a batch of calls, stacked, by the leaves' batch dimensions."""


def _vmapped(fn: Callable[..., Any], dims: Sequence[Any], leaves: Sequence[Any], size: int) -> Sequence[torch.Tensor]:
    return torch.vmap(fn, tuple(dims), randomness="different")(*leaves)


def _one_by_one(
    fn: Callable[..., Any], dims: Sequence[Any], leaves: Sequence[Any], size: int
) -> Sequence[torch.Tensor]:
    spread = [[v] * max(size, 1) if d is None else vmap.elements(v, d, size) for v, d in zip(leaves, dims, strict=True)]
    stacked = [torch.stack(each) for each in zip(*itertools.starmap(fn, zip(*spread, strict=True)), strict=True)]
    return [s[:size] for s in stacked]


def _of_batch(spec: OpSpec, formula: Formula, mapped: _Mapped) -> Formula:
    """The gradient of a batch of calls, by that of one call."""
    positions = {a.name: i for i, a in enumerate(spec.arguments)}

    def of_batch(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Any], wanted: Sequence[str]) -> Any:
        dims, size, *values = args
        each = iter(dims)
        dims_of_values = [tree_map(lambda v: next(each) if isinstance(v, torch.Tensor) else None, v) for v in values]
        in_dims = tree_map(
            lambda d: 0 if isinstance(d, torch.Tensor) else d if type(d) is int and d >= 0 else None,
            [list(grads), dims_of_values, list(results)],
        )
        flat, structure = tree_flatten([list(grads), values, list(results)])
        made: list[Any] = []

        def one(*leaves: Any) -> list[torch.Tensor]:
            of_one = tree_unflatten(list(leaves), structure)
            by_name = formula(of_one[0], of_one[1], of_one[2], wanted)
            found, tree = tree_flatten([by_name.get(n) for n in wanted])
            made[:] = [isinstance(g, torch.Tensor) for g in found], tree
            return [g for g in found if isinstance(g, torch.Tensor)]

        batches = iter(mapped(one, tree_leaves(in_dims), flat, size))
        stacked = tree_unflatten([next(batches) if is_one else None for is_one in made[0]], made[1])
        return {n: _unstacked(g, dims_of_values[positions[n]]) for n, g in zip(wanted, stacked, strict=True)}

    return of_batch


def _unstacked(gradient: Any, dim: Any) -> Any:
    """The gradient of an argument by those of all calls, stacked in their first dimension."""
    if gradient is None:
        return None
    if isinstance(gradient, list | tuple):
        return [_unstacked(g, d) for g, d in zip(gradient, dim, strict=True)]
    return gradient.sum(0) if dim < 0 else gradient.movedim(0, dim)


def key_drawer(spec: OpSpec) -> Callable[[Sequence[Any], list[int]], torch.Tensor]:
    """A function that draws PRNG keys for calls of a random op.

    It takes the arguments of the calls, whose device and generator are used, and the shape of a batch of keys.
    """
    of_generator = [i for i, a in enumerate(spec.arguments) if a.type.startswith("Generator")]
    of_device = [i for i, a in enumerate(spec.arguments) if a.type.startswith("Device")]

    def draw(values: Sequence[Any], batch: list[int]) -> torch.Tensor:
        tensor = next((t for t in tree_leaves(list(values)) if isinstance(t, torch.Tensor)), None)
        device = next((values[i] for i in of_device), None)
        like = torch.empty(0, device=device) if tensor is None else tensor.new_empty(0)
        generator = next((values[i] for i in of_generator), None)
        return torch.ops.jaten_random.draw_keys(like, batch, spec.name, generator=generator)

    return draw
