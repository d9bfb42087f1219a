"""A step of `compile_step` as a program to export: its state and a batch in, its results and the new state out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import torch
from torch.utils import _pytree as pytree

from ..arrays import bridge, partitioned
from ..errors import UnsupportedInputError
from ..step.arguments import Structure
from ..step.compiled import Step
from ..step.holders import Reach
from ..step.lowered_step import Groups, groups_of, operands_by_number
from ..step.result_recipes import Kept, Made
from ..step.state_capture import Source
from ..step.trace import Trace
from ..tensor.tensor import from_array
from .over_meshes import entry_of, sharding_of
from .torch_programs import ProgramToExport
from .trees import Place, tree_of

NUMBERS = "hyperparameters"
"""The name of the floats of optimizers in the state: a float64 vector, in the order of the names in the signature."""


def step_to_export(step: Step, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ProgramToExport:
    """A step for arguments like these. Nothing is run or changed.

    Raises:
        UnsupportedInputError: it leaves gradients, replaces tensors, or returns tensors that it does not compute.
        RuntimeError: an optimizer in it has no state yet.
    """
    if not step.is_warm:
        raise RuntimeError("the step has not run: its optimizer has no state yet. Fix: call the step once before")
    return step.traced_for(args, kwargs, _to_export)


_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]")


class _Operand(NamedTuple):
    """An operand of the program: a name of the state, or the number of an input."""

    name: str | None
    input: int


def _to_export(trace: Trace, reach: Reach, given: list[Any], structure: Structure) -> ProgramToExport:
    _require_whole(trace)
    groups, sources = groups_of(trace), [source for source, _ in trace.capture.operands]
    storages = {found.operand: found.array for found in trace.capture.lifted.values()}
    inputs = [i for i, value in enumerate(given) if isinstance(value, torch.Tensor)]
    parts = [[_operand(sources[i], i, reach, inputs) for i in part] for part in (groups.written, groups.read)]
    state: dict[str, torch.Tensor] = {}
    for numbers, part in zip((groups.written, groups.read), parts, strict=True):
        state.update((o.name, _tensor(storages[i])) for i, o in zip(numbers, part, strict=True) if o.name is not None)
    others = _others(groups, sources)
    state.update(others)
    if groups.numbers:
        state[NUMBERS] = torch.tensor(reach.numbers(), dtype=torch.float64)[[sources[i].what for i in groups.numbers]]
    names = [reach.floats[sources[i].what] for i in groups.numbers]
    updated = [o.name for o in parts[0] if o.name is not None]
    if len(updated) != len(parts[0]):
        raise _refusal("writes to an argument", "returns the new value")
    chosen = [recipe.storage for recipe in trace.results if isinstance(recipe, Made)]

    def function(held: list[Any], arrays: list[Any], seeds: list[Any]) -> list[Any]:
        values = dict(zip(state, held, strict=True))
        read = [[arrays[o.input] if o.name is None else values[o.name] for o in part] for part in parts]
        drawn = [seeds[0] + i for i in range(len(groups.seeds))]
        numbers = values.get(NUMBERS, ())
        operands = operands_by_number(groups, read[0], read[1], [values[name] for name in others], numbers, drawn)
        written, made, _, _ = trace.program(operands, lambda fn: fn)
        return [*(made[i] for i in chosen), *written]

    dtypes = [bridge.to_numpy_dtype(given[i].dtype) for i in inputs]
    shapes = [(tuple(given[i].shape), sharding_of(given[i])) for i in inputs]
    arrays = [entry_of(trace._name(i), s, d, p) for i, d, (s, p) in zip(inputs, dtypes, shapes, strict=True)]
    places = {at: Place(n) for n, at in enumerate(inputs)}
    args, kwargs = pytree.tree_unflatten([places.get(i, v) for i, v in enumerate(given)], structure.of)
    return ProgramToExport(
        function, state, [str(name) for name in updated], tree_of([list(args), kwargs]), _results(trace), arrays,
        [jax.ShapeDtypeStruct(s, d, sharding=p) for d, (s, p) in zip(dtypes, shapes, strict=True)], bool(groups.seeds),
        [f.key if f.at is None else f"{f.key}.{f.at}" for f in names],
    )  # fmt: skip


def _require_whole(trace: Trace) -> None:
    """Refuses what a call of the program would do beyond returning arrays."""
    if any(not isinstance(recipe, Kept) for _, recipe in trace.gradients):
        raise _refusal("leaves gradients", "ends with optimizer.zero_grad()")
    if trace.early:
        raise _refusal(f"reads values of its inputs{trace.early[0].where}", "is the same program for all values")
    if trace.effects or trace.slots or trace.changes or trace.left:
        what = "; ".join(trace.effects) or "it replaces or stores tensors"
        raise _refusal(f"does more than compute: {what}", "writes to tensors in place and returns the rest")
    for recipe in trace.results:
        if not isinstance(recipe, Kept) and (not isinstance(recipe, Made) or recipe.geometry is not None):
            raise _refusal("returns a tensor that it does not compute, or a view", "returns copies, by .clone()")


def _refusal(does: str, expected: str) -> UnsupportedInputError:
    return UnsupportedInputError("a step to export", f"one that {does}", f"one that {expected}")


def _operand(source: Source, number: int, reach: Reach, inputs: Sequence[int]) -> _Operand:
    if source.kind == "held":
        return _Operand(_path(reach, source.what), -1)
    if source.kind == "given":
        return _Operand(None, inputs.index(source.what))
    if source.kind.endswith("grad"):
        raise _refusal("reads gradients of earlier calls", "begins without gradients")
    return _Operand(f"constant {number}", -1)


def _path(reach: Reach, index: int) -> str:
    """The name by which the step reaches a tensor."""
    tensor = reach.tensors[index]
    paths = (path for path, value in zip(reach.paths, reach.values, strict=True) if value is tensor)
    return _KEY.sub(r".\1\2", next(paths, f"tensor {index}"))


def _others(groups: Groups, sources: Sequence[Source]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for i in groups.others:
        tensor = sources[i].what[0]()
        found[f"constant {i}"] = tensor.detach()
    return found


def _tensor(array: jax.Array) -> torch.Tensor:
    return from_array(array.copy()) if partitioned.is_partitioned(array) else bridge.to_host(array).clone()


def _results(trace: Trace) -> Any:
    numbers = iter(range(len(trace.results)))
    leaves = [Place(next(numbers)) if isinstance(r, Made) else _kept(r) for r in trace.results]
    return tree_of(pytree.tree_unflatten(leaves, trace.structure))


def _kept(recipe: Any) -> Any:
    if isinstance(recipe.value, torch.Tensor):
        raise _refusal("returns a tensor that it does not compute", "returns copies, by .clone()")
    return recipe.value
