"""The parts of a batch while a step is traced: the step takes one of them, and the end of its backward pass is marked.

Marked are the gradients, which `accumulation` replaces by the mean over all parts, and what the step has written to
until then, which it carries from part to part.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax.extend import core
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from ..arrays import partitioned
from ..arrays.storage_views import Storage, View
from ..errors import UnsupportedInputError
from ..tensor.tensor import Tensor, array_of, from_view
from .drawn_seeds import Seeds
from .state_capture import Capture

part = core.Primitive("jaten_part")
"""One part of a batch, of those of a program; `marked` has its parameters. No compiled program contains it."""


@part.def_abstract_eval
def _(batch: Any, *, count: int, blocks: int) -> Any:
    return batch.update(shape=(batch.shape[0] // count, *batch.shape[1:]))


marked = core.Primitive("jaten_marked")
"""A value at the end of the backward pass; like `part`, it is in no compiled program.

Its parameter `written` is the operand in which the program stores the value; None for a gradient.
"""


@marked.def_abstract_eval
def _(array: Any, *, written: int | None) -> Any:
    return array


class LaterBackward(Exception):
    """A step accumulates gradients in one backward pass more before it uses them."""


class Microbatches:
    """The division of a step's batch into parts.

    Attributes:
        count: the number of parts.
        passes: the number of backward passes by which gradients are complete.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.passes = 1


