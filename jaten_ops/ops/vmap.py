"""`torch.vmap` over jaten's operators: a call for each element of the batch, and a stack of the results.

A batch of a user's operator is one call, of `jax.vmap` of its kernel.

torch's default for an operator without a batching rule is the same loop, but it takes no lists of tensors and ignores
`randomness`. torch has two vmaps: autograd batches gradients with the older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only, tree_structure, tree_unflatten

from ..schema import OpSpec
from ..tracing import opaque

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.FuncTorchVmapMode
)


def elements(tensor: torch.Tensor, dim: int | None, size: int) -> list[torch.Tensor]:
    """The tensor of each element of the batch; for an empty batch, one placeholder with the shape."""
    if dim is None:
        return [tensor] * max(size, 1)
    if not size:
        return [tensor.new_zeros([n for d, n in enumerate(tensor.shape) if d != dim])]
    return list(tensor.unbind(dim))


_LEVELS = 64  # kVmapNumLevels in ATen/LegacyVmapMode.h

_Unwrap = Callable[[torch.Tensor], tuple[torch.Tensor, int | None]]


def _spread(value: Any, unwrap: _Unwrap, size: int) -> list[Any]:
    """An argument of each element's call."""
    if isinstance(value, torch.Tensor):
        return elements(*unwrap(value), size)
    if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return [list(each) for each in zip(*(_spread(v, unwrap, size) for v in value), strict=True)]
    return [value] * max(size, 1)


def _calls(args: Sequence[Any], kwargs: dict[str, Any], unwrap: _Unwrap, size: int) -> Iterator[tuple[Any, Any]]:
    """The arguments of each element's call."""
    spread = list(zip(*(_spread(v, unwrap, size) for v in (*args, *kwargs.values())), strict=True))
    for values in spread or [()] * max(size, 1):
        yield values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))


def _stacked(name: str, results: list[Any], size: int) -> tuple[list[torch.Tensor | None], Any]:
    """The results of all elements, and their tree structure if there are several."""
    if isinstance(results[0], torch.Tensor):
        return [_stack(name, results, size)], None
    leaves = zip(*(tree_leaves(r) for r in results), strict=True)
    return [_stack(name, list(rs), size) for rs in leaves], tree_structure(results[0])


def _put_together(stacked: Sequence[torch.Tensor | None], tree: Any, wrap: Callable[[torch.Tensor], Any]) -> Any:
    wrapped = [None if s is None else wrap(s) for s in stacked]
    return wrapped[0] if tree is None else tree_unflatten(wrapped, tree)


def _stack(name: str, results: list[Any], size: int) -> Any:
    if all(r is None for r in results):  # not in the output mask
        return None
    if not all(isinstance(r, torch.Tensor) for r in results):
        raise RuntimeError(f"vmap: {name} returns a number, which cannot differ between the elements of the batch")
    if any(r.shape != results[0].shape for r in results):
        shapes = sorted({tuple(r.shape) for r in results})
        raise RuntimeError(
            f"vmap: {name} returns tensors of shapes {shapes} for the elements of the batch, and they cannot be stacked"
        )
    return torch.stack(results)[:size] if size else results[0].new_empty((0, *results[0].shape))


def _refuse_to_draw(name: str, randomness: str) -> None:
    if randomness == "error":
        raise RuntimeError(
            f"vmap: called random operation {name} while in randomness error mode. Please either use the 'same' or"
            " 'different' randomness flags on vmap or perform the randomness operation out of vmap"
        )


def _check_randomness(spec: OpSpec, randomness: str, tensors: Sequence[torch.Tensor], batched: bool) -> None:
    _refuse_to_draw(spec.name, randomness)
    if randomness == "same" and batched and any(isinstance(t, FakeTensor) for t in tensors):
        raise RuntimeError(
            f"vmap: {spec.name} of a batched tensor cannot draw the same numbers for each element of the batch in a"
            " compiled graph. Please draw them out of vmap"
        )


_InOrder = Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any]]]


class _Level:
    """The innermost `torch.vmap` of a call of a batching rule, and the batch dimensions of the tensors that it met."""

    def __init__(self) -> None:
        interpreter = retrieve_current_functorch_interpreter()
        assert isinstance(interpreter, VmapInterpreter)
        self._level = interpreter.level()
        self.size, self.randomness = interpreter.batch_size(), interpreter.randomness()
        self.dims: list[int] = []

    def below(self, tree: Any) -> Any:
        """A tree with its tensors as they are outside this `torch.vmap`."""
        return tree_map_only(torch.Tensor, self._unwrap, tree)

    def _unwrap(self, tensor: torch.Tensor) -> torch.Tensor:
        own, dim = torch._C._functorch._unwrap_batched(tensor, self._level)
        self.dims.append(-1 if dim is None else dim)
        return own

    def stacked(self, results: Any) -> Any:
        """Results whose first dimension is the batch, for the program inside."""
        return tree_map_only(torch.Tensor, lambda r: torch._C._functorch._add_batch_dim(r, 0, self._level), results)

    @property
    def has_batch(self) -> bool:
        return max(self.dims, default=-1) >= 0


