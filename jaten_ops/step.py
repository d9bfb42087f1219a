"""A whole training step, with its backward pass and its optimizer, as one XLA executable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import allocator, executables, random, x64
from .aliasing import Storage, owned
from .dispatch import borrowed_copy
from .errors import UnsupportedInputError
from .execute import collecting, raise_first_broken
from .ordering import flattened, has_turns, in_turn, ordered
from .progress import announced
from .tensor import Tensor, array_of, from_array
from .tracing import opaque, set_compiling
from .x64 import Enabled

Holder = torch.nn.Module | torch.optim.Optimizer | torch.Tensor


def compile_step(step: Callable[..., Any], *holders: Holder) -> Callable[..., Any]:
    """A training step as one executable: forward, `backward()`, clipping, the optimizer, all that it does.

    The first call runs `step` as it is, so that optimizers make their state. The second traces it, and each new
    combination of argument shapes, hyperparameters and `training` flags does again. What the step writes to the
    tensors of the holders is written; their old arrays are donated, so there is no second copy of them.

    A learning rate that changes should be a tensor on the device (`lr=torch.tensor(1e-3, device="jax")`), since a
    number is part of the program; SGD reads one as a number if it has `foreach=False`. Optimizers take
    `capturable=True`, which keeps their step count on the device. End the step with `zero_grad()` if the gradients are
    not needed after it: then they never leave the executable.

    Args:
        step: takes and returns tensors, in any structure, and what else it likes. It must not read values (`item()`,
            `if loss > 1:`), and what it does to Python objects happens only when it is traced.
        holders: the modules, optimizers and tensors, all on the device `jax`, whose values it reads or changes. Other
            tensors that it reads are constants of the program.

    Returns:
        A function of the same arguments, whose results have no graph. What ATen refuses for the values of tensors (an
        index out of range) it raises after the step.

    Raises:
        UnsupportedInputError: a holder's tensor is on another device, or the step reads a value.
    """
    return Step(step, holders)


class Step:
    """What `compile_step` returns."""

    def __init__(self, step: Callable[..., Any], holders: Sequence[Holder]) -> None:
        self._step = step
        self._modules = [m for h in holders if isinstance(h, torch.nn.Module) for m in h.modules()]
        self._optimizers = [h for h in holders if isinstance(h, torch.optim.Optimizer)]
        self._tensors = [h for h in holders if isinstance(h, torch.Tensor)]
        self._compiled: dict[Any, _Program] = {}
        self._places: list[tuple[dict[Any, Any], Any, torch.Tensor]] | None = None
        self._states: list[Any] = []
        self._warm = False

    @opaque
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._warm:
            result = self._step(*args, **kwargs)
            self._warm = True
            return result
        leaves, structure = tree_flatten((args, kwargs))
        call = structure, tuple([_described(v) for v in leaves]), self._settings()
        state = _State(self._held())
        program = self._compiled.get((state.key(), call))
        if program is None:
            self._places = None  # there may be new ones
            state = _State(self._held())
            program = self._compiled[state.key(), call] = _Program(
                self._step, self._optimizers, state, leaves, structure
            )
        return program(state, [v for v in leaves if isinstance(v, torch.Tensor)])

    def _held(self) -> list[torch.Tensor]:
        """The tensors of the holders, each once. They are looked up again when one has been replaced."""
        states = [o.state for o in self._optimizers]
        if (
            self._places is None
            or any(old is not new for old, new in zip(self._states, states, strict=True))
            or any(owner.get(name) is not tensor for owner, name, tensor in self._places)
        ):
            self._states = states
            found = [
                (owner, name, tensor)
                for owner in self._dicts()
                for name, tensor in owner.items()
                if isinstance(tensor, torch.Tensor)
            ]
            self._places = list({id(tensor): (owner, name, tensor) for owner, name, tensor in found}.values())
        return [tensor for _, _, tensor in self._places]

    def _dicts(self) -> Iterator[dict[Any, Any]]:
        """Where modules and optimizers keep their tensors."""
        for module in self._modules:
            yield module._parameters
            yield module._buffers
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield dict(enumerate(group["params"]))
                yield group
            yield from optimizer.state.values()
        yield dict(enumerate(self._tensors))

    def _settings(self) -> Any:
        """What of modules and optimizers is part of the program."""
        numbers = [
            (name, value if isinstance(value, int | float | bool | str | tuple | type(None)) else None)
            for o in self._optimizers
            for group in o.param_groups
            for name, value in group.items()
            if name != "params"
        ]
        training = tuple([m.training for m in self._modules])
        autocast = torch.is_autocast_enabled("jax"), torch.get_autocast_dtype("jax")
        return training, tuple(numbers), torch.is_grad_enabled(), torch.get_default_dtype(), autocast


def _described(value: Any) -> Any:
    """What of an argument is part of the program."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.requires_grad
    if value.__hash__ is None:
        raise UnsupportedInputError("an argument of the step", type(value).__name__, "a tensor or a hashable value")
    return type(value), value


