"""Steps of optimizers over lists of the device's tensors, each as one program: what they have in common.

torch's own steps are a handful of operators on lists, each a program. These take only what is a plain tensor of one
floating dtype on one device, and leave all else to torch's.

XLA compiles a kernel for each parameter of a program: seconds for a net of some 60 parameters. So on a CPU the first
steps call a program for pieces of one length, which parameters of all shapes are cut into and put together from; and
the steps after them a program for a few parameters of one shape, again and again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
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
from ..interpreter import is_used
from ..tensor.tensor import Tensor, array_of
from ..xla import cheap_puts, malloc
from ..xla.jitted import jitted
from ..xla.x64 import Enabled
from . import in_place

Arrays = Sequence[jax.Array]
_DTYPES = (torch.float32, torch.float64)
_LENGTHS = (2**12, 2**16)
"""Elements of a piece: for steps over fewer elements than one, and for others."""

_SECONDS = 0.05, 0.01
"""So long steps by pieces may take, in all, for each of the programs that follow them, and for each parameter of one:
about as long as XLA takes to compile these."""

_MOST_IN_GROUP = 8
"""Parameters of one shape in a program. With one, JAX's call of it takes longer than a small parameter's update."""

_MOST_LISTS = 64  # whose courses are kept


@dataclass
class Course:
    """The course of steps over parameters of some shapes.

    Attributes:
        groups: the parameters, by number, that are updated by one program each.
        seconds: what steps by pieces may still take before that.
    """

    groups: list[list[int]]
    seconds: float


@dataclass
class ListStep:
    """The operands of a step.

    Attributes:
        targets: the tensors that the step changes: parameters, and their states behind them.
        views: the targets' views.
        arrays: their arrays, a list for each list of tensors.
        grads: the gradients' arrays.
        course: of the step.
        may_be_overwritten: for each group of the course, whether its program may overwrite the arrays; empty for a step
            by pieces.
    """

    targets: Sequence[torch.Tensor]
    views: Sequence[View]
    arrays: list[list[jax.Array]]
    grads: list[jax.Array]
    course: Course
    may_be_overwritten: list[bool]

    def run(self, update: ListUpdate, shared: Sequence[float], own: Sequence[Sequence[float]] = ()) -> list[jax.Array]:
        """Updates the targets; returns what the update gives beside them, for each parameter.

        Args:
            update: what it does.
            shared: the numbers that all parameters have in common.
            own: for each parameter its own numbers, which follow them.
        """
        own = own or [()] * len(self.grads)
        with Enabled():
            if self.may_be_overwritten:
                return self._run_by_groups(update.group, shared, own)
            start = time.perf_counter()
            made = self._run_by_pieces(update.piece, np.array(shared), own)
            self.course.seconds -= time.perf_counter() - start
            return made

    def _run_by_groups(
        self, programs: dict[bool, Callable[..., Any]], shared: Sequence[float], own: Sequence[Sequence[float]]
    ) -> list[jax.Array]:
        lists, count = [*self.arrays, self.grads], len(self.grads)
        beside: dict[int, jax.Array] = {}
        for group, given in zip(self.course.groups, self.may_be_overwritten, strict=True):
            numbers = np.array([*shared, *[number for i in group for number in own[i]]])
            parts = programs[given](numbers, *[[arrays[i] for i in group] for arrays in lists])
            places = [place + i for place in range(0, len(self.targets), count) for i in group]
            increment_version([self.targets[place] for place in places])
            results = [array for part in parts for array in part]
            for place, array in zip(places, results, strict=False):
                self.views[place].replace(array)
            beside |= zip(group, results[len(places) :], strict=False)
        return [beside[i] for i in range(count)] if beside else []

    def _run_by_pieces(
        self, program: Callable[..., Any], shared: np.ndarray, own: Sequence[Sequence[float]]
    ) -> list[jax.Array]:
        lists, count = [*self.arrays, self.grads], len(self.grads)
        sizes = [grad.size for grad in self.grads]
        length = _LENGTHS[sum(sizes) > _LENGTHS[0]]
        beside: list[jax.Array] = []
        increment_version(self.targets)  # first: where a program fails, those before it have changed
        for parts in _pieces(sizes, [tuple(numbers) for numbers in own], length):
            given = [
                _piece([np.asarray(arrays[i]).reshape(-1)[b:e] for i, b, e, _ in parts], length) for arrays in lists
            ]
            results = [*map(np.asarray, program(np.append(shared, own[parts[0][0]]), *given))]
            for i, begin, end, place in parts:
                if not begin:
                    made = [np.empty(sizes[i], r.dtype) for r in results]
                for whole, result in zip(made, results, strict=True):
                    whole[begin:end] = result[place : place + end - begin]
                if end == sizes[i]:
                    arrays = [_like(self.arrays[0][i], whole) for whole in made]
                    for view, array in zip(self.views[i::count], arrays, strict=False):
                        view.replace(array)
                    beside += arrays[len(self.arrays) :]
                    for replaced in self.arrays:  # which frees them
                        replaced[i] = self.grads[i]
        return beside


def _piece(parts: list[np.ndarray], length: int) -> np.ndarray:
    """Parts one after the other, and zeros behind them. One that is as long is no copy."""
    missing = length - sum(map(len, parts))
    rest = [np.zeros(missing, parts[0].dtype)] if missing else []
    return parts[0] if len(parts) == 1 and not missing else np.concatenate([*parts, *rest])


def _pieces(
    sizes: Sequence[int], own: Sequence[tuple[float, ...]], length: int
) -> Iterator[list[tuple[int, int, int, int]]]:
    """Pieces of flat arrays: parts of parameters with the same numbers, of at most so many elements together.

    Yields:
        For each part of a piece the number of the parameter, its first element, the one behind it, and its place.
    """
    parts: list[tuple[int, int, int, int]] = []
    place = 0
    for i, size in enumerate(sizes):
        if parts and (own[i] != own[i - 1] or size >= length or place == length):  # most of a large one is not copied
            yield parts
            parts, place = [], 0
        begin = 0
        while begin < size:
            end = min(size, begin + length - place)
            parts.append((i, begin, end, place))
            place += end - begin
            begin = end
            if begin < size:
                yield parts
                parts, place = [], 0
    yield parts


def _like(array: jax.Array, values: np.ndarray) -> jax.Array:
    """Values, which nothing else holds, as an array of the shape and the device of another."""
    (device,) = array.devices()
    return cheap_puts.put_on_device(values.reshape(array.shape), array.aval, device, committed=array.committed)


class ListUpdate:
    """An update of a parameter by an optimizer, as programs: one for a parameter, and one for lists of them.

    Args:
        update: takes the numbers of a step as arrays, the parameter, its states and its gradient; gives the new
            parameter and states, and what is to be kept beside them.
        shared: how many of the numbers all parameters have in common.
        written: the number of arrays that are replaced, the parameter among them.
        name: of the programs.

    Attributes:
        piece: the program for a piece: its numbers, and an array each of the parameters, states and gradients.
        group: the program for lists, which gives a list of each result, by whether it may overwrite the arrays.
    """

    def __init__(self, update: Callable[..., Sequence[jax.Array]], shared: int, written: int, name: str) -> None:
        def one(numbers: jax.Array, *arrays: jax.Array) -> Sequence[jax.Array]:
            return update([number.astype(arrays[0].dtype) for number in numbers], *arrays)

        def group(numbers: jax.Array, *lists: Arrays) -> list[Arrays]:
            given = [number.astype(lists[0][0].dtype) for number in numbers]
            count, results = len(lists[0]), []
            each = (len(given) - shared) // count
            for i, arrays in enumerate(zip(*lists, strict=True)):
                own = given[shared + i * each : shared + (i + 1) * each]
                results.append(update([*given[:shared], *own], *arrays))
            return [*zip(*results, strict=True)]

        malloc.retain()
        one.__name__ = group.__name__ = name
        donated = {False: (), True: range(1, 1 + written)}
        self.piece: Callable[..., Any] = jitted(one)
        self.group = {given: jitted(group, donate_argnums=places) for given, places in donated.items()}
        self._courses: dict[tuple[Shape, ...], Course] = {}

    def course(self, shapes: tuple[Shape, ...]) -> Course:
        """The course of steps over parameters of these shapes."""
        if not is_used():
            return Course([[*range(len(shapes))]], 0.0)
        if shapes not in self._courses:
            if len(self._courses) >= _MOST_LISTS:
                self._courses = {}
            self._courses[shapes] = _course_of(shapes)
        return self._courses[shapes]


def _course_of(shapes: tuple[Shape, ...]) -> Course:
    by_shape: dict[Shape, list[int]] = {}
    for i, shape in enumerate(shapes):
        by_shape.setdefault(shape, []).append(i)
    groups = []
    for alike in by_shape.values():  # in groups of nearly one size, of which a program each is compiled
        count = -(-len(alike) // _MOST_IN_GROUP)
        groups += [alike[n::count] for n in range(count)]
    programs = {(shapes[group[0]], len(group)) for group in groups}
    seconds = sum(_SECONDS[0] + _SECONDS[1] * count for _, count in programs)
    return Course(groups, seconds if all(map(math.prod, shapes)) else 0.0)


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
    course = update.course(tuple(shapes))
    # asked while nothing holds the arrays
    may_be_overwritten = (
        [] if course.seconds > 0 else [_may_be_overwritten(views, group, count) for group in course.groups]
    )
    arrays, gradients = [view.storage.array for view in views], [array_of(g) for g in grads]
    if any(issubclass(kind, jax.core.Tracer) for kind in {type(a) for a in (*arrays, *gradients)}):
        return None
    parts = [arrays[i : i + count] for i in range(0, len(arrays), count)]
    return ListStep(targets, views, parts, gradients, course, may_be_overwritten)


def _may_be_overwritten(views: Sequence[View], group: Sequence[int], count: int) -> bool:
    return in_place.may_be_overwritten([view for i in group for view in views[i::count]])


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
