"""One run of a step on traced arrays: its program, and the effects that a call of it must have."""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import TensorWeakRef

from ..arrays import partitioned
from ..arrays import seeds as random
from ..arrays.observers import observed_by
from ..arrays.storage_views import Storage
from ..device import placement
from ..errors import UnsupportedInputError
from ..ops.executor import collecting
from ..tensor.module_scopes import ModuleScopes
from ..tensor.tensor import Tensor
from ..tracing import uncompiled
from . import optimizer_state
from .accumulation import Accumulation, Roles
from .cpu_tensors import CpuTensors
from .drawn_seeds import Seeds
from .early_reads import EarlyRead
from .holders import Reach, difference
from .microbatches import Microbatches, Parts, argument_name
from .random_states import RandomStates
from .replay import needed_for, replay
from .result_recipes import Built, Kept, Made, Recipe, Recipes
from .state_capture import Capture, Lifted, Source, operand
from .tensor_changes import Watched


class Trace:
    """A traced step.

    Attributes:
        capture: its operands.
        written: the storages that it writes to.
        program: its computation, a function of all operands.
        results, structure: its results.
        gradients: the leaves whose gradient it replaces, and by what.
        changes: the changes of the tensors themselves.
        slots: the places whose tensor it replaces, and by what.
        modes: the modules that it puts into another mode, by their numbers, and whether that is training.
        left: storages of tensors that it has stored where no call of the program would put them.
        left_in: those tensors.
        assumed: the tensors in torch's memory that its constants may have been computed from.
        effects: what it did that a call of the program would not do.
        early: the values that it reads early, for which its program is.
        errors: of the conditions that the program checks.

    Raises:
        LaterBackward: the step has one backward pass more than `microbatches` says.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        reach: Reach,
        again: Callable[[], Reach],
        given: Sequence[Any],
        structure: Any,
        values: Sequence[float],
        microbatches: Microbatches,
    ) -> None:
        self._step, self._reach, self._again = step, reach, again
        self._given, self._in_structure = given, structure
        self._modes = [module.training for module in reach.modules]
        self.effects: list[str] = []
        self.early: list[EarlyRead] = []
        self.left_in: list[TensorWeakRef] = []
        self.capture = Capture(_sources(reach, given), values)
        for tensor in [*reach.tensors, *given]:
            if _is_leaf(tensor):
                self.capture.leaves[id(tensor)] = tensor, tensor.grad
        self._watched, in_memory = Watched(reach.tensors, given), CpuTensors(reach.tensors)
        self.capture.early.are_allowed = microbatches.count == 1
        drawn, self._seeds = RandomStates([*reach.values, *given]), Seeds(self.capture)
        self._parts = Parts(microbatches, given, reach.tensors, self._name) if microbatches.count > 1 else None
        try:
            with jax.check_tracer_leaks(False):  # tensors have traced arrays until the capture ends
                closed, shape = jax.make_jaxpr(self._run, return_shape=True)()
            self._closed, self._shape = closed, jax.tree.structure(shape)
            self._accumulation = None if self._parts is None else Accumulation(closed, self._roles(), self._parts)
        except BaseException:
            self.capture.restore()
            self._watched.undo(hooks=True)
            reach.restore()
            drawn.restore()
            in_memory.restore()
            raise
        self.capture.restore()
        self._watched.undo()
        self.going_back, sets_a_state = self._seeds.settle()
        if sets_a_state:
            self.effects.append("it gives a random generator a state")
        elif drawn.have_changed():
            self.effects.append("it draws random numbers on the CPU")
        if in_memory.are_written():
            self.effects.append("it writes to a tensor on the CPU")
        self.effects += [f"it may take what comes next from {path}, an iterator" for path in reach.iterators]
        self.assumed = [] if self.effects else in_memory.assumed(self.capture.taken_from_memory())
        self.capture.forget_moved()

    def program(self, operands: dict[int, Any], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
        """Computes the step: arrays of what is written, made, left and checked.

        Args:
            operands: by their numbers.
            wrap: what is done to the function of a part, if it has parts.
        """
        if self._accumulation is None:
            jaxpr = self._closed.jaxpr
            read = replay(self._closed, jaxpr.eqns, {}, {operand: lambda e: operands[e.params["index"]]})
            found = [read(atom) for atom in jaxpr.outvars]
        else:
            found = self._accumulation.program(operands, wrap)
        written, made, left, holds, _ = jax.tree.unflatten(self._shape, found)
        return written, made, left, jnp.concatenate(holds) if holds else None

    def early_values(self, operands: dict[int, Any]) -> list[Any]:
        """Computes what the step reads early, from the operands that this needs, by their numbers."""
        jaxpr = self._closed.jaxpr
        wanted = jaxpr.outvars[len(jaxpr.outvars) - len(self.early) :]
        equations = needed_for(wanted, jaxpr.eqns)
        read = replay(self._closed, equations, {}, {operand: lambda e: operands[e.params["index"]]})
        return [read(atom) for atom in wanted]

    def mesh(self) -> Any:
        """A sharding over several devices that the step gives one of its values; None if it gives none."""
        return partitioned.constraint_in(self._closed.jaxpr)

    def release(self) -> None:
        """Releases what only compiling needs: traced arrays, and arrays that will be donated to the executable."""
        self.capture = Capture({}, [])
        self.early = [read._replace(traced=None) for read in self.early]
        del self.written, self.made, self.gradients
        del self._closed, self._given, self._reach, self._again, self._step, self._watched
        del self._parts, self._accumulation, self._seeds

    # under JAX's trace

    def _run(self) -> Any:
        capture = self.capture
        changed: list[str] = []
        with capture.watching():
            with (
                placement.traced_on(self._device()),
                random.drawn_from(self._seeds),
                torch.autograd.set_multithreading_enabled(False),  # JAX traces in one thread
                optimizer_state.traced_reads(self._reach, capture, changed),
                uncompiled(),
                collecting() as unchecked,
                observed_by(ModuleScopes()),
            ):
                args, kwargs = tree_unflatten(self._taken(self._seeds), self._in_structure)
                results, self.structure = tree_flatten(self._step(*args, **kwargs))
                del args, kwargs
                if self._parts is not None:
                    results = [self._parts.result(v, capture) for v in results]
                    self._parts.let_go(self._name)
            self.effects += changed
            recipes = Recipes(capture, self._reach.tensors, self._given, self._reach.objects)
            self.results = [recipes.of(v) for v in results]
            del results
            self.changes = self._watched.changes(recipes)
            self._note_gradients(recipes)
            self._note_slots(recipes)
            self.left = self._find_left()
            self.made, self.shared = recipes.storages, recipes.shared()
            self.written: list[Lifted] = capture.changed()
            self.early = capture.early.found
            capture.early.check(w.operand for w in self.written)
            self.errors = [error for found in unchecked for error in found.errors]
            return (
                [jnp.reshape(w.storage.array, w.array.shape) for w in self.written],
                [jnp.asarray(s.array) for s in self.made],
                [jnp.asarray(s.array) for s in self.left],
                [found.holds for found in unchecked],
                [found.traced for found in self.early],
            )

    def _taken(self, seeds: Seeds) -> list[Any]:
        """The arguments that the step takes, whole or in parts."""
        parts, capture = self._parts, self.capture
        if parts is None:
            return list(self._given)
        capture.at_backward = (lambda: parts.begin(capture)), (lambda: parts.end(capture, seeds))
        return parts.take(self._given, capture)

    def _name(self, at: int) -> str:
        return argument_name(self._step, self._given, self._in_structure, at)

    def _roles(self) -> Roles:
        """The roles of the program's results, for a step with parts."""
        count = len(self.written) + len(self.made) + len(self.left)
        whole = {i for _, recipe in self.gradients for i, _ in _made_in(recipe)}
        whole |= {i for change in self.changes if change.data is not None for i, _ in _made_in(change.data)}
        new = [*self.results, *(recipe for _, recipe in self.slots)]
        whole |= {i for recipe in new for i, is_all in _made_in(recipe) if not is_all}
        made = [len(self.written) + i for i in range(len(self.made)) if i not in whole]
        once = [i for i in range(count) if i not in made]
        return Roles(once, made, range(count, len(self._closed.jaxpr.outvars)))

    def _device(self) -> torch.device:
        """The device on which the step computes: that of the first tensor that it reaches or is given."""
        tensors = [*self._reach.tensors, *(v for v in self._given if isinstance(v, torch.Tensor))]
        return next((t.device for t in tensors if t.device.type == "jax"), torch.device("jax", 0))

    def _note_gradients(self, recipes: Recipes) -> None:
        self.gradients: list[tuple[torch.Tensor, Recipe]] = []
        self._known: set[int] = set()
        for leaf, before in self.capture.leaves.values():
            after = leaf.grad
            if after is before:
                continue
            if after is not None and after.grad_fn is not None:
                leaf.grad = after = after.detach()
            self.gradients.append((leaf, Kept(None) if after is None else recipes.of(after)))
            self._known.add(id(after))

    def _note_slots(self, recipes: Recipes) -> None:
        """Compares what the step can reach after its run with what it could reach before."""
        before = self._reach
        with self._modes_as_before():
            after = self._again()
        self.slots: list[tuple[int, Recipe]] = []
        if after.structure != before.structure:
            self.effects.append(f"it changes {difference(before.structure, after.structure)}")
        if after.passive != before.passive:
            self.effects.append(f"it changes {difference((before.passive,), (after.passive,))}")
        same = len(after.values) == len(before.values)
        rebuilt: set[int] = set()  # new collections, with all of their contents
        for i, (owner, key, new) in enumerate(zip(after.owners, after.keys, after.values, strict=True)):
            if same and new is before.values[i] and id(owner) not in rebuilt:
                continue
            if isinstance(new, torch.Tensor):
                if new.grad_fn is not None and self.capture.is_born(new):
                    new = self._without_graph(owner, key, new)
                self._known.update((id(new), id(new._base)))  # a view keeps it alive
                if same and id(owner) not in rebuilt:
                    self.slots.append((i, recipes.of(new)))
            elif same and isinstance(new, dict | list | tuple | deque):
                self._note_rebuilt(i, new, recipes, rebuilt, is_inner=id(owner) in rebuilt)
            elif same:
                self.effects.append(f"it replaces {before.paths[i]}")
        if same:  # a replaced collection is restored: the step may have stored into it before
            before.restore({id(v) for v, w in zip(before.values, after.values, strict=True) if v is not w})

    @contextlib.contextmanager
    def _modes_as_before(self) -> Iterator[None]:
        """A context with modules in the modes that they had before the step; notes those that it has changed."""
        modules = self._reach.modules
        now = [module.training for module in modules]
        self.modes = [(i, mode) for i, mode in enumerate(now) if mode != self._modes[i]]
        for i, _ in self.modes:
            modules[i].training = self._modes[i]
        try:
            yield
        finally:
            for i, mode in self.modes:
                modules[i].training = mode

    def _without_graph(self, owner: Any, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that the step has stored, detached from its graph, like results."""
        if tensor._is_view() and not isinstance(owner, tuple):
            owner[key] = tensor = tensor.detach()
        elif not tensor._is_view():
            tensor.detach_()
        return tensor

    def _note_rebuilt(self, place: int, new: Any, recipes: Recipes, rebuilt: set[int], is_inner: bool) -> None:
        rebuilt.add(id(new))
        if is_inner or not any(isinstance(v, torch.Tensor) for v in tree_leaves(new)):
            return
        recipe = recipes.of_collection(new)
        if recipe is None:
            self.effects.append(f"it replaces {self._reach.paths[place]}")
        else:
            self.slots.append((place, recipe))

    def _find_left(self) -> list[Storage]:
        """The storages of tensors that no recipe creates."""
        unknown = self._unknown()
        if unknown:
            del unknown
            gc.collect()  # an autograd graph and its tensors may form a cycle
            unknown = self._unknown()
        for tensor in unknown:
            if tensor.grad_fn is not None and not tensor._is_view():
                tensor.detach_()
        if unknown:
            first = tuple(unknown[0].shape)
            self.effects.append(
                f"it stores {len(unknown)} tensors, the first of shape {first}, which later calls would not"
            )
        del unknown
        if not self.effects:
            return []
        found = [(t, t.view_of_arrays.storage.root) for t in self.capture.survivors()]  # type: ignore[attr-defined]  # on the device
        self.left_in = [TensorWeakRef(t) for t, root in found if self.capture.is_own(root)]
        return list({id(r): r for _, r in found if self.capture.is_own(r)}.values())

    def _unknown(self) -> list[torch.Tensor]:
        return [t for t in self.capture.survivors() if id(t) not in self._known and not self.capture.is_moved(t)]


def _made_in(recipe: Recipe) -> list[tuple[int, bool]]:
    """The storages that a recipe needs, and whether it takes all of each."""
    if isinstance(recipe, Built):
        return [found for item in recipe.items for found in _made_in(item)]
    return [(recipe.storage, recipe.geometry is None)] if isinstance(recipe, Made) else []


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_leaf


def _sources(reach: Reach, given: Sequence[Any]) -> dict[int, Source]:
    """The sources, at each call, of the storages that a step may meet."""
    found: dict[int, Source] = {}
    for i, root in enumerate(reach.roots):
        if root is not None:
            found.setdefault(id(root), Source("held", i))
    for i, value in enumerate(given):
        if isinstance(value, Tensor):
            found.setdefault(id(value.view_of_arrays.storage.root), Source("given", i))
    held = {id(t): i for i, t in enumerate(reach.tensors)}
    for leaf in reach.leaves:
        if isinstance(leaf.grad, Tensor):
            found.setdefault(id(leaf.grad.view_of_arrays.storage.root), Source("held grad", held[id(leaf)]))
    for i, value in enumerate(given):
        if _is_leaf(value) and isinstance(value.grad, Tensor):
            found.setdefault(id(value.grad.view_of_arrays.storage.root), Source("given grad", i))
    return found


def require_on_device(reach: Reach) -> None:
    """Raises for a module that is not on the device: its results would be constants of the program."""
    for module in reach.modules:
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None or isinstance(tensor, Tensor):
                continue
            got, expected = f"one on {tensor.device}", "one on jax: move modules with .to('jax')"
            if is_traceable_wrapper_subclass(tensor):  # such as torch's DTensor
                got = f"a {type(tensor).__name__}"
                expected = (
                    "a tensor of the device: partition the model with jaten_ops.distributed, or use torch.compile"
                )
            raise UnsupportedInputError(f"a holder's tensor, {type(module).__name__}.{name}", got, expected)
