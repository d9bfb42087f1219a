"""Ways to call a program: grad modes, threads, sizes, hooks, and inputs that share memory or are written to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Run = Callable[..., Any]
MakeInputs = Callable[[int, int], tuple[Tensor, ...]]
Use = Callable[[Run, MakeInputs], Any]
SIZES = (3, 5, 2, 7, 5)  # of inputs, where they change


@dataclass(frozen=True)
class Layouts:
    """Strides and offsets, which only tensors of a compiled program on the CPU have as eager ones do."""

    of: tuple[Any, ...]


def called(run: Run, make: MakeInputs) -> Any:
    args = make(0, 3)
    return run(*args), args


def loss_of(results: Any) -> Tensor:
    """A number that depends on every differentiable result, and on none of them linearly."""
    kept = [r for r in tree_leaves(results) if isinstance(r, Tensor) and r.is_floating_point()]
    return sum(((r * (i + 1)).sin().sum() for i, r in enumerate(kept)), start=torch.zeros((), dtype=torch.float64))


def _leaves(args: Sequence[Tensor]) -> list[Tensor]:
    return [a.requires_grad_() for a in args if a.is_floating_point()]


def under(context: Callable[[], Any]) -> Use:
    def use(run: Run, make: MakeInputs) -> Any:
        args = make(0, 3)
        with context():
            results = run(*args)
        return results, args

    return use


def backward(run: Run, make: MakeInputs) -> Any:
    args = make(0, 3)
    leaves = _leaves(args)
    results = run(*args)
    loss_of(results).backward()
    return results, [leaf.grad for leaf in leaves]


def accumulated(run: Run, make: MakeInputs) -> Any:
    """Two calls whose gradients add up, the second backward before the first."""
    args = make(0, 3)
    leaves = _leaves(args)
    first, second = loss_of(run(*args)), loss_of(run(*args)) * 2
    second.backward()
    first.backward()
    return [leaf.grad for leaf in leaves]


def double_backward(run: Run, make: MakeInputs) -> Any:
    args = make(0, 3)
    leaves = _leaves(args)
    grads = torch.autograd.grad(loss_of(run(*args)), leaves, create_graph=True, materialize_grads=True)
    return grads, torch.autograd.grad(loss_of(grads), leaves, materialize_grads=True)


def batched(run: Run, make: MakeInputs) -> Any:
    """Inputs of three examples each, of a program that was made to take a batch of them."""
    batches = [make(seed, 3) for seed in range(3)]
    return run(*(torch.stack(list(parts)) for parts in zip(*batches, strict=True)))


def batched_twice(run: Run, make: MakeInputs) -> Any:
    return batched(run, lambda seed, size: tuple(torch.stack([a, a.flip(0)]) for a in make(seed, size)))


def in_threads(run: Run, make: MakeInputs) -> Any:
    """Four threads, each with inputs of its own and gradients, four times."""
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        try:
            for _ in range(4):
                args = make(number, 3)
                leaves = _leaves(args)
                results = run(*args)
                found[number] = results, torch.autograd.grad(loss_of(results), leaves, materialize_grads=True)
        except BaseException as error:  # raised by the thread that waits
            found[number] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in found.values():
        if isinstance(error, BaseException):
            raise error
    return [found[n] for n in range(4)]


def of_sizes(run: Run, make: MakeInputs) -> Any:
    found = []
    for size in SIZES:
        args = make(0, size)
        leaves = _leaves(args)
        results = run(*args)
        found.append((results, torch.autograd.grad(loss_of(results), leaves, materialize_grads=True)))
    return found


def twice(run: Run, make: MakeInputs) -> Any:
    """Calls on different inputs: what the first returned is looked at after the second."""
    first = run(*make(0, 3))
    second = run(*make(1, 3))
    return first, second


def inputs_written_after(run: Run, make: MakeInputs) -> Any:
    """Inputs that are overwritten at once: results that are no views of them must not see it."""
    args = make(0, 3)
    results = run(*args)
    for arg in args:
        arg.fill_(1)
    return results, args


def outputs_written_after(run: Run, make: MakeInputs) -> Any:
    """A write into each result in turn, with all that can be seen after each of them."""
    args = make(0, 3)
    results = run(*args)
    tensors = [t for t in tree_leaves(results) if isinstance(t, Tensor)]
    seen = []
    for n, tensor in enumerate(tensors):
        if 0 not in tensor.stride() or tensor.numel() == 0:  # torch refuses a write to an expanded tensor
            tensor.fill_(n + 2)
        seen.append([t.clone() for t in (*tensors, *args)])
    same = [[a is b for b in (*tensors, *args)] for a in (*tensors, *args)]
    return seen, same, Layouts(tuple([(t.stride(), t.storage_offset()) for t in tensors]))


def sharing_inputs(run: Run, make: MakeInputs) -> Any:
    """Inputs of one shape that lie in the same memory, one behind the other."""
    args = make(0, 3)
    same = [a for a in args if a.shape == args[0].shape and a.dtype == args[0].dtype]
    base = torch.stack(same)
    views = iter(base.unbind())
    given = [next(views) if any(a is s for s in same) else a for a in args]
    return run(*given), base


def one_input_for_all(run: Run, make: MakeInputs) -> Any:
    """One tensor for all inputs of its shape."""
    args = make(0, 3)
    given = [args[0] if a.shape == args[0].shape and a.dtype == args[0].dtype else a for a in args]
    return run(*given), given


def strided(run: Run, make: MakeInputs) -> Any:
    """Inputs that are not contiguous, and start in the middle of their memory."""
    found = []
    for layout in (_transposed, _every_second):
        args = [layout(a) for a in make(0, 3)]
        found.append((run(*args), args))
    return found


def _transposed(a: Tensor) -> Tensor:
    return a.mT.contiguous().mT if a.dim() > 1 else a


def _every_second(a: Tensor) -> Tensor:
    wide = a.new_zeros(*a.shape[:-1], 2 * a.shape[-1] + 1)
    view = wide[..., 1::2]
    return view.copy_(a)


def with_hooks(run: Run, make: MakeInputs) -> Any:
    args = make(0, 3)
    leaves = _leaves(args)
    for n, leaf in enumerate(leaves):
        leaf.register_hook(lambda grad, n=n: grad * (n + 2))
    results = run(*args)
    seen: list[Tensor] = []
    for result in tree_leaves(results):
        if isinstance(result, Tensor) and result.requires_grad:
            result.register_hook(lambda grad: seen.append(grad.clone()))
    loss_of(results).backward()
    return [leaf.grad for leaf in leaves], seen


def with_saved_hooks(run: Run, make: MakeInputs) -> Any:
    """Saved tensors pass through the program's own pack and unpack functions."""
    args = make(0, 3)
    leaves = _leaves(args)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: [t.clone()], lambda kept: kept[0]):
        loss = loss_of(run(*args))
    loss.backward()
    return [leaf.grad for leaf in leaves]


def of_non_leaves(run: Run, make: MakeInputs) -> Any:
    args = make(0, 3)
    leaves = _leaves(args)
    results = run(*(a * 1 if a.is_floating_point() else a for a in args))
    return results, torch.autograd.grad(loss_of(results), leaves, materialize_grads=True)


def in_double(run: Run, make: MakeInputs) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return backward(run, make)
    finally:
        torch.set_default_dtype(before)


def raised_before(run: Run, make: MakeInputs) -> Any:
    """A call that fails, and then one that must not know of it."""
    try:
        run(*(a.new_zeros(*a.shape, 2, dtype=torch.bool) for a in make(0, 3)))
    except Exception as error:
        del error
    return backward(run, make)