def make_batched_by_jax(
    batched_op: Callable[..., Any], op: Callable[..., Any], in_order: _InOrder
) -> Callable[..., Any]:
    """The batching rule of a user's op whose batches `jax.vmap` of its kernel computes.

    Args:
        batched_op: its companion for batches.
        op: the op itself, for calls in which nothing has a batch at the level of the rule.
        in_order: a call's arguments in the order of the schema, defaults filled in.
    """

    @opaque
    def batched(*args: Any, **kwargs: Any) -> Any:
        level = _Level()
        own_args, own_kwargs = level.below(in_order(args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if not level.has_batch:
                return op(*args, **kwargs)
            return level.stacked(batched_op(level.dims, level.size, *own_args, **own_kwargs))

    return batched


def make_batched_random(
    spec: OpSpec,
    batched_op: Callable[..., Any],
    op: Callable[..., Any],
    in_order: _InOrder,
    draw: Callable[[Sequence[Any], list[int]], torch.Tensor],
) -> Callable[..., Any]:
    """The same for a random op: one PRNG key for all calls of a batch, or one for each, as `randomness` says.

    Args:
        spec: the op.
        batched_op: the companion for batches of its companion that takes a key.
        op, in_order: as above.
        draw: draws keys for a call's arguments.
    """

    @opaque
    def batched(*args: Any, **kwargs: Any) -> Any:
        level = _Level()
        _refuse_to_draw(spec.name, level.randomness)
        own_args, own_kwargs = level.below(in_order(args, kwargs))
        is_same = level.randomness == "same"
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if is_same and not level.has_batch:
                return op(*args, **kwargs)
            keys = draw([*own_args, *own_kwargs.values()], [] if is_same else [level.size])
            dims = [-1 if is_same else 0, *level.dims]
            return level.stacked(batched_op(dims, level.size, keys, *own_args, **own_kwargs))

    return batched


def make_batched_draw(op: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of the op that draws PRNG keys."""

    @opaque
    def batched(like: torch.Tensor, batch: Sequence[int], of: str, *, generator: torch.Generator | None = None) -> Any:
        level = _Level()
        _refuse_to_draw(of, level.randomness)
        like = level.below(like)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if level.randomness == "same":
                return op(like, batch, of, generator=generator)
            return level.stacked(op(like, [level.size, *batch], of, generator=generator))

    return batched


def make_batched(spec: OpSpec, op: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of an op, for the dispatch keys of `torch.vmap`.

    Raises (when called):
        RuntimeError: a random op under randomness="error"; results that are no tensors, or of different shapes.
    """
    taken = [(i, a.name) for i, a in enumerate(spec.arguments) if a.type.startswith("Generator")]

    def source_of(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Generator:
        found = [args[i] if i < len(args) else kwargs.get(name) for i, name in taken]
        return (found and found[0]) or torch.default_generator

    def each(args: Any, kwargs: Any, unwrap: _Unwrap, size: int, same: bool) -> Iterator[Any]:
        source = source_of(args, kwargs)
        state = source.get_state() if same else None
        for own, named in _calls(args, kwargs, unwrap, size):
            if state is not None:
                source.set_state(state)
            yield op(*own, **named)

    @opaque
    def batched(*args: Any, **kwargs: Any) -> Any:
        interpreter = retrieve_current_functorch_interpreter()
        assert isinstance(interpreter, VmapInterpreter)
        level, size, randomness = interpreter.level(), interpreter.batch_size(), interpreter.randomness()
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]

        def unwrap(tensor: torch.Tensor) -> tuple[torch.Tensor, int | None]:
            return torch._C._functorch._unwrap_batched(tensor, level)

        unwrapped = list(map(unwrap, tensors))
        is_batched = any(dim is not None for _, dim in unwrapped)
        if spec.random:
            _check_randomness(spec, randomness, [t for t, _ in unwrapped], is_batched)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if not is_batched and not (spec.random and randomness == "different"):
                return op(*args, **kwargs)
            results = list(each(args, kwargs, unwrap, size, spec.random and randomness == "same"))
            stacked, tree = _stacked(spec.name, results, size)
        return _put_together(stacked, tree, lambda s: torch._C._functorch._add_batch_dim(s, 0, level))

    return batched


def _unwrapped(tensor: torch.Tensor, level: int) -> tuple[torch.Tensor, int | None]:
    """A tensor below a level of the older vmap, and its batch dimension.

    A tensor without a batch at that level is expanded to the requested size.
    """
    one, two = (torch._remove_batch_dim(tensor, level, n, 0) for n in (1, 2))
    return (one, 0) if one.shape == two.shape else (one[0], None)


def _innermost(tensors: Sequence[torch.Tensor]) -> tuple[int, dict[int, tuple[torch.Tensor, int | None]]]:
    """The level of the innermost batch, and the tensors below it by id.

    torch counts levels by thread, and autograd's threads for a device have their own count, so the level is read from
    the tensors.
    """
    found: tuple[int, dict[int, tuple[torch.Tensor, int | None]]] | None = None
    for level in range(1, _LEVELS + 1):
        below = {id(t): _unwrapped(t, level) for t in tensors}
        if any(dim is not None for _, dim in below.values()):
            found = level, below
        elif found is not None:  # levels follow each other
            break
    assert found is not None, "called for tensors without a batch"
    return found


def make_batched_gradient(spec: OpSpec, op: Callable[..., Any]) -> Callable[..., Any]:
    """The same for the older vmap, of `torch.autograd.grad(is_grads_batched=True)` and `jacobian(vectorize=True)`."""

    @opaque
    def batched(*args: Any, **kwargs: Any) -> Any:
        level, below = _innermost([v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)])
        (size,) = {t.shape[0] for t, dim in below.values() if dim is not None}
        calls = _calls(args, kwargs, lambda t: below[id(t)], size)
        stacked, tree = _stacked(spec.name, [op(*own, **named) for own, named in calls], size)
        return _put_together(stacked, tree, lambda s: torch._add_batch_dim(s, 0, level))

    return batched
