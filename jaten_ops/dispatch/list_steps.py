"""Steps of optimizers over lists of the device's tensors, each as one program: what they have in common.

torch's own steps are a handful of operators on lists, each a program. These take only what is a plain tensor of one
floating dtype on one device, and leave all else to torch's.

XLA compiles a kernel for each parameter of a program, also where several have one shape: seconds for a net of some 60
parameters. So its first steps call a small program for each parameter, which those of one shape share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch.autograd.graph import increment_version

from ..arrays import partitioned
from ..arrays.observers import OBSERVERS
from ..arrays.storage_views import View
from ..arrays.strides import Shape
from ..tensor.tensor import Tensor, array_of
from ..xla import malloc
from ..xla.jitted import jitted
from ..xla.x64 import Enabled
from . import in_place

Arrays = Sequence[jax.Array]
_DTYPES = (torch.float32, torch.float64)
_FIRST_STEPS = 2000
"""Then the time that calls of many small programs have taken exceeds that of compiling one, which takes less a call."""
_LIKE = 0.75  # of the parameters' number: with so many shapes, it is compiled at once
_MOST_LISTS = 64  # of which the steps are counted


@dataclass
class ListStep:
    """The operands of a step.

    Attributes:
        targets: the tensors that the step changes: parameters, and their states behind them.
        views: the targets' views.
        arrays: their arrays, a list for each list of tensors.
        grads: the gradients' arrays.
        given: whether a program may overwrite the arrays: for each parameter, or one for all.
        is_apart: whether a program runs for each parameter.
    """

    targets: Sequence[torch.Tensor]
    views: Sequence[View]
    arrays: Sequence[Arrays]
    grads: Arrays
    given: Sequence[bool]
    is_apart: bool

    def run(self, update: ListUpdate, shared: Sequence[float], own: Sequence[Sequence[float]] = ()) -> list[jax.Array]:
        """Updates the targets; returns what the update gives beside them, for each parameter.

        Args:
            update: what it does.
            shared: the numbers that all parameters have in common.
            own: for each parameter its own numbers, which follow them.
        """
        with Enabled():
            if self.is_apart:
                return self._run_apart(update, shared, own)
            numbers = np.array([*shared, *(number for numbers in own for number in numbers)])
            parts = update.whole[self.given[0]](numbers, *self.arrays, self.grads)
        results = [array for part in parts for array in part]
        increment_version(self.targets)
        for view, array in zip(self.views, results, strict=False):
            view.write(array)
        return results[len(self.views) :]

    def _run_apart(
        self, update: ListUpdate, shared: Sequence[float], own: Sequence[Sequence[float]]
    ) -> list[jax.Array]:
        count, beside = len(self.grads), []
        together = [self.views[i : i + count] for i in range(0, len(self.views), count)]
        # most often those of all parameters are the same
        numbers = {each: jax.device_put(np.array([*shared, *each])) for each in set(map(tuple, own or [()]))}
        each_own = map(tuple, own) if own else [()] * count
        increment_version(self.targets)  # first: where a program fails, those before it have changed
        rows = zip(zip(*together, strict=True), *self.arrays, self.grads, self.given, each_own, strict=True)
        for views, *arrays, given, its_own in rows:
            results = update.one[given](numbers[its_own], *arrays)
            for view, array in zip(views, results, strict=False):
                view.write(array)  # at once: the program may have overwritten what it replaces
            beside += results[len(views) :]
        return beside


class ListUpdate:
    """An update of a parameter by an optimizer, as programs: one for a parameter, and one for lists of them.

    Args:
        update: takes the numbers of a step as arrays, the parameter, its states and its gradient; gives the new
            parameter and states, and what is to be kept beside them.
        shared: how many of the numbers all parameters have in common.
        written: the number of arrays that are replaced, the parameter among them.
        name: of the programs.

    Attributes:
        one: the program for a parameter, by whether it may overwrite the arrays.
        whole: the program for lists, which gives a list of each result, likewise.
    """

    def __init__(self, update: Callable[..., Sequence[jax.Array]], shared: int, written: int, name: str) -> None:
        def one(numbers: jax.Array, *arrays: jax.Array) -> Sequence[jax.Array]:
            return update([number.astype(arrays[0].dtype) for number in numbers], *arrays)

        def whole(numbers: jax.Array, *lists: Arrays) -> list[Arrays]:
            given = [number.astype(lists[0][0].dtype) for number in numbers]
            count, results = len(lists[0]), []
            each = (len(given) - shared) // count
            for i, arrays in enumerate(zip(*lists, strict=True)):
                own = given[shared + i * each : shared + (i + 1) * each]
                results.append(update([*given[:shared], *own], *arrays))
            return [*zip(*results, strict=True)]

        def programs(function: Callable[..., Any]) -> dict[bool, Callable[..., Any]]:
            function.__name__ = name
            donated = range(1, 1 + written)
            return {given: jitted(function, donate_argnums=donated if given else ()) for given in (False, True)}

        malloc.retain()
        self.one, self.whole = programs(one), programs(whole)
        self._steps: dict[tuple[Shape, ...], int] = {}

    def is_apart(self, shapes: tuple[Shape, ...]) -> bool:
        """Counts a step with parameters of these shapes; true if it runs a program for each of them."""
        taken = self._steps.get(shapes, 0)
        if taken > _FIRST_STEPS:
            return False
        if not taken:
            if len(self._steps) >= _MOST_LISTS:
                self._steps = {}
            if len(set(shapes)) > _LIKE * len(shapes):
                taken = _FIRST_STEPS
        self._steps[shapes] = taken + 1
        return taken < _FIRST_STEPS


def list_step(
    update: ListUpdate, lists: Sequence[Sequence[torch.Tensor]], grads: Sequence[torch.Tensor]
) -> ListStep | None:
    """The operands of a step; None if it is left to torch's.

    Args:
        update: what the step does.
        lists: the parameters, and lists of as many states, of any shapes, float32 or float64, all of one dtype.
        grads: the parameters' gradients.
    """
    targets = [t for tensors in lists for t in tensors]
    if not _is_eager() or not _is_uniform([*targets, *grads]) or any(map(torch.Tensor.is_inference, targets)):
        return None
    shapes, count = [t.shape for t in grads], len(grads)
    if [t.shape for t in lists[0]] != shapes:
        return None
    views = in_place.views_apart(targets, [grads])
    if views is None:
        return None
    is_apart = update.is_apart(tuple(shapes))
    together = [views[i::count] for i in range(count)] if is_apart else [views]
    given = [*map(in_place.may_be_overwritten, together)]  # asked while nothing else holds the arrays
    arrays, gradients = [view.read() for view in views], [array_of(g) for g in grads]
    if any(issubclass(kind, jax.core.Tracer) for kind in {type(a) for a in (*arrays, *gradients)}):
        return None
    parts = [arrays[i : i + count] for i in range(0, len(arrays), count)]
    return ListStep(targets, views, parts, gradients, given, is_apart)


def _is_uniform(tensors: Sequence[torch.Tensor]) -> bool:
    """True for tensors of jaten's own class, of one dtype that the programs are made for, and on one device."""
    (kind, dtype, _), *others = {(type(t), t.dtype, t.device) for t in tensors}
    return not others and kind is Tensor and dtype in _DTYPES


def _is_eager() -> bool:
    """True if nothing records, traces, watches or differentiates operators, and no tensor is over a mesh."""
    return not (
        OBSERVERS
        or partitioned.MET
        or torch.is_grad_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_tracing()
    )
