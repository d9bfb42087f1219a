"""Optimizers, gradient scalers and averaged models in a traced step: values that they read are part of the program."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel

from ..arrays.observers import observers
from ..arrays.storage_views import Storage
from ..errors import UnsupportedInputError
from ..hooks.ledger import shadowed
from ..tensor.tensor import Tensor
from ..tracing import set_compiling, unvalidated
from .holders import Reach
from .numbers import node_of
from .places import Float, shadowed_attribute
from .running_averages import traced_averages
from .state_capture import Capture

_COUNTS = ("step", "mu_product")  # state that optimizers keep in single precision and use in double precision


class LateOptimizer(Exception):
    """A step has run an optimizer that was not found before, whose numbers are not operands."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__("an optimizer was not found")
        self.optimizer = optimizer


class UnmadeState(Exception):
    """An optimizer would create state only if a scaler does not skip its step, which depends on gradients' values.

    Attributes:
        optimizer, state: the optimizer, and the state that it would then have.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, state: dict[Any, Any]) -> None:
        super().__init__("an optimizer has no state yet")
        self.optimizer, self.state = optimizer, state


def settle(reach: Reach) -> bool:
    """Moves the counts that optimizers and averages keep on the CPU to the device of their parameters.

    Returns:
        Whether there were any: then the places of tensors have changed.
    """
    moved = False
    for optimizer in reach.optimizers:
        for param, state in optimizer.state.items():
            for name in _COUNTS if isinstance(param, Tensor) else ():
                count = state.get(name)
                if isinstance(count, torch.Tensor) and count.device.type == "cpu":
                    state[name] = count.to(param.device)
                    moved = True
    for module in reach.modules:
        if isinstance(module, AveragedModel) and module.n_averaged.device.type == "cpu":
            first = next(module.parameters(), None)
            if isinstance(first, Tensor):
                module.n_averaged = module.n_averaged.to(first.device)
                moved = True
    return moved


@contextlib.contextmanager
def traced_reads(reach: Reach, capture: Capture, changed: list[str]) -> Iterator[None]:
    """A context in which functions that read values are traced instead.

    Args:
        reach: the optimizers and others.
        capture: the capture whose operands the numbers become.
        changed: filled with the numbers that the step has changed.
    """
    with contextlib.ExitStack() as stack:
        for optimizer in reach.optimizers:
            stack.enter_context(_without_scaling(optimizer))
        for found in reach.objects:
            if isinstance(found, torch.amp.GradScaler):
                stack.enter_context(
                    shadowed_attribute(found, "_maybe_opt_step", functools.partial(_select_step, capture))
                )
        for module in reach.modules:
            stack.enter_context(traced_averages(module, capture))
        for what, make in _SHADOWS.items():
            stack.enter_context(shadowed(what, make))
        running = _Running(reach, capture)
        set_compiling(True)  # models that read the values of a mask unless they are compiled do not
        stack.callback(set_compiling, False)
        stack.enter_context(unvalidated())
        stack.callback(register_optimizer_step_pre_hook(running.before).remove)
        stack.callback(register_optimizer_step_post_hook(running.after).remove)
        with _symbols(reach, capture, changed):
            yield


class _Symbols:
    """The numbers of parameter groups, which are symbolic while a step is traced.

    Args:
        reach, capture: as in `traced_reads`.
        changed: as there.
    """

    def __init__(self, reach: Reach, capture: Capture, changed: list[str]) -> None:
        self._reach, self._capture, self._changed = reach, capture, changed
        self._before = [(f.group, f.key, f.group[f.key]) for f in reach.floats]
        tensors = [old for _, _, old in self._before if isinstance(old, torch.Tensor)]
        self._values = [(tensor, tensor.clone()) for tensor in tensors]
        for i, f in enumerate(reach.floats):
            _set(f, capture.number(i))
        self._given = [group[key] for group, key, _ in self._before]

    def replace(self) -> None:
        """Puts plain numbers, and the tensors that there were, into the groups."""
        for (group, key, old), symbol in zip(self._before, self._given, strict=True):
            now = group.get(key)
            if now is symbol or now is old:
                group[key] = old
            else:
                self._changed.append(f"an optimizer's {key!r}")
                group[key] = self._plain(now)

    def step(self, schedule: LRScheduler, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A schedule's step: in Python, so that it keeps what it always keeps; the program is for this call alone."""
        self.replace()
        self._changed.append(f"it steps a {type(schedule).__name__}")
        return step(*args, **kwargs)

    def settle(self) -> None:
        """Leaves no symbol in what the step reaches, be it in a list or an attribute."""
        self.replace()
        for holder, _ in self._reach.copies:
            if isinstance(holder, dict | list | deque):
                for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
                    plain = self._plain(value)
                    if plain is not value:
                        self._changed.append("it stores a number of an optimizer")
                        holder[key] = plain  # type: ignore[index]  # the keys of this holder

    def restore(self) -> None:
        """Undoes what has been written to a rate that is a tensor in torch's memory."""
        for tensor, value in self._values:
            if not torch.equal(tensor, value):
                tensor.copy_(value)

    def _plain(self, value: Any) -> Any:
        """A value without symbols; the same object if it has none."""
        if isinstance(value, list | tuple):
            items = [self._plain(v) for v in value]
            is_plain = all(map(operator.is_, items, value))
            return value if is_plain else [*items] if isinstance(value, list) else tuple(items)
        number = node_of(value) if type(value) is torch.SymFloat else None
        if number is None:
            return value
        for (_, _, old), symbol in zip(self._before, self._given, strict=True):
            if value is symbol and isinstance(old, torch.Tensor):
                return old
        return float(number.known()(self._capture.conditions.values))


