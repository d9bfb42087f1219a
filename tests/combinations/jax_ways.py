"""Programs as functions of JAX, under JAX's transforms, each beside what torch makes of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import jaten_ops

from .programs import Program
from .uses import loss_of

Arrays = tuple[jax.Array, ...]


@dataclass(frozen=True)
class Transform:
    """A JAX transform of a program.

    Attributes:
        run: calls it under the transform; takes the program and its inputs as arrays.
        plain: what torch gives, of the program and its inputs.
        needs: traits that a program must have.
        excludes: traits that it must not have.
    """

    name: str
    run: Callable[[Callable[..., Any], Arrays], Any]
    plain: Callable[[Callable[..., Any], tuple[Tensor, ...]], Any]
    needs: frozenset[str] = frozenset()
    excludes: frozenset[str] = frozenset()

    def applies_to(self, program: Program) -> bool:
        return self.needs <= program.traits and not self.excludes & program.traits


def _as_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The program with a key, which one without random operators does not look at."""
    converted = jaten_ops.as_jax(fn)
    return lambda *args: converted(*args, key=jax.random.key(0))


def _loss(fn: Callable[..., Any]) -> Callable[..., Any]:
    return _as_jax(lambda *args: loss_of(fn(*args)))


def _floats(args: Arrays) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating))


def _grad(fn: Callable[..., Any], args: Arrays) -> Any:
    return jax.grad(_loss(fn), _floats(args))(*args)


def _jitted_grad(fn: Callable[..., Any], args: Arrays) -> Any:
    return jax.jit(lambda *given: _grad(fn, given))(*args)