class _State:
    """The storages of some tensors, each once, and the gradients that lie in others."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.leaves: list[Tensor] = []
        found: dict[int, Storage] = {}
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise UnsupportedInputError(
                    "a holder's tensor", f"one on {tensor.device}",
                    "one on jax: move modules with .to('jax'), make optimizers with capturable=True",
                )  # fmt: skip
            root = tensor.view_of_arrays.storage.root
            found[id(root)] = root
            if tensor.requires_grad and tensor.is_leaf:
                self.leaves.append(tensor)
        for leaf in self.leaves:
            if leaf.grad is not None:
                root = leaf.grad.view_of_arrays.storage.root  # type: ignore[attr-defined]  # it is on leaf's device
                found[id(root)] = root
        self.storages = list(found.values())

    def key(self) -> Any:
        has_gradient = tuple([leaf.grad is not None for leaf in self.leaves])
        return has_gradient, tuple([(s.array.shape, s.array.dtype) for s in self.storages])

    def arrays(self) -> list[jax.Array]:
        """The values, for an executable to which they are donated: copies of those that something else has, too."""
        return [owned(s) for s in self.storages]

    @contextlib.contextmanager
    def holding(self, arrays: Sequence[Any]) -> Iterator[None]:
        """For the length of a block the storages have other arrays, and leaves may get other gradients."""
        before = [s.array for s in self.storages]
        gradients = [leaf.grad for leaf in self.leaves]
        try:
            for storage, array in zip(self.storages, arrays, strict=True):
                storage.put(array)
            yield
        finally:
            for storage, array in zip(self.storages, before, strict=True):
                storage.put(array)
            for leaf, gradient in zip(self.leaves, gradients, strict=True):
                leaf.grad = gradient


@contextlib.contextmanager
def _traced_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Has optimizers compute with a learning rate that is a tensor, which some read as a number unless compiled."""
    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:
            before, after = (_set_compiling(flag) for flag in (True, False))
            stack.callback(optimizer.register_step_pre_hook(before).remove)
            stack.callback(optimizer.register_step_post_hook(after).remove)
        stack.callback(_set_compiling(False))
        yield


def _set_compiling(flag: bool) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        set_compiling(flag)  # without it such a step is refused, as it reads a value

    return hook


class _Program:
    """The executable of a step for one combination of shapes and settings."""

    def __init__(
        self,
        step: Callable[..., Any],
        optimizers: Sequence[torch.optim.Optimizer],
        state: _State,
        leaves: list[Any],
        structure: Any,
    ) -> None:
        self._is_random = False
        self._gradients: list[tuple[bool, bool]] = []  # whether a leaf has one after the step, and it is a new tensor
        self._results: list[tuple[Any] | None] = []  # what the step returned, None for each tensor
        self._structure: Any = None
        self._errors: list[Exception] = []

        def traced(held: list[Any], given: list[Any], seed: Any) -> Any:
            rest = iter(given)
            filled = [_like(v, next(rest)) if isinstance(v, torch.Tensor) else v for v in leaves]
            args, kwargs = tree_unflatten(filled, structure)
            # the backward pass runs in this thread: JAX traces in one
            with (
                _traced_optimizers(optimizers),
                state.holding(held),
                random.drawn_from(self._noted(random.seeds_of(jax.random.key(seed)))),
                torch.autograd.set_multithreading_enabled(False),
            ):
                return self._traced(lambda: step(*args, **kwargs), state)

        arrays = [borrowed_copy(v) for v in leaves if isinstance(v, torch.Tensor)]
        allocator.retain()
        try:
            with x64.tracing(), announced("a step"):
                seed = jax.ShapeDtypeStruct((), np.dtype("int64"))
                operands = [s.array for s in state.storages], arrays, seed
                lowered = jax.jit(flattened(ordered(traced)), donate_argnums=0).lower(*operands)
                if has_turns(lowered.as_text()):
                    lowered = jax.jit(in_turn(traced), donate_argnums=0).lower(*operands)
                self._run, _ = executables.compiled(lowered)
        except jax.errors.ConcretizationTypeError as error:
            raise UnsupportedInputError(
                "a step", "one that reads the value of a tensor", "one that computes without: see compile_step"
            ) from error

    def _noted(self, seeds: Iterator[Any]) -> Iterator[Any]:
        for seed in seeds:
            self._is_random = True
            yield seed

    def _traced(self, step: Callable[[], Any], state: _State) -> tuple[Any, ...]:
        """Runs the step on tracers; the arrays that it leaves behind."""
        before = [leaf.grad for leaf in state.leaves]
        with collecting() as unchecked:
            results, self._structure = tree_flatten(step())
        self._results = [None if isinstance(v, torch.Tensor) else (v,) for v in results]
        after = [leaf.grad for leaf in state.leaves]
        # one that was added to is among the storages
        self._gradients = [(new is not None, new is not old) for new, old in zip(after, before, strict=True)]
        self._errors = [error for found in unchecked for error in found.errors]
        return (
            [array_of(v.detach()) for v in results if isinstance(v, torch.Tensor)],
            [s.array for s in state.storages],
            [array_of(g) for g, (_, is_new) in zip(after, self._gradients, strict=True) if is_new and g is not None],
            jnp.concatenate([found.holds for found in unchecked]) if unchecked else None,
        )

    def __call__(self, state: _State, given: Sequence[torch.Tensor]) -> Any:
        seed = random.draw_seed() if self._is_random else 0
        arrays = [borrowed_copy(t) for t in given]
        with Enabled():
            results, held, gradients, holds = self._run(state.arrays(), arrays, np.int64(seed))
        for storage, array in zip(state.storages, held, strict=True):
            storage.put(array)
        found = iter(gradients)
        for leaf, (has, is_new) in zip(state.leaves, self._gradients, strict=True):
            if is_new:
                leaf.grad = from_array(next(found)) if has else None
        if self._errors:
            raise_first_broken(holds, self._errors)
        tensors = map(from_array, results)
        return tree_unflatten([next(tensors) if v is None else v[0] for v in self._results], self._structure)


def _like(tensor: torch.Tensor, array: Any) -> torch.Tensor:
    """The tensor that a step gets for one of its arguments while it is traced; what was on the CPU is on jax there."""
    return from_array(array).requires_grad_(tensor.requires_grad)