@contextlib.contextmanager
def _symbols(reach: Reach, capture: Capture, changed: list[str]) -> Iterator[None]:
    """A context in which the numbers of parameter groups are symbolic, but for schedules."""
    symbols = _Symbols(reach, capture, changed)
    with contextlib.ExitStack() as stack:
        for found in reach.objects:
            if isinstance(found, LRScheduler):
                stack.enter_context(
                    shadowed_attribute(found, "step", functools.partial(symbols.step, found, found.step))
                )
        try:
            yield
            symbols.settle()
        except BaseException:
            symbols.restore()
            raise


def _set(f: Float, value: Any) -> None:
    if f.at is not None:
        items = list(f.group[f.key])
        items[f.at] = value
        value = tuple(items)
    f.group[f.key] = value


@contextlib.contextmanager
def _without_scaling(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Runs fused optimizers, which unscale gradients themselves, like others."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        yield
        return
    with shadowed_attribute(optimizer, "_step_supports_amp_scaling", False):
        yield


def _of_symbols(of_symbols: Callable[..., Any], of_others: Callable[..., Any]) -> Callable[..., Any]:
    """The maximum or minimum of numbers, some of which may be symbolic."""

    def either(*args: Any, **kwargs: Any) -> Any:
        is_symbolic = len(args) == 2 and any(type(a) is torch.SymFloat for a in args)
        return of_symbols(*args) if is_symbolic else of_others(*args, **kwargs)

    return either


_SHADOWS = {
    "torch.optim._adafactor:max": functools.partial(_of_symbols, torch.sym_max),
    "torch.optim._adafactor:min": functools.partial(_of_symbols, torch.sym_min),
}


class _Running:
    """Temporary changes while an optimizer runs: counts in double precision, on the device, and readable."""

    def __init__(self, reach: Reach, capture: Capture) -> None:
        self._reach, self._capture = reach, capture
        self._undo: list[Callable[[], None]] = []

    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._capture not in observers():
            return
        if not any(optimizer is known for known in self._reach.optimizers):
            raise LateOptimizer(optimizer)
        self._capture.reads_numbers += 1
        set_compiling(False)  # optimizers then use numbers as numbers
        for group in optimizer.param_groups:
            is_double = torch.get_default_dtype() is torch.float64 and not group.get("fused")
            counts = torch.float64 if is_double else torch.float32
            for flag, wanted in (("capturable", True), ("fused", None)):
                if group.get(flag) not in (None, wanted):
                    self._undo.append(functools.partial(group.__setitem__, flag, group[flag]))
                    group[flag] = wanted
            for param in group["params"]:
                if isinstance(param, Tensor):
                    self._widen(optimizer, param, counts)

    def _widen(self, optimizer: torch.optim.Optimizer, param: torch.Tensor, counts: torch.dtype) -> None:
        if not optimizer.state.get(param):
            was_there = param in optimizer.state
            optimizer.state[param] = made = _Made()
            self._undo.append(functools.partial(_settle_made, optimizer, param, made, was_there, counts))
            return
        state = optimizer.state[param]
        for name in _COUNTS:
            count = state.get(name)
            if isinstance(count, Tensor) and count.dtype == torch.float32 and not count.dim():
                state[name] = wide = count.double()
                self._undo.append(functools.partial(_narrow, state, name, count, wide))

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._capture not in observers():
            return
        self._capture.reads_numbers -= 1
        set_compiling(True)
        while self._undo:
            self._undo.pop()()


class _Made(dict[str, Any]):
    """A parameter's state that is being made."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name in _COUNTS and isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            value = value.double()
        super().__setitem__(name, value)


def _settle_made(
    optimizer: torch.optim.Optimizer, param: torch.Tensor, made: _Made, was_there: bool, counts: torch.dtype
) -> None:
    if optimizer.state.get(param) is not made:
        return
    if not made and not was_there:
        del optimizer.state[param]
        return
    optimizer.state[param] = {k: v.to(counts) if k in _COUNTS else v for k, v in made.items()}


def _narrow(state: dict[str, Any], name: str, count: torch.Tensor, wide: torch.Tensor) -> None:
    if state.get(name) is wide:
        with torch.no_grad():
            count.copy_(wide)
        state[name] = count


def _select_step(
    capture: Capture, optimizer: torch.optim.Optimizer, found: dict[str, Any], *args: Any, **kw: Any
) -> Any:
    """A scaler's step of an optimizer, whose results are kept where all gradients are finite."""
    bad = sum(found["found_inf_per_device"].values())
    capture.met(None, [bad], {})
    before = {key: root.array for key, root in capture.storages()}
    state = {param: dict(values) for param, values in optimizer.state.items()}
    result = optimizer.step(*args, **kw)
    is_bad = bad.view_of_arrays.read().reshape(()) != 0  # type: ignore[union-attr]  # it is on the device
    if any(_is_unmade(state.get(param, {}), values) for param, values in optimizer.state.items()):
        raise UnmadeState(optimizer, dict(optimizer.state))
    for param, values in optimizer.state.items():
        _choose_state(capture, state.get(param, {}), values, is_bad)
    for key, root in capture.storages():
        if key in before or key in capture.lifted:
            old = before.get(key, capture.lifted[key].traced if key in capture.lifted else None)
            _choose(root, is_bad, old)
    return result


def _is_unmade(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """True if a parameter's state has more in it than before."""
    return any(before.get(name) is None and new is not None for name, new in after.items())


def _choose_state(capture: Capture, before: dict[str, Any], after: dict[str, Any], is_bad: Any) -> None:
    """Selects the old or new tensors of a parameter's state that are replaced rather than written to."""
    for name, new in after.items():
        old = before.get(name)
        if new is old:
            continue
        if isinstance(old, Tensor) and isinstance(new, Tensor):
            capture.lift(old)
            _choose(new.view_of_arrays.storage.root, is_bad, old.view_of_arrays.read())
        elif type(old) is not type(new) or old != new:
            raise UnsupportedInputError(
                "GradScaler.step in a step", f"an optimizer that keeps {name!r} as a {type(new).__name__}",
                "one that keeps its state in tensors, or scaler.step(optimizer) outside of the step",
            )  # fmt: skip


def _choose(root: Storage, is_bad: Any, old: Any) -> None:
    new = root.array
    if new is not old:
        root.put(jnp.where(is_bad, old.reshape(new.shape).astype(new.dtype), new))