def _plain_grad(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
    leaves = [a.requires_grad_() for a in args if a.is_floating_point()]
    return torch.autograd.grad(loss_of(fn(*args)), leaves, materialize_grads=True)


def _second(fn: Callable[..., Any], args: Arrays) -> Any:
    """The gradient of a function of the gradient."""
    first = jax.grad(_loss(fn), _floats(args))
    return jax.grad(lambda *a: sum(jnp.sin(g).sum() for g in first(*a)), _floats(args))(*args)


def _plain_second(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
    leaves = [a.requires_grad_() for a in args if a.is_floating_point()]
    first = torch.autograd.grad(loss_of(fn(*args)), leaves, create_graph=True, materialize_grads=True)
    return torch.autograd.grad(sum(g.sin().sum() for g in first), leaves, materialize_grads=True)


def _examples(args: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Three examples: the inputs, and the same turned along their first dimension."""
    roll = torch.roll if isinstance(args[0], Tensor) else jnp.roll
    return [tuple(roll(a, n, 0) for a in args) for n in range(3)]


def _vmap(fn: Callable[..., Any], args: Arrays) -> Any:
    batch = [jnp.stack(parts) for parts in zip(*_examples(args), strict=True)]
    return jax.vmap(_as_jax(fn))(*batch)


def _vmap_of_grad(fn: Callable[..., Any], args: Arrays) -> Any:
    batch = [jnp.stack(parts) for parts in zip(*_examples(args), strict=True)]
    return jax.jit(jax.vmap(jax.grad(_loss(fn), _floats(args))))(*batch)


def _plain_each(of_one: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's results for each example, stacked."""

    def run(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
        results = [of_one(fn, tuple(a.clone() for a in example)) for example in _examples(args)]
        leaves, structure = zip(*(torch.utils._pytree.tree_flatten(r) for r in results), strict=True)
        stacked = [torch.stack([torch.as_tensor(p).detach() for p in parts]) for parts in zip(*leaves, strict=True)]
        return torch.utils._pytree.tree_unflatten(stacked, structure[0])

    return run


def _jvp(fn: Callable[..., Any], args: Arrays) -> Any:
    return jax.jvp(_as_jax(fn), args, tuple(jnp.cos(a) for a in args))


def _plain_jvp(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
    return torch.func.jvp(fn, args, tuple(a.cos() for a in args))


def _hessian(fn: Callable[..., Any], args: Arrays) -> Any:
    return jax.hessian(lambda first: _loss(fn)(first, *args[1:]))(args[0])


def _plain_hessian(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
    return torch.func.hessian(lambda first: loss_of(fn(first, *args[1:])))(args[0])


def _checkpoint(fn: Callable[..., Any], args: Arrays) -> Any:
    return jax.jit(jax.grad(jax.checkpoint(_loss(fn)), _floats(args)))(*args)


def _scan(fn: Callable[..., Any], args: Arrays) -> Any:
    """The gradient of a sum over three examples, one after the other."""
    batch = [jnp.stack(parts) for parts in zip(*_examples(args), strict=True)]

    def total(*given: Any) -> Any:
        return jax.lax.scan(lambda carry, example: (carry + _loss(fn)(*example), None), jnp.zeros(()), given)[0]

    return jax.grad(total, _floats(args))(*batch)


def _export(fn: Callable[..., Any], args: Arrays) -> Any:
    return jax.export.export(jax.jit(_as_jax(fn)))(*args).call(*args)


def _plain(fn: Callable[..., Any], args: tuple[Tensor, ...]) -> Any:
    return fn(*args)


_TRACED = frozenset({"reads values"})
_NO_GRADIENT = frozenset({"reads values", "integers", "writes inputs"})
_MANY_KINDS = frozenset({"reads values", "integers"})  # numbers and None among the results
_SMOOTH = frozenset({"smooth"})

TRANSFORMS = {
    t.name: t
    for t in (
        Transform("a call", lambda fn, args: _as_jax(fn)(*args), _plain),
        Transform("jit", lambda fn, args: jax.jit(_as_jax(fn))(*args), _plain, excludes=_MANY_KINDS),
        Transform("grad", _grad, _plain_grad, excludes=_NO_GRADIENT),
        Transform(
            "jit(grad)", lambda fn, args: jax.jit(lambda *a: _grad(fn, a))(*args), _plain_grad, excludes=_NO_GRADIENT
        ),
        Transform("grad(grad)", _second, _plain_second, needs=_SMOOTH),
        Transform("jvp", _jvp, _plain_jvp, needs=_SMOOTH, excludes=frozenset({"inner autograd"})),
        Transform("hessian", _hessian, _plain_hessian, needs=_SMOOTH, excludes=frozenset({"inner autograd"})),
        Transform("vmap", _vmap, _plain_each(_plain), excludes=_MANY_KINDS),
        Transform("jit(vmap(grad))", _vmap_of_grad, _plain_each(_plain_grad), excludes=_NO_GRADIENT),
        Transform("jit(grad(checkpoint))", _checkpoint, _plain_grad, excludes=_NO_GRADIENT),
        Transform("grad(scan)", _scan, _plain_each(_plain_grad), excludes=_NO_GRADIENT),
        Transform("export", _export, _plain, excludes=_MANY_KINDS),
    )
}


def run(program: Program, transform: Transform) -> Any:
    """JAX's results, as tensors of the device `jax`, and for each input whether it is unchanged.

    JAX's 64-bit types are on, as a program of float64 has them.
    """
    with jax.enable_x64(True):
        args = tuple(jaten_ops.to_jax(a.to("jax")) for a in program.make_inputs())
        before = [jnp.array(a) for a in args]
        got = transform.run(program.fn, args)
        unchanged = [bool((a == b).all()) for a, b in zip(args, before, strict=True)]
        return jaten_ops.from_jax(got), unchanged


def plain(program: Program, transform: Transform) -> Any:
    """Torch's results."""
    inputs = program.make_inputs()
    expected = transform.plain(program.plain, program.make_inputs())
    return tree_map_only(Tensor, torch.Tensor.detach, expected), [True] * len(inputs)
