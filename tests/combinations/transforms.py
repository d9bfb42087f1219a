"""Other programs made of a program, which compilers see whole: transforms, breaks, writes around, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from .uses import Run, loss_of


def same(fn: Run) -> Run:
    return fn


def float_positions(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(args) if a.is_floating_point())


def of_loss(transform: Callable[[Run, tuple[int, ...]], Run]) -> Callable[[Run], Run]:
    """A transform of functions with one number as result, by all floating point arguments."""

    def make(fn: Run) -> Run:
        def run(*args: Tensor) -> Any:
            return transform(lambda *a: loss_of(fn(*a)), float_positions(args))(*args)

        return run

    return make


def grad(fn: Run, at: tuple[int, ...]) -> Run:
    return torch.func.grad(fn, at)


def grad_n(depth: int) -> Callable[[Run], Run]:
    """The gradient of a function of the gradient, and so on, by the first argument."""

    def make(fn: Run) -> Run:
        def run(*args: Tensor) -> Any:
            def loss(first: Tensor) -> Tensor:
                return loss_of(fn(first, *args[1:]))

            for _ in range(depth - 1):
                inner = loss
                loss = lambda first, inner=inner: loss_of(torch.func.grad(inner)(first))  # noqa: E731  # is made anew
            return torch.func.grad(loss)(args[0])

        return run

    return make


def vjp(fn: Run) -> Run:
    def run(*args: Tensor) -> Any:
        results, pull_back = torch.func.vjp(fn, *args)
        return results, pull_back(tree_map_only(Tensor, torch.cos, results))

    return run


def jvp(fn: Run) -> Run:
    def run(*args: Tensor) -> Any:
        return torch.func.jvp(fn, args, tuple(a.cos() for a in args))

    return run


def by_first(transform: Callable[[Run], Run]) -> Callable[[Run], Run]:
    """A transform of the program as a function of its first argument."""

    def make(fn: Run) -> Run:
        def run(*args: Tensor) -> Any:
            return transform(lambda first: fn(first, *args[1:]))(args[0])

        return run

    return make


def jvp_of_grad(fn: Run) -> Run:
    return lambda x: torch.func.jvp(torch.func.grad(lambda t: loss_of(fn(t))), (x,), (x.cos(),))


def grad_of_jvp(fn: Run) -> Run:
    return torch.func.grad(lambda x: loss_of(torch.func.jvp(fn, (x,), (x.cos(),))[1]))


def grad_of_vmap(fn: Run) -> Run:
    def run(*args: Tensor) -> Any:
        return torch.func.grad(lambda *a: loss_of(torch.vmap(fn)(*a)), tuple(range(len(args))))(*args)

    return run


def vmap(fn: Run) -> Run:
    return torch.vmap(fn, randomness="different")


def vmap_of_grad(fn: Run) -> Run:
    return vmap(of_loss(grad)(fn))


def with_break(fn: Run) -> Run:
    def run(*args: Tensor) -> Any:
        results = fn(*args)
        torch._dynamo.graph_break()
        more = tree_map_only(Tensor, lambda t: t * 2 if t.is_floating_point() else t, results)
        return results, more

    return run


def in_place_around(fn: Run) -> Run:
    """A program on tensors that are written before, and on its results, which are written after."""

    def run(*args: Tensor) -> Any:
        given = [(a * 1).mul_(1.5) if a.is_floating_point() else a for a in args]
        results = fn(*given)
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.is_floating_point() and 0 not in result.stride():
                result.mul_(0.5)
        return results, given

    return run


def checkpointed(fn: Run) -> Run:
    return lambda *args: checkpoint(fn, *args, use_reentrant=False)


def functionalized(fn: Run) -> Run:
    return torch.func.functionalize(fn)
