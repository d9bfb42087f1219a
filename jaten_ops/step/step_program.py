"""The executable of a step: a call collects its operands and stores its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.utils._pytree import tree_unflatten

from ..arrays import bridge, partitioned
from ..arrays.storage_views import Storage, onto_one_mesh, owned_arrays, put_all
from ..errors import UnsupportedInputError
from ..ops.executor import raise_first_broken
from ..xla import cpu_client, executables, malloc
from ..xla.progress import announced
from ..xla.x64 import Enabled
from . import tensor_changes
from .drawn_seeds import drawn_at_call
from .early_program import EarlyProgram, Met
from .holders import Reach
from .lowered_step import groups_of, in_own_memory, lowered
from .result_recipes import Made, Outcome
from .stand_ins import come_home
from .state_capture import Source
from .torch_memory import MOVE, require_apart, write_lent
from .trace import Trace

Executables = dict[Any, jax.stages.Compiled]


class Operands(NamedTuple):
    """The operands of one call of a program.

    Attributes:
        written, read: the storages that are written to, and those that are not.
        others: arrays that are in no storage.
    """

    written: list[Storage]
    read: list[Storage]
    others: list[Any]


class Missing(Exception):
    """An operand has moved or changed its type."""


class StepProgram:
    """A step's executable for one combination of shapes and settings.

    Args:
        trace: the traced step.
        reach, given: the state and arguments with which it was traced.
        known: executables by their programs' text and nesting, to which this one is added.
        in_memory: whether it computes in torch's memory.
    """

    def __init__(
        self, trace: Trace, reach: Reach, given: Sequence[Any], known: Executables, in_memory: bool = False
    ) -> None:
        self.trace = trace
        self._in_memory = in_memory
        self.repeats = not trace.effects
        self._conditions = trace.capture.conditions
        storages = {found.operand: found for found in trace.capture.lifted.values()}
        self._groups = groups_of(trace)
        self._written, self._read = self._groups.written, self._groups.read
        self._sources = [source for source, _ in trace.capture.operands]
        if in_memory and any(source.kind in ("met", "storage") for source in self._sources):
            raise UnsupportedInputError(
                "a step on the CPU", "a tensor of the device, which no holder has", f"one on the CPU, {MOVE}"
            )
        self._generators = [
            (_generator(generator, reach, given), any(generator is other for other in trace.going_back))
            for generator in (self._sources[i].what for i in self._groups.seeds)
        ]
        self._assumed = trace.assumed
        self._storages = storages
        self._shapes = [[storages[i].array.shape for i in part] for part in (self._written, self._read)]
        self._from_written, self._from_read = self._finder(self._written), self._finder(self._read)
        self._apart = [
            [at for at, i in enumerate(part) if self._sources[i].kind != "held"] for part in (self._written, self._read)
        ]
        self._geometries = {
            i: _geometry(s.kind, reach, given, s.what) for i, s in enumerate(self._sources) if s.kind.endswith("grad")
        }
        held = {id(t): i for i, t in enumerate(reach.tensors)}
        at = {id(v): i for i, v in enumerate(given) if isinstance(v, torch.Tensor)}
        self._gradients = [(_finder(leaf, held, at), recipe) for leaf, recipe in trace.gradients]
        self._others_had = [
            (leaf, gradient is not None)
            for leaf, gradient in trace.capture.leaves.values()
            if id(leaf) not in held and id(leaf) not in at
        ]
        self._make_result = _maker(trace.structure)
        self._values: list[float] | None = None  # the numbers of the last call
        self._array: Any = None
        self._exporters: list[Callable[[jax.Array], torch.Tensor]] | None = None
        roots = [found.storage for found in storages.values()]
        self._mesh = onto_one_mesh(roots, trace.mesh()) if partitioned.MET and not in_memory else None
        self._shardings = self._shardings_of(self._written), self._shardings_of(self._read)
        self._has_others = len(jax.local_devices()) > 1  # to which its operands may be moved
        self.executable = self._compiled(known)
        self._early = self._early_program(known) if trace.early and self.repeats else None
        self._storages = {}
        trace.release()

    def _compiled(self, known: Executables) -> jax.stages.Compiled:
        malloc.retain()
        written, read = ([self._storages[i].storage.array for i in part] for part in (self._written, self._read))
        others = [self._onto_mesh(self._sources[i].what[2]) for i in self._groups.others]
        places = None if self._mesh is None else self._shardings[0]
        in_memory = self._in_memory
        found, text = lowered(self.trace, self._groups, written, read, others, places=places, in_memory=in_memory)
        # the text has neither nesting nor devices
        key = text, found.in_tree, found.out_tree, in_memory, executables.devices_of_program(found)
        if key not in known:
            with Enabled():
                known[key], _ = executables.compiled(found)
        return known[key]

    def _early_program(self, known: Executables) -> EarlyProgram:
        """The program of the values for which this one is."""
        arrays = {i: self._storages[i].storage.array for i in self._read}
        arrays |= {i: self._onto_mesh(self._sources[i].what[2]) for i in self._groups.others}
        if not self._in_memory:
            return EarlyProgram(self.trace, self._groups, arrays, known)
        with cpu_client.out_of_mesh(), jax.default_device(cpu_client.device()):
            return EarlyProgram(self.trace, self._groups, {i: in_own_memory(a) for i, a in arrays.items()}, known)

    # a call

    def operands(self, reach: Reach, given: Sequence[Any], values: Sequence[float], met: Met) -> Operands | None:
        """The operands of a call; None if this is not the program for it.

        Args:
            reach, given, values: what the step reaches, its arguments, and the numbers of groups.
            met: values that programs have computed in this call, which they share.
        """
        if not self._conditions.hold(values) or not all(a.holds(reach) for a in self._assumed):
            return None
        try:
            written, read = self._from_written(reach, given), self._from_read(reach, given)
            if [s.array.shape for s in written] != self._shapes[0] or [s.array.shape for s in read] != self._shapes[1]:
                return None
            if (partitioned.MET or self._has_others) and not self._in_memory and not self._is_in_place(written, read):
                return None
            for i, geometry in self._geometries.items():
                if _geometry(self._sources[i].kind, reach, given, self._sources[i].what) != geometry:
                    return None
            in_memory = [self._onto_mesh(self._borrowed(self._sources[i])) for i in self._groups.others]
        except Missing:
            return None
        if any((leaf.grad is not None) is not had for leaf, had in self._others_had):
            return None
        if self._early is not None and not self._early.holds(read, in_memory, met):
            return None
        if reach.memory is not None:
            others = [written[i] for i in self._apart[0]] + [read[i] for i in self._apart[1]]
            require_apart(written, read, others, reach.memory)
        return Operands(written, read, in_memory)

    def _shardings_of(self, part: list[int]) -> list[Any]:
        return [self._storages[i].storage.array.sharding for i in part]

    def _is_in_place(self, written: list[Storage], read: list[Storage]) -> bool:
        """True if the operands are on the devices for which the program was compiled, or could be moved there."""
        if self._mesh is None:
            places = zip((*written, *read), (*self._shardings[0], *self._shardings[1]), strict=True)
            return all(s.array.sharding.device_set == sharding.device_set for s, sharding in places)
        for part, shardings in zip((written, read), self._shardings, strict=True):
            for storage, sharding in zip(part, shardings, strict=True):
                if not partitioned.is_partitioned(storage.array):
                    storage.move(partitioned.put_over(storage.array, sharding))
                elif storage.array.sharding != sharding:
                    return False
        return True

    def is_outdated(self) -> bool:
        """True if no call can fit any more."""
        return any(a.is_outdated() for a in self._assumed)

    def _finder(self, part: list[int]) -> Callable[[Reach, Sequence[Any]], list[Storage]]:
        """Finds the storages of some operands; those of holders, which are most, all at once."""
        sources = [self._sources[i] for i in part]
        if all(source.kind == "held" for source in sources):
            indices = [source.what for source in sources]
            return lambda reach, _: [reach.roots[i] for i in indices]  # type: ignore[misc]  # it is on the device
        return lambda reach, given: [self._find(source, reach, given) for source in sources]

    def _find(self, source: Source, reach: Reach, given: Sequence[Any]) -> Storage:
        kind, what = source
        if kind == "held":
            root = reach.roots[what]
            if root is None:
                raise Missing
            return root
        if kind == "met":
            ref, root = what
            tensor = ref()
            if tensor is not None and tensor.view_of_arrays.storage.root is not root:
                raise Missing
            return root  # type: ignore[no-any-return]  # the pair has no types
        tensor = given[what] if kind.startswith("given") else reach.tensors[what]
        if kind.endswith("grad"):
            tensor = tensor.grad
        view = reach.place_of(tensor)
        if view is None:
            raise Missing
        return view.storage.root

    def _borrowed(self, source: Source) -> Any:
        ref, _, example = source.what
        tensor = ref()
        if tensor is None:
            raise Missing
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        array = bridge.borrow(copy, cpu_client.device()) if self._in_memory else bridge.uncommitted(copy)
        if (array.shape, array.dtype) != (example.shape, example.dtype):
            raise Missing
        return array

    def _onto_mesh(self, array: Any) -> Any:
        return array if self._mesh is None else partitioned.beside(array, (), self._mesh)

    def _operand(self, operands: Operands, index: int) -> Storage:
        """The storage of one operand, by its number."""
        if index in self._written:
            return operands.written[self._written.index(index)]
        return operands.read[self._read.index(index)]

    def __call__(self, operands: Operands, reach: Reach, given: Sequence[Any], values: Sequence[float]) -> Any:
        """Runs the executable, and stores its results where the step would have."""
        trace = self.trace
        drawn = [drawn_at_call(find(reach, given), goes_back) for find, goes_back in self._generators]
        arrays = [s.array for s in operands.written] if self._in_memory else owned_arrays(operands.written)
        with Enabled():
            written, made, left, holds = self.executable(
                arrays, [s.array for s in operands.read], operands.others, self._array_of(values), drawn
            )
        if self._in_memory:
            write_lent(operands.written, written)
            made = self._exported(made)
        else:
            put_all(operands.written, written)
        put_all(trace.left, left)
        if self._in_memory:
            come_home(tensor for ref in trace.left_in if (tensor := ref()) is not None)
        held = list(reach.tensors) if trace.slots else reach.tensors
        outcome = Outcome(
            made, trace.shared, held, given, values, lambda i: self._operand(operands, i), self._in_memory
        )
        tensor_changes.make(trace.changes, reach, given, outcome)
        for find, recipe in self._gradients:
            find(reach, given).grad = outcome.make(recipe)
        if self.repeats:
            tensors = [outcome.make(recipe) for _, recipe in trace.slots]
            for (place, recipe), found in zip(trace.slots, tensors, strict=True):
                reach.replace(place, found, is_new=isinstance(recipe, Made))
        for i, mode in trace.modes:
            reach.modules[i].training = mode
        results = [outcome.make(recipe) for recipe in trace.results]
        if trace.errors:
            raise_first_broken(holds, trace.errors)
        return self._make_result(results)

    def _exported(self, made: Sequence[jax.Array]) -> list[torch.Tensor]:
        """New arrays as tensors in torch's memory."""
        if self._exporters is None:
            self._exporters = [bridge.exporter(bridge.TORCH_DTYPES[a.dtype], a.size) for a in made]
        return [export(array) for export, array in zip(self._exporters, made, strict=True)]

    def _array_of(self, values: Sequence[float]) -> Any:
        """The numbers of parameter groups as an operand: the same array as long as they do not change."""
        if values != self._values:
            numbers = [values[self._sources[i].what] for i in self._groups.numbers]
            array = np.array(numbers, np.float64)
            self._array = array if self._in_memory else jax.device_put(array)
            self._values = list(values)
        return self._array