class Parts:
    """The parts of one call's arguments, and what is marked, in one trace.

    Args:
        how: the number of parts.
        given: the arguments.
        held: the tensors that the step reaches without arguments, which are not split.
        name: the name of an argument, by its index.

    Attributes:
        size: the size of a part.
        blocks: the parts of the mesh over which the batch is partitioned; each has a piece of each part.
        seeds: the operands that are seeds of random numbers of a part.

    Raises:
        UnsupportedInputError: an argument that cannot be split.
    """

    def __init__(
        self, how: Microbatches, given: Sequence[Any], held: Sequence[torch.Tensor], name: Callable[[int], str]
    ) -> None:
        self.how = how
        known = set(map(id, held))
        at = [i for i, v in enumerate(given) if isinstance(v, Tensor) and v.dim() and id(v) not in known]
        if not at:
            raise UnsupportedInputError("microbatches of a step", "no tensor among its arguments", "a batch")
        self._split = {i: given[i] for i in at}
        self._batch = given[at[0]].shape[0]
        for i in at:
            self._check(name, i, given[i], name(at[0]))
        self.size = self._batch // how.count
        self.blocks = math.lcm(*[_blocks_of(tensor) for tensor in self._split.values()])
        if self.size % self.blocks:
            raise UnsupportedInputError(
                "microbatches of a step", f"parts of {self.size}, over {self.blocks} parts of a mesh",
                "fewer microbatches, of a size that is a multiple",
            )  # fmt: skip
        self.seeds: frozenset[int] = frozenset()
        self._whole: dict[int, torch.Tensor] = {}
        self._taken: list[tuple[int, torch.Tensor, Any]] = []
        self._depth = self._done = 0
        self._parameters: list[tuple[torch.Tensor, Any]] = []

    def _check(self, name: Callable[[int], str], at: int, tensor: torch.Tensor, first: str) -> None:
        outside = "or, if it is no part of a batch, a tensor of the closure or of a holder"
        if tensor.shape[0] != self._batch:
            raise UnsupportedInputError(
                f"microbatches of a step: {name(at)}", f"{tensor.shape[0]} in its first dimension",
                f"{self._batch}, as in {first}, {outside}",
            )  # fmt: skip
        if tensor.shape[0] % self.how.count or not tensor.shape[0]:
            raise UnsupportedInputError(
                f"microbatches of a step: {name(at)}", f"{tensor.shape[0]} in its first dimension",
                f"a multiple of {self.how.count}, {outside}",
            )  # fmt: skip
        if tensor.requires_grad:
            raise UnsupportedInputError(
                f"microbatches of a step: {name(at)}", "an argument that requires a gradient",
                "x.detach(), and y = x.clone().requires_grad_() in the step, which may return y.grad",
            )  # fmt: skip

    # while the step is traced

    def take(self, given: Sequence[Any], capture: Capture) -> list[Any]:
        """The arguments with a part in place of each batch."""
        found = list(given)
        for i, tensor in self._split.items():
            capture.lift(tensor)
            array = part.bind(array_of(tensor), count=self.how.count, blocks=self.blocks)
            found[i] = taken = from_view(View.laid_out(array, self._strides(tensor)), tensor.dtype)
            self._whole[id(taken)] = tensor
            self._taken.append((i, taken, _root_of(taken).array))
        return found

    def _strides(self, tensor: torch.Tensor) -> tuple[int, ...]:
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return like[: self.size].clone().stride()

    def result(self, value: Any, capture: Capture) -> Any:
        """A result of the step: a batch for its part, a tensor with memory of its own for a view of a part's values."""
        if id(value) in self._whole:
            return self._whole[id(value)]
        if not isinstance(value, Tensor) or not capture.is_born(value):
            return value
        is_whole = value.view_of_arrays.is_whole(_root_of(value).array)
        is_of_state = id(_root_of(value)) in capture.lifted
        return value if is_whole or is_of_state else value.detach().clone(memory_format=torch.contiguous_format)

    def let_go(self, name: Callable[[int], str]) -> None:
        """Ends the use of the parts, once the step has run.

        Raises:
            UnsupportedInputError: the step has changed one, or never ran backward.
        """
        if self._done < self.how.passes:
            raise UnsupportedInputError(
                "microbatches of a step", "a step without backward()", "one whose gradients come from backward()"
            )
        for i, taken, array in self._taken:
            if _root_of(taken).array is not array or taken.grad is not None:
                raise UnsupportedInputError(
                    f"microbatches of a step: {name(i)}",
                    "an argument that the step writes to, or that gets a gradient", "a copy of it, x.clone()",
                )  # fmt: skip
        self._whole.clear()
        self._taken.clear()
        self._parameters.clear()

    def begin(self, capture: Capture) -> None:
        """Takes note of the beginning of a backward pass."""
        self._depth += 1
        if self._depth > 1:
            return
        if not self._done:
            self._parameters = [
                (leaf, _root_of(leaf).array)
                for leaf, _ in capture.leaves.values()
                if isinstance(leaf, Tensor) and leaf.requires_grad and id(_root_of(leaf)) in capture.lifted
            ]
        else:
            self._refuse_updates()
        if self._done == self.how.passes:
            raise LaterBackward

    def end(self, capture: Capture, seeds: Seeds) -> None:
        """Takes note of the end of a backward pass; marks what there is if gradients are complete."""
        self._depth -= 1
        if self._depth:
            return
        self._refuse_updates()
        self._done += 1
        if self._done < self.how.passes:
            return
        gradients = self._gradients(capture)
        for root in gradients.values():
            _mark(capture, root, None)
        for found in capture.changed():
            if id(found.storage) not in gradients:
                _mark(capture, found.storage, found.operand)
        self.seeds = frozenset(i for i, (source, _) in enumerate(capture.operands) if source.kind == "seed")
        seeds.start_again()

    def _refuse_updates(self) -> None:
        if any(_root_of(leaf).array is not array for leaf, array in self._parameters):
            raise UnsupportedInputError(
                "microbatches of a step", "a step that updates parameters in a backward pass, or between two",
                "one update, after the last backward(): a step of its own for each optimizer",
            )  # fmt: skip

    def _gradients(self, capture: Capture) -> dict[int, Storage]:
        """The storages of the gradients that the step has computed."""
        found: dict[int, Storage] = {}
        for leaf, _ in capture.leaves.values():
            if isinstance(leaf.grad, Tensor):
                root = _root_of(leaf.grad)
                before = capture.lifted.get(id(root))
                if isinstance(root.array, jax.core.Tracer) and (before is None or root.array is not before.traced):
                    found[id(root)] = root
        return found


def _root_of(on_device: Any) -> Storage:
    root: Storage = on_device.view_of_arrays.storage.root
    return root


def _mark(capture: Capture, root: Storage, written: int | None) -> None:
    root.put(capture.outermost(lambda: marked.bind(root.array, written=written)))


def _blocks_of(tensor: Tensor) -> int:
    """The number of parts of a mesh over which a tensor's first dimension is partitioned."""
    array = _root_of(tensor).array
    if not partitioned.is_partitioned(array) or array.shape != tensor.shape:
        return 1
    return int(array.shape[0] // array.sharding.shard_shape(array.shape)[0])


def argument_name(step: Callable[..., Any], given: Sequence[Any], structure: Any, at: int) -> str:
    """The name of an argument, for errors."""
    kind: Any
    place: Any
    (kind, place, *rest), _ = tree_flatten_with_path(tree_unflatten(list(given), structure))[0][at]
    if kind.idx == 1:
        return f"{place.key}{keystr(tuple(rest))}"
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):  # a callable without a signature
        names = [*inspect.signature(step).parameters]
    name = names[place.idx] if place.idx < len(names) else f"argument {place.idx}"
    return name + keystr(tuple(rest))
