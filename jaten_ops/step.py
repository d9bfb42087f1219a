"""A whole training step, with its backward pass and its optimizer, as one XLA executable."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import random
from .aliasing import Storage
from .errors import UnsupportedInputError
from .execute import collecting, raise_first_broken
from .tensor import Tensor, array_of, from_array
from .tracing import opaque
from .x64 import Enabled

Holder = torch.nn.Module | torch.optim.Optimizer | torch.Tensor

# the references to an array that only its storage has: that, a list and a variable of ours, `getrefcount`'s argument
_OF_ONE_OWNER = 4


def compile_step(step: Callable[..., Any], *holders: Holder) -> Callable[..., Any]:
    """A training step as one executable: forward, `backward()`, clipping, the optimizer, all that it does.

    The first call runs `step` as it is, so that optimizers make their state. The second traces it, and each new
    combination of argument shapes, hyperparameters and `training` flags does again. What the step writes to the
    tensors of the holders is written; their old arrays are donated, so there is no second copy of them.

    A learning rate that changes should be a tensor on the device (`lr=torch.tensor(1e-3, device="jax")`), since a
    number is part of the program; SGD reads one as a number unless it has `foreach=True`. Optimizers take
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
        return training, tuple(numbers), torch.is_grad_enabled(), torch.get_default_dtype()


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
        arrays = [s.array for s in self.storages]
        return [a if sys.getrefcount(a) <= _OF_ONE_OWNER else a.copy() for a in arrays]

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
        torch.compiler._is_compiling_flag = flag  # private; without it such a step is refused, as it reads a value

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
        self._result: Any = None  # the structure of the results, with None for each that is an array
        self._has_gradient: list[bool] = []
        self._errors: list[Exception] = []

        def seeds(seed: Any) -> Iterator[Any]:
            self._is_random = True
            key = jax.random.key(seed)
            for count in itertools.count():
                yield jax.random.bits(jax.random.fold_in(key, count), (), "uint32")

        def traced(held: list[Any], given: list[Any], seed: Any) -> Any:
            rest = iter(given)
            args, kwargs = tree_unflatten(
                [_like(v, next(rest)) if isinstance(v, torch.Tensor) else v for v in leaves], structure
            )
            # the backward pass runs in this thread: JAX traces in one
            with (
                collecting() as unchecked,
                _traced_optimizers(optimizers),
                state.holding(held),
                random.drawn_from(seeds(seed)),
                torch.autograd.set_multithreading_enabled(False),
            ):
                flat, self._result = tree_flatten(step(*args, **kwargs))
                self._others = [None if isinstance(v, torch.Tensor) else v for v in flat]
                self._is_tensor = [isinstance(v, torch.Tensor) for v in flat]
                results = [array_of(v.detach()) for v in flat if isinstance(v, torch.Tensor)]
                self._has_gradient = [leaf.grad is not None for leaf in state.leaves]
                gradients = [array_of(leaf.grad) for leaf in state.leaves if leaf.grad is not None]
                self._errors = [error for found in unchecked for error in found.errors]
                holds = jnp.concatenate([found.holds for found in unchecked]) if unchecked else None
                return results, [s.array for s in state.storages], gradients, holds

        arrays = [array_of(v) if isinstance(v, Tensor) else v.numpy() for v in leaves if isinstance(v, torch.Tensor)]
        try:
            with Enabled():
                seed = jax.ShapeDtypeStruct((), np.dtype("int64"))
                lowered = jax.jit(traced, donate_argnums=0).lower([s.array for s in state.storages], arrays, seed)
                self._run = lowered.compile()
        except jax.errors.ConcretizationTypeError as error:
            raise UnsupportedInputError(
                "a step", "one that reads the value of a tensor", "one that computes without: see compile_step"
            ) from error

    def __call__(self, state: _State, given: Sequence[torch.Tensor]) -> Any:
        seed = random.draw_seed() if self._is_random else 0
        arrays = [array_of(t) if isinstance(t, Tensor) else t.numpy() for t in given]
        with Enabled():
            results, held, gradients, holds = self._run(state.arrays(), arrays, np.int64(seed))
        for storage, array in zip(state.storages, held, strict=True):
            storage.put(array)
        found = iter(gradients)
        for leaf, has in zip(state.leaves, self._has_gradient, strict=True):
            leaf.grad = from_array(next(found)) if has else None
        if self._errors:
            raise_first_broken(holds, self._errors)
        tensors = iter(results)
        pairs = zip(self._is_tensor, self._others, strict=True)
        return tree_unflatten([from_array(next(tensors)) if is_tensor else v for is_tensor, v in pairs], self._result)


def _like(tensor: torch.Tensor, array: Any) -> torch.Tensor:
    """The tensor that a step gets for one of its arguments while it is traced; what was on the CPU is on jax there."""
    return from_array(array).requires_grad_(tensor.requires_grad)