def _maker(structure: Any) -> Callable[[list[Any]], Any]:
    """Puts results into the structure that the step returns."""
    if structure.is_leaf():
        return itemgetter(0)
    return lambda results: tree_unflatten(results, structure)


def _finder(
    leaf: torch.Tensor, held: dict[int, int], given: dict[int, int]
) -> Callable[[Reach, Sequence[Any]], torch.Tensor]:
    """Finds a leaf at a call."""
    if id(leaf) in held:
        index = held[id(leaf)]
        return lambda reach, _: reach.tensors[index]
    if id(leaf) in given:
        at = given[id(leaf)]
        return lambda _, arguments: arguments[at]  # type: ignore[no-any-return]  # a tensor among arguments
    return lambda *_: leaf


def _generator(
    generator: torch.Generator | int | None, reach: Reach, given: Sequence[Any]
) -> Callable[[Reach, Sequence[Any]], torch.Generator | int | None]:
    """Finds a generator at a call; a seed is itself."""
    if generator is None or isinstance(generator, int):
        return lambda *_: generator
    for i, value in enumerate(reach.values):
        if value is generator:
            return lambda reach, _: reach.values[i]
    for i, value in enumerate(given):
        if value is generator:
            return lambda _, given: given[i]  # type: ignore[no-any-return]  # a generator among arguments
    return lambda *_: generator


def _geometry(kind: str, reach: Reach, given: Sequence[Any], index: int) -> Any:
    """Shape, strides and offset of a gradient in its storage."""
    gradient = (given[index] if kind.startswith("given") else reach.tensors[index]).grad
    view = reach.place_of(gradient)
    return None if view is None else (view.shape, view.strides(), view.offset)


__all__ = ["Operands", "StepProgram", "announced"]
