"""`compile_step`: it traces a step, and chooses the program for each call."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import torch
from jax._src.config import debug_nans, disable_jit  # private: what is public takes longer
from torch.autograd import forward_ad, profiler
from torch.utils._pytree import tree_map_only, tree_unflatten

from .. import registry
from ..arrays.observers import observers
from ..errors import UnsupportedInputError
from ..kernel_base.checks import READS_OF_TRACERS, what_is_read, where_read
from ..registry import active_overrides
from ..tracing import is_traced_now, opaque
from ..xla import x64
from ..xla.progress import announced
from . import rehearsal
from .arguments import Structure, argument_key, flat, is_on_device, is_searched, of_call, shared
from .code_names import Names
from .early_program import Met
from .holders import Reach, difference
from .microbatches import LaterBackward, Microbatches
from .numbers import refusal
from .optimizer_state import LateOptimizer, UnmadeState, settle
from .stand_ins import at_home, in_place_of, is_in_memory
from .state_capture import check_given
from .step_program import Executables, Operands, StepProgram
from .trace import Trace, require_on_device

T = TypeVar("T")

_log = logging.getLogger("jaten_ops.step")

_ONE_AT_A_TIME = threading.RLock()  # steps may share tensors, and those of a traced step hold tracers
_WARNED_AT = 4  # compiles of one step
_MOST_PROGRAMS = 256
_MOST_OF_A_KEY = 64  # programs for one combination of shapes, which differ in values
_MOST_TEXTS = 16  # executables of programs that are traced again at each call


def compile_step(step: Callable[..., Any], *holders: Any, microbatches: int = 1) -> Callable[..., Any]:
    """Compiles a training step into one executable: forward, `backward()`, clipping, the optimizer.

    The first call runs `step` eagerly, so that optimizers create their state; if a gradient scaler may skip that, a
    later call does. The second call traces the step, and so does each new combination of argument shapes, flags and
    `training`. Writes to tensors happen in place, without a second copy of them; values stored in attributes, dicts and
    lists are stored. Modules, optimizers, scalers, settings and other tensors are found through the names in the step's
    code.

    Floats in an optimizer's groups (`lr`, `momentum`, `betas`, `weight_decay`) are operands: changing them between
    calls compiles nothing. Integers and flags, and numbers elsewhere, are constants of the program. Counts that
    optimizers keep on the CPU move to the device.

    Where all modules and other tensors are plain ones on the CPU, and no argument is on the device, the step computes
    in their memory: it reads without a copy, and copies the results there, once. All stay the objects that they are, at
    their addresses; results, gradients and new states are CPU tensors.

    A step that changes Python objects (appends to a list, counts in an attribute that it reads), takes what is next
    from an iterator, or draws random numbers on the CPU, is traced again at each call, with a warning: return such
    values, or take them as arguments, instead. End the step with `zero_grad()` if the gradients are not needed after
    it: then they never leave the executable.

    With `microbatches` one call takes the memory of one part of the batch: the executable loops over the parts up to
    the end of `backward()`, replaces the gradients that were added by their mean, and runs the rest once. If the loss
    is a mean, this is the step on the whole batch. Tensors among the arguments are split along their first dimension,
    unless they have none or the step also reaches them without arguments. Buffers are carried from part to part, each
    part draws its own random numbers. Results that are floats without dimensions are averaged, those with a part's
    size in the first dimension concatenated. docs/guides/training_steps.md has the details.

    Args:
        step: takes and returns tensors of any shape and dtype, in any structure, and other values. It reads the value
            of no tensor (`item()`, `if loss > 1:`) but integers and truth values made of what it does not change, for
            each of which it is compiled (`x[mask]`). On the device, CPU tensors among its arguments move there.
        holders: modules, optimizers and other objects that the step reaches without naming them in its code.
        microbatches: the number of equal parts of the batch.

    Returns:
        A function of the same arguments. Its results, with the shapes and dtypes of `step`'s, have no autograd graph.
        Threads call it one after another. If the step raises in a later call than the first, tensors, optimizers and
        attributes are as before. ATen's errors about values (an index out of range) are raised after the step.

    Raises:
        UnsupportedInputError: tensors are on two devices, the step reads a value, or writes to memory of the CPU that
            an argument shares. With microbatches: an argument cannot be split, there is an update before the last
            `backward()`, or a part's value is used otherwise.

    Example:
        >>> w = torch.zeros((), device="jax", requires_grad=True)
        >>> optimizer = torch.optim.SGD([w], lr=0.5)
        >>> def step(target):
        ...     loss = (w - target) ** 2
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     return loss
        >>> step = jaten_ops.compile_step(step)
        >>> [step(torch.tensor(2.0)).item() for _ in range(3)]
        [4.0, 0.0, 0.0]
    """
    return Step(step, holders, microbatches)


def _is_transformed() -> bool:
    """True in a transform of torch.func, or where tensors may have tangents."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class Step:
    """A compiled step, as `compile_step` returns it."""

    def __init__(self, step: Callable[..., Any], holders: Sequence[Any], microbatches: int = 1) -> None:
        if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
            raise UnsupportedInputError("compile_step", f"microbatches={microbatches!r}", "an int, 1 at least")
        self._step = step
        self._holders = list(holders)
        self._names = Names()
        self._programs: dict[Any, list[StepProgram]] = {}
        self._signatures: dict[Any, int] = {}
        self._structures: dict[int, Any] = {}
        self._executables: Executables = {}
        self._objects: list[Any] = []  # the arguments of the last call in which the walk searches
        self._reach: Reach | None = None
        self._id = -1
        self._microbatches = Microbatches(microbatches)
        self._warm = microbatches > 1  # an eager call would take the memory of the whole batch
        self._compiles = self._repeats = 0
        self._last: Any = None

    @opaque
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if observers() or is_traced_now() or _is_transformed():  # a part of another program, or of torch's derivatives
            if self._microbatches.count > 1:
                raise UnsupportedInputError(
                    "a step with microbatches", "a call in another program or a transform", "one outside of it"
                )
            return self._step(*args, **kwargs)
        with _ONE_AT_A_TIME:
            given, structure = flat(args, kwargs)
            if self._warm and not (debug_nans.value or disable_jit.value or torch.is_anomaly_enabled()):
                if profiler._is_profiler_enabled:
                    with profiler.record_function(f"jaten step {self.name}"):
                        return self._call(given, structure)
                return self._call(given, structure)
            self._add_holders(given)
            given = of_call(given, self._placed(self._reached(), given))
            result = self._as_it_is(given, structure)  # where errors name a line of the program
            self._warm = True
            return tree_map_only(torch.Tensor, _without_graph, result)

    @property
    def is_warm(self) -> bool:
        """True if the step has been called, so that optimizers have their state."""
        return self._warm

    @property
    def name(self) -> str:
        """The name of the step, for messages."""
        return str(getattr(self._step, "__qualname__", type(self._step).__name__))

    def executable_for(self, *args: Any, **kwargs: Any) -> jax.stages.Compiled:
        """The executable that a call would run. It is compiled if need be, but not run, and nothing is changed.

        Args:
            args, kwargs: those of the call, tensors of any shape and dtype and anything else that the step takes.

        Raises:
            RuntimeError: an optimizer in it has no state yet.

        Example:
            >>> step = jaten_ops.compile_step(lambda x: (x @ x).sum())
            >>> step.executable_for(torch.ones(8, 8, device="jax")).memory_analysis().argument_size_in_bytes
            256
        """
        with _ONE_AT_A_TIME:
            reach, given, structure = self._met(args, kwargs)
            found = self._program(reach, given, structure)
            if found is not None:
                return found[0].executable
            with self._undone(reach), self._on_device(reach, given) as met:
                trace = self._traced(met, given, structure, reach.memory is not None)
                return StepProgram(trace, met, given, self._executables, reach.memory is not None).executable

    def traced_for(self, args: Any, kwargs: Any, use: Callable[[Trace, Reach, list[Any], Structure], T]) -> T:
        """The result of a function of the trace of a call, and of what it reaches and is given. Nothing is changed.

        Raises:
            RuntimeError: an optimizer in it has no state yet.
        """
        with _ONE_AT_A_TIME:
            reach, given, structure = self._met(args, kwargs)
            with self._undone(reach), self._on_device(reach, given, is_kept=True) as met:
                return use(self._traced(met, given, structure, reach.memory is not None), met, given, structure)

    def _met(self, args: Any, kwargs: Any) -> tuple[Reach, list[Any], Structure]:
        """Everything that a call would reach, and its arguments, for callers that do not run it."""
        leaves, structure = flat(args, kwargs)
        reach = self._look(leaves)
        return reach, of_call(leaves, reach), structure

    @contextlib.contextmanager
    def _undone(self, reach: Reach) -> Iterator[None]:
        """A context in which the step is traced for a caller that does not run it."""
        try:
            with x64.tracing(), announced("a step"):
                yield
        except (LateOptimizer, UnmadeState) as error:
            raise RuntimeError("an optimizer of the step has no state yet. Fix: call the step once before") from error
        except READS_OF_TRACERS as error:
            raise refusal(what_is_read(error), where_read(error)) from error
        finally:
            reach.restore()

    def lowered_over(self, where: Any, absent: Any, args: Any, kwargs: Any) -> tuple[jax.stages.Lowered, str]:
        """The program that a call after the first would run over a mesh, and its text. Nothing is run or changed.

        Args:
            where: a sharding over the mesh.
            absent: one of the devices of `cpu_client.absent`, if those of the mesh are not there.
            args, kwargs: those of the call.
        """
        with _ONE_AT_A_TIME, x64.tracing(), announced("a step"):
            leaves, structure = flat(args, kwargs)
            given = [rehearsal.argument_without_values(v) if isinstance(v, torch.Tensor) else v for v in leaves]
            self._objects = [v for v in given if is_searched(v)]
            try:
                with rehearsal.undone(self._reached(), given):
                    trace = rehearsal.second_call(
                        lambda: self._look(given, on_device=True),
                        lambda reach: self._traced(reach, given, structure),
                        self._holders,
                    )
                    return rehearsal.lowered_over(trace, where, absent)
            except READS_OF_TRACERS as error:
                raise refusal(what_is_read(error), where_read(error)) from error
            finally:
                self._reach = None

    def _traced(self, reach: Reach, given: Sequence[Any], structure: Structure, in_memory: bool = False) -> Trace:
        step, parts = at_home(self._step) if in_memory else self._step, self._microbatches
        while True:
            try:
                return Trace(step, reach, self._reached, given, structure.of, reach.numbers(), parts)
            except LaterBackward:
                self._microbatches.passes += 1

    def _as_it_is(self, given: list[Any], structure: Structure) -> Any:
        args, kwargs = tree_unflatten(given, structure.of)
        return self._step(*args, **kwargs)

    def _call(self, given: list[Any], structure: Structure) -> Any:
        reach, objects = self._reach, [v for v in given if is_searched(v)]
        if objects or self._objects:
            self._objects, reach = objects, None
        if reach is None or not reach.is_current() or self._is_elsewhere(reach, given):
            reach = self._look(given)
        given = of_call(given, reach)
        found = self._program(reach, given, structure)
        if found is None:  # if the step fails, everything is restored to its state now
            reach = self._look(given)
            found = self._program(reach, given, structure)
        if found is not None:
            program, operands, values = found
            return program(operands, reach, given, values)
        return self._trace(self._key(reach, given, structure), reach, given, structure)

    def _is_elsewhere(self, reach: Reach, given: Sequence[Any]) -> bool:
        """True if these arguments have the step compute where it did not before."""
        if reach.memory is not None:
            return is_on_device(given)
        return not reach.tensors and not is_on_device(given)

    def _program(
        self, reach: Reach, given: list[Any], structure: Structure
    ) -> tuple[StepProgram, Operands, list[float]] | None:
        values = reach.numbers()
        met: Met = {}
        for program in self._programs.get(self._key(reach, given, structure), ()):
            operands = program.operands(reach, given, values, met)
            if operands is not None:
                return program, operands, values
        return None

    def _key(self, reach: Reach, given: list[Any], structure: Structure) -> Any:
        """The key by which a call finds its program; the programs themselves compare the rest."""
        what = tuple([argument_key(v, reach) for v in given])
        gradients = [t.grad is not None for t in reach.leaves]
        gradients += [v.grad is not None for v in given if isinstance(v, torch.Tensor) and v.is_leaf]
        return self._id, structure, what, shared(given, reach), tuple(gradients), _settings(reach)

    def _add_holders(self, given: Sequence[Any]) -> None:
        """Takes note of the holders and other objects among the arguments."""
        self._objects = [v for v in given if is_searched(v)]
        for value in given:
            known = any(value is holder for holder in self._holders)
            if isinstance(value, torch.nn.Module | torch.optim.Optimizer | torch.amp.GradScaler) and not known:
                self._holders.append(value)

    def _placed(self, reach: Reach, given: Sequence[Any]) -> Reach:
        """The same, in torch's memory if that is where all of its tensors are: then the step computes there."""
        if is_in_memory(reach, given):
            if is_on_device(given) or jax.default_backend() != "cpu":
                require_on_device(reach)
            else:
                reach.lend()
        return reach

    @contextlib.contextmanager
    def _on_device(self, reach: Reach, given: Sequence[Any], is_kept: bool = False) -> Iterator[Reach]:
        """A context in which a step that computes in torch's memory is one on the device, and what it then reaches."""
        if reach.memory is None:
            yield reach
        else:
            with in_place_of(reach.memory, reach.tensors, given, is_kept=is_kept):
                yield self._reached()

    def _look(self, given: Sequence[Any], *, on_device: bool = False) -> Reach:
        """Everything that the step reaches now."""
        self._add_holders(given)
        reach = self._reached()
        if not on_device:
            reach = self._placed(reach, given)
        if reach.memory is None:
            if settle(reach):
                reach = self._reached()
            require_on_device(reach)
        signature = reach.signature()
        self._id = self._signatures.setdefault(signature, len(self._signatures))
        self._structures[self._id] = signature
        self._reach = reach
        return reach

    def _reached(self) -> Reach:
        return Reach(self._step, [*self._holders, *self._objects], self._names)

    def _trace(self, key: Any, reach: Reach, given: list[Any], structure: Structure) -> Any:
        values = reach.numbers()
        for value in given:
            if isinstance(value, torch.Tensor):
                check_given(value)
        try:
            with x64.tracing(), announced("a step"):
                with self._on_device(reach, given) as met:
                    trace = self._traced(met, given, structure, reach.memory is not None)
                    try:
                        program = StepProgram(trace, met, given, self._executables, reach.memory is not None)
                    except BaseException:
                        met.restore()
                        raise
                try:
                    operands = program.operands(reach, given, values, {})
                    assert operands is not None, "a program does not fit what it was traced with"
                    results = program(operands, reach, given, values)
                except BaseException:
                    reach.restore()
                    raise
        except LateOptimizer as late:
            self._holders.append(late.optimizer)
            self._reach = None
            return self._call(given, structure)
        except UnmadeState:
            return self._as_it_is(given, structure)
        except READS_OF_TRACERS as error:
            raise refusal(what_is_read(error), where_read(error)) from error
        self._tell(key, program)
        if program.repeats:
            before = [known for known in self._programs.get(key, ()) if not known.is_outdated()]
            self._programs[key] = [*before, program][-_MOST_OF_A_KEY:]
        while len(self._programs) > _MOST_PROGRAMS:
            self._programs.pop(next(iter(self._programs)))
        while len(self._executables) > _MOST_TEXTS:
            self._executables.pop(next(iter(self._executables)))
        return results

    def _tell(self, key: Any, program: StepProgram) -> None:
        """Logs a compile; warns at the fourth, and about a step that is traced again and again."""
        self._compiles += 1
        name = self.name
        why = "the first" if self._last is None else self._what_changed(key, program)
        self._last = key
        _log.info("%s: compile %d: %s", name, self._compiles, why)
        if not program.repeats:
            self._repeats += 1
            if self._repeats == 3:  # objects that it makes only once are made in the first calls
                _log.warning(
                    "%s is traced again at each call, which is slow, since %s. Python does not run in a compiled step."
                    " Fix: return such values from the step, and store them outside.",
                    name, "; ".join(program.trace.effects),
                )  # fmt: skip
        elif self._compiles - self._repeats == _WARNED_AT:
            _log.warning(
                "%s is compiled for the %dth time: %s. Fix: pass changing values as tensors, or pad to one shape.",
                name, self._compiles, why,
            )  # fmt: skip

    def _what_changed(self, key: Any, program: StepProgram) -> str:
        old, new = self._last, key
        if old[0] != new[0]:
            before, after = self._structures[old[0]], self._structures[new[0]]
            found = difference(before[0], after[0])
            return found if found != "nothing" else difference(before[1:], after[1:])
        names = (
            "",
            "the structure of the arguments",
            "arguments",
            "which share memory",
            "which gradients there are",
            "settings",
        )
        for what, a, b in zip(names, old, new, strict=True):
            if a != b:
                return f"{what}: {a} is now {b}"
        read = f"a value that it reads{program.trace.early[0].where}, " if program.trace.early else ""
        return f"{read}numbers of a group that are compared, or tensors that no holder has"


def _settings(reach: Reach) -> Any:
    """The settings of torch that are part of a program."""
    device = "jax" if reach.memory is None else "cpu"
    autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    registered = active_overrides.active(), registry.replacements()
    return *modes, torch.get_default_dtype(), autocast, *registered


def _without_graph(result: torch.Tensor) -> torch.Tensor:
    """A result of the first call, which runs as it is, as later calls give it: an argument of the next."""
    return result if result.is_leaf else result.detach()
