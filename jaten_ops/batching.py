"""`torch.vmap` over jaten's operators: the call is made for each element of the batch, and the results are stacked.

What torch does by itself for an operator without a batching rule is the same loop, but it takes no lists of tensors
and lets random numbers be drawn whatever `randomness` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from .schema import OpSpec
from .tracing import opaque

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.FuncTorchVmapMode
)


def _elements(tensor: torch.Tensor, dim: int | None, size: int) -> list[torch.Tensor]:
    """The tensor of each element of the batch; of an empty batch, one that stands for the shape."""
    if dim is None:
        return [tensor] * max(size, 1)
    if not size:
        return [tensor.new_zeros([n for d, n in enumerate(tensor.shape) if d != dim])]
    return list(tensor.unbind(dim))


def _spread(value: Any, level: int, size: int) -> list[Any]:
    """An argument of each element's call."""
    if isinstance(value, torch.Tensor):
        return _elements(*torch._C._functorch._unwrap_batched(value, level), size)
    if isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value):
        return [list(each) for each in zip(*(_spread(v, level, size) for v in value), strict=True)]
    return [value] * max(size, 1)


def _stack(name: str, results: list[Any], size: int) -> Any:
    if all(r is None for r in results):  # not in the output mask
        return None
    if not all(isinstance(r, torch.Tensor) for r in results):
        raise RuntimeError(f"vmap: {name} returns a number, which cannot be another for each element of the batch")
    if any(r.shape != results[0].shape for r in results):
        shapes = sorted({tuple(r.shape) for r in results})
        raise RuntimeError(
            f"vmap: {name} returns tensors of shapes {shapes} for the elements of the batch, and they cannot be stacked"
        )
    return torch.stack(results)[:size] if size else results[0].new_empty((0, *results[0].shape))


def _check_randomness(spec: OpSpec, randomness: str, tensors: Sequence[torch.Tensor], batched: bool) -> None:
    if randomness == "error":
        raise RuntimeError(
            f"vmap: called random operation {spec.name} while in randomness error mode. Please either use the 'same' or"
            " 'different' randomness flags on vmap or perform the randomness operation out of vmap"
        )
    if randomness == "same" and batched and any(isinstance(t, FakeTensor) for t in tensors):
        raise RuntimeError(
            f"vmap: {spec.name} of a batched tensor cannot draw the same numbers for each element of the batch in a"
            " compiled graph. Please draw them out of vmap"
        )


def make_batched(spec: OpSpec, op: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of an op, for the dispatch keys of `torch.vmap`.

    Raises (when called):
        RuntimeError: a random op under randomness="error"; results that are no tensors, or of different shapes.
    """
    names = [a.name for a in spec.arguments]

    def source_of(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Generator:
        at = names.index("generator") if "generator" in names else len(args)
        found = args[at] if at < len(args) else kwargs.get("generator")
        return found or torch.default_generator

    def each(args: Any, kwargs: Any, level: int, size: int, same: bool) -> Iterator[Any]:
        source = source_of(args, kwargs)
        state = source.get_state() if same else None
        spread = list(zip(*(_spread(v, level, size) for v in (*args, *kwargs.values())), strict=True))
        for values in spread or [()] * max(size, 1):
            if state is not None:
                source.set_state(state)
            yield op(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

    @opaque
    def batched(*args: Any, **kwargs: Any) -> Any:
        interpreter = retrieve_current_functorch_interpreter()
        assert isinstance(interpreter, VmapInterpreter)
        level, size, randomness = interpreter.level(), interpreter.batch_size(), interpreter.randomness()
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        unwrapped = [torch._C._functorch._unwrap_batched(t, level) for t in tensors]
        is_batched = any(dim is not None for _, dim in unwrapped)
        if spec.random:
            _check_randomness(spec, randomness, [t for t, _ in unwrapped], is_batched)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if not is_batched and not (spec.random and randomness == "different"):
                return op(*args, **kwargs)
            results = list(each(args, kwargs, level, size, spec.random and randomness == "same"))
            if isinstance(results[0], torch.Tensor):
                stacked, tree = [_stack(spec.name, results, size)], None
            else:
                tree = tree_structure(results[0])
                leaves = zip(*(tree_leaves(r) for r in results), strict=True)
                stacked = [_stack(spec.name, list(rs), size) for rs in leaves]
        wrapped = [None if s is None else torch._C._functorch._add_batch_dim(s, 0, level) for s in stacked]
        return wrapped[0] if tree is None else tree_unflatten(wrapped, tree)

    return batched
