"""`torch.vmap` over jaten's operators: the call is made for each element of the batch, and the results are stacked.

What torch does by itself for an operator without a batching rule is the same loop, but it takes no lists of tensors
and lets random numbers be drawn whatever `randomness` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .schema import OpSpec
from .tracing import opaque

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.FuncTorchVmapMode
)


def _elements(tensor: torch.Tensor, dim: int | None, size: int) -> Sequence[torch.Tensor]:
    """The tensor of each element of the batch; of an empty batch, one that stands for the shape."""
    if dim is None:
        return [tensor] * max(size, 1)
    if not size:
        return [tensor.new_zeros([n for d, n in enumerate(tensor.shape) if d != dim])]
    return [tensor.select(dim, at) for at in range(size)]


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

    def each(
        args: Any, kwargs: Any, operands: dict[int, tuple[torch.Tensor, int | None]], size: int, same: bool
    ) -> Any:
        """The results of one call after the other, as lists of one result's, and their structure."""
        flat, tree = tree_flatten((args, kwargs))
        elements = {i: _elements(t, dim, size) for i, (t, dim) in operands.items()}
        source = source_of(args, kwargs)
        state = source.get_state() if same else None
        found = []
        for at in range(max(size, 1)):
            if state is not None:
                source.set_state(state)
            args, kwargs = tree_unflatten([elements[i][at] if i in elements else v for i, v in enumerate(flat)], tree)
            found.append(tree_flatten(op(*args, **kwargs)))
        return [list(results) for results in zip(*(leaves for leaves, _ in found), strict=True)], found[0][1]

    @opaque
    def batched(*args: Any, **kwargs: Any) -> Any:
        interpreter = retrieve_current_functorch_interpreter()
        assert isinstance(interpreter, VmapInterpreter)
        level, size, randomness = interpreter.level(), interpreter.batch_size(), interpreter.randomness()
        operands = {
            i: torch._C._functorch._unwrap_batched(v, level)
            for i, v in enumerate(tree_leaves((args, kwargs)))
            if isinstance(v, torch.Tensor)
        }
        is_batched = any(dim is not None for _, dim in operands.values())
        if spec.random:
            _check_randomness(spec, randomness, [t for t, _ in operands.values()], is_batched)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if not is_batched and not (spec.random and randomness == "different"):
                return op(*args, **kwargs)
            results, tree = each(args, kwargs, operands, size, spec.random and randomness == "same")
            stacked = [_stack(spec.name, r, size) for r in results]
        wrapped = [None if s is None else torch._C._functorch._add_batch_dim(s, 0, level) for s in stacked]
        return tree_unflatten(wrapped, tree)

    return batched
