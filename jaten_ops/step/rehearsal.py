"""A step traced as its second call would be, without a first: nothing runs, and everything is left as it was.

The first call of a step makes gradients and the states of optimizers, which are operands of later ones. Here they are
made without values: the step is traced, what it leaves behind gets abstract arrays, and it is traced once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import torch

from ..arrays import bridge, partitioned
from ..arrays.abstract_arrays import AbstractArray, as_struct, without_values
from ..arrays.storage_views import Storage
from ..errors import UnsupportedInputError
from ..tensor.tensor import Tensor, from_array
from .cpu_tensors import CpuTensors
from .holders import Reach
from .lowered_step import groups_of, lowered
from .optimizer_state import LateOptimizer, UnmadeState
from .random_states import RandomStates
from .result_recipes import Kept
from .trace import Trace


def argument_without_values(tensor: torch.Tensor) -> torch.Tensor:
    """An argument of the step: for one of another device a tensor of its shape and dtype."""
    if isinstance(tensor, Tensor):
        return tensor
    return _like(tensor, _one_device()).requires_grad_(tensor.requires_grad)


def _one_device() -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


@contextlib.contextmanager
def undone(reach: Reach, given: Sequence[Any]) -> Iterator[None]:
    """A context after which gradients, states, attributes and generators are as they were before."""
    drawn, in_memory = RandomStates([*reach.values, *given]), CpuTensors(reach.tensors)
    leaves = [t for t in [*reach.tensors, *given] if isinstance(t, torch.Tensor) and t.is_leaf]
    gradients = [leaf.grad for leaf in leaves]
    try:
        yield
    finally:
        reach.restore()
        drawn.restore()
        in_memory.restore()
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient


def second_call(look: Callable[[], Reach], trace: Callable[[Reach], Trace], holders: list[Any]) -> Trace:
    """The trace of a step's second call, to be made within `undone`.

    Args:
        look: finds everything that the step reaches.
        trace: traces it.
        holders: is given the optimizers that are found late.
    """
    while True:
        try:
            first = trace(look())
        except LateOptimizer as late:
            holders.append(late.optimizer)
        except UnmadeState as unmade:
            _give_state(unmade.optimizer, unmade.state)
        else:
            break
    gradients = [(leaf, isinstance(recipe, Kept) and recipe.value is None) for leaf, recipe in first.gradients]
    if not first.left and all((leaf.grad is None) is is_none for leaf, is_none in gradients):
        return first
    for leaf, is_none in gradients:
        leaf.grad = None if is_none else _like(leaf, _place_of(leaf))
    reach = look()
    _settle(first.left, reach.optimizers)
    return trace(look())


def _like(tensor: torch.Tensor, place: jax.sharding.Sharding) -> torch.Tensor:
    """A tensor without values, of the shape and dtype of another."""
    stand_in: Any = AbstractArray(tuple(tensor.shape), bridge.to_numpy_dtype(tensor.dtype), place)
    return from_array(stand_in)


def _place_of(leaf: torch.Tensor) -> jax.sharding.Sharding:
    return leaf.view_of_arrays.storage.array.sharding if isinstance(leaf, Tensor) else _one_device()


def _give_state(optimizer: torch.optim.Optimizer, state: dict[Any, Any]) -> None:
    for values in state.values():
        _settle([v.view_of_arrays.storage.root for v in values.values() if isinstance(v, Tensor)], ())
    optimizer.state.update(state)
    _place_states([optimizer])


def _settle(left: Iterable[Storage], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Gives abstract arrays to storages that the step has left with traced ones."""
    for root in left:
        array = root.array
        if isinstance(array, jax.core.Tracer):
            stand_in: Any = AbstractArray(array.shape, array.dtype, _one_device())
            root.move(stand_in)
    _place_states(optimizers)


def _place_states(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Places the states of optimizers as their parameters, as eager calls would have."""
    for optimizer in optimizers:
        for parameter, values in optimizer.state.items():
            for value in values.values():
                if not isinstance(value, Tensor) or value.shape != parameter.shape:
                    continue
                root = value.view_of_arrays.storage.root
                if isinstance(root.array, AbstractArray):
                    root.move(partitioned.put_over(root.array, _place_of(parameter)))


def lowered_over(trace: Trace, where: Any, absent: Any) -> tuple[jax.stages.Lowered, str]:
    """The program of a trace over a mesh, and its text.

    Args:
        trace: the trace; the tensors of one device that it takes are copied to all, without values.
        where: a sharding over the mesh.
        absent: as `lowered` takes it.

    Raises:
        UnsupportedInputError: the step has tensors over another mesh.
    """
    groups = groups_of(trace)
    had = {found.operand: without_values(found.array) for found in trace.capture.lifted.values()}
    mesh: Any = partitioned.common_sharding(had.values()) or trace.mesh() or where
    if not partitioned.same_devices(mesh, where):
        raise UnsupportedInputError("mesh", where.mesh, f"that of the step's tensors, {mesh.mesh}")

    def placed(array: AbstractArray, others: Iterable[Any]) -> AbstractArray:
        return array if partitioned.is_partitioned(array) else partitioned.beside(array, [*others], mesh)

    arrays = {i: placed(array, had.values()) for i, array in had.items()}
    in_memory = [without_values(trace.capture.operands[i][0].what[2]) for i in groups.others]
    return lowered(
        trace,
        groups,
        [as_struct(arrays[i]) for i in groups.written],
        [as_struct(arrays[i]) for i in groups.read],
        [as_struct(placed(array, ())) for array in in_memory],
        places=[arrays[i].sharding for i in groups.written] if where.num_devices > 1 else None,
        absent=absent,
    )
