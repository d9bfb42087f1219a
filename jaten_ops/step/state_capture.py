"""A step run on traced arrays: values that it reads become operands, values that it changes become results.

A storage gets a traced array when an operator first uses it, and its own array back when the capture ends. So storages
need not be named beforehand: those that nobody named are also read, and written, at each call.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import torch
from jax.extend import core
from torch.utils.weak import TensorWeakRef

from .. import registry
from ..arrays import bridge, partitioned
from ..arrays.abstract_arrays import AbstractArray
from ..arrays.observers import Observer, observed_by
from ..arrays.storage_views import Storage, begin_trace, end_trace
from ..errors import UnsupportedInputError
from ..program_lines import place_of_call
from ..schema import VARIANTS
from ..tensor.operand_values import is_traced
from ..tensor.tensor import Tensor, array_of, from_array
from ..xla.traced_constants import constant_value
from .early_reads import EarlyReads
from .numbers import Assumptions, Number, node_of, refusal, symbol

operand = core.Primitive("jaten_operand")
"""An operand of the program, bound at its first use. Compiled programs do not contain this primitive."""


@operand.def_abstract_eval
def _(*, index: int, aval: Any) -> Any:
    return aval


weakened = core.Primitive("jaten_weakened")
"""An array of one element as a weakly typed number; like `operand`, it is in no compiled program."""


@weakened.def_abstract_eval
def _(array: Any) -> Any:
    return jax.core.ShapedArray((), array.dtype, weak_type=True)


class Source(NamedTuple):
    """The place from which a call of the program takes an operand.

    Attributes:
        kind: "held" (a tensor of the holders), "given" (an argument), "grad" (the gradient of a leaf), "met" (a tensor
            of no holder), "storage" (one whose tensors are all gone), "cpu" (a tensor in torch's memory), "constant"
            (an array), "number" (of a parameter group), "seed" (of a generator, the default one if None, or itself).
        what: an index, or the operand itself.
    """

    kind: str
    what: Any


class Lifted(NamedTuple):
    """A storage that has a traced array during the capture."""

    storage: Storage
    array: jax.Array
    traced: Any
    operand: int


class Capture(Observer):
    """The state of a step's capture.

    Args:
        sources: the sources of the storages known beforehand, by `id`.
        values: the values of the numbers.
    """

    def __init__(self, sources: dict[int, Source], values: Sequence[float]) -> None:
        self._foreseen = sources
        self.conditions = Assumptions(values)
        self.early = EarlyReads()
        self.operands: list[tuple[Source, Any]] = []
        self.lifted: dict[int, Lifted] = {}
        self.born: dict[int, TensorWeakRef] = {}
        self._born_storages: dict[int, Storage] = {}
        self._moved: dict[int, tuple[TensorWeakRef, torch.Tensor]] = {}
        self.leaves: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.reads_numbers = 0  # the depth of optimizers that the step is in, whose reads are numbers of the program
        self._answers: list[bool] = []
        self._trace: Any = None
        self.at_backward: tuple[Callable[[], None], Callable[[], None]] | None = None  # at the begin and the end

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A context, under JAX's trace, in which this thread's tensors are observed."""
        with core.take_current_trace() as self._trace, core.set_current_trace(self._trace), observed_by(self):
            yield

    def bind(self, source: Source, aval: Any) -> Any:
        """The traced array of a new operand of the program, even while a part of it is traced separately."""
        with core.set_current_trace(self._trace):
            traced = operand.bind(index=len(self.operands), aval=aval)
        self.operands.append((source, aval))
        return traced

    def outermost(self, fn: Callable[[], Any]) -> Any:
        """Computes a function in the program itself, not in a part of it that is traced separately."""
        with core.set_current_trace(self._trace):
            return fn()

    # callbacks for operators and tensors

    def met(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        target = args[0] if args else None
        is_elsewhere = isinstance(target, torch.Tensor) and target.device.type != "jax" and target.dim()
        if is_elsewhere and func is torch.ops.aten.copy_.default and isinstance(args[1], Tensor):
            raise refusal(f"it is copied to {target.device}", place_of_call())  # type: ignore[union-attr]  # a tensor, by the check above
        device = kwargs.get("device")
        if device is not None and isinstance(target, Tensor) and torch.device(device).type not in ("jax", "meta"):
            self.lift(target)
            if self._known(array_of(target)) is None:
                raise refusal(f"it is moved to {device}", place_of_call())
        static = _static_of(func) if func is not None and _has_numbers(args, kwargs) else frozenset()
        return (
            [self._one(a, i in static) for i, a in enumerate(args)],
            {k: self._one(v, k in static) for k, v in kwargs.items()},
        )

    def _one(self, value: Any, is_static: bool) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) in (list, tuple):
            return [self._one(v, is_static) for v in value]
        number = node_of(value) if type(value) is torch.SymFloat else None
        if number is None:
            return value
        return number.guard_float("", 0) if is_static else number.array

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, Tensor):
            self.lift(tensor)
        elif tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return self._from_cpu(tensor)
        return tensor

    def lift(self, tensor: torch.Tensor) -> None:
        """Gives the storage of a tensor a traced array, if it has one with values from before the capture."""
        if is_traced(tensor):
            return
        root = tensor.view_of_arrays.storage.root  # type: ignore[attr-defined]  # it is on the device
        if id(root) in self.lifted or id(root) in self._born_storages:
            return
        array = root.array
        if isinstance(array, jax.core.Tracer):  # made from a view of another storage
            self._born_storages[id(root)] = root
            return
        source = self._foreseen.get(id(root))
        if source is None:
            source = Source("met", (TensorWeakRef(tensor), root))
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self.leaves:
            self.leaves[id(tensor)] = tensor, tensor.grad
        index = len(self.operands)
        traced = self.bind(source, partitioned.as_traced(array))
        self.lifted[id(root)] = Lifted(root, array, traced, index)
        begin_trace(root, traced)

    def _from_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._moved.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        array = bridge.uncommitted(tensor.detach().clone(memory_format=torch.contiguous_format))
        traced = self.bind(
            Source("cpu", (TensorWeakRef(tensor), tensor._version, array)),
            jax.core.ShapedArray(array.shape, array.dtype),
        )
        moved = from_array(traced)
        self._moved[id(tensor)] = TensorWeakRef(tensor), moved
        return moved

    def made(self, tensor: torch.Tensor) -> None:
        root = tensor.view_of_arrays.storage.root  # type: ignore[attr-defined]  # it is on the device
        self.born[id(tensor)] = TensorWeakRef(tensor)
        if id(root) not in self.lifted and (root.version == 0 or isinstance(root.array, jax.core.Tracer)):
            self._born_storages.setdefault(id(root), root)

    def backward_begins(self) -> None:
        if self.at_backward is not None:
            self.at_backward[0]()

    def backward_ends(self) -> None:
        if self.at_backward is not None:
            self.at_backward[1]()

    @contextlib.contextmanager
    def answering(self, *answers: bool) -> Iterator[None]:
        """The values of the next reads of the step, which the caller handles for both results."""
        self._answers = list(answers)
        try:
            yield
        finally:
            self._answers = []

    def storages(self) -> Iterator[tuple[int, Storage]]:
        """The storages that have traced arrays now."""
        yield from ((key, found.storage) for key, found in list(self.lifted.items()))
        yield from list(self._born_storages.items())

    def read(self, array: Any) -> Any:
        """A value that the step reads: in an optimizer a number of the program, elsewhere an error."""
        if not isinstance(array, jax.core.Tracer):
            return None
        if self._answers:
            return self._answers.pop(0)
        known = None if self.reads_numbers else self._known(array)
        if known is not None:
            return known.item()
        if not self.reads_numbers or not jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
            raise refusal("item(), bool() or float()", place_of_call())
        with core.set_current_trace(self._trace):
            weak = weakened.bind(jax.lax.convert_element_type(array.reshape(()), "float64"))
        return symbol(Number(None, lambda: weak, self.conditions))

    def values(self, array: Any) -> Any:
        return self.early.value(array, self._array_of)

    def _known(self, array: Any) -> Any:
        found = constant_value(array)
        return self.values(array) if found is None else found

    def _array_of(self, index: int) -> Any:
        """The array of an operand; None if it has no values before the program runs."""
        source, _ = self.operands[index]
        if source.kind == "cpu":
            return source.what[2]
        found = next((lifted.array for lifted in self.lifted.values() if lifted.operand == index), None)
        return None if isinstance(found, AbstractArray) else found

    def number(self, index: int) -> torch.SymFloat:
        """A number of a parameter group, which becomes an operand when it is first used."""
        aval = jax.core.ShapedArray((), "float64", weak_type=True)
        number = Number(lambda values: values[index], lambda: self.bind(Source("number", index), aval), self.conditions)
        return symbol(number)

    # what is left

    def is_born(self, tensor: torch.Tensor) -> bool:
        """True if a tensor was made in the capture."""
        found = self.born.get(id(tensor))
        return found is not None and found() is tensor

    def survivors(self) -> list[torch.Tensor]:
        """The tensors made in the capture that are still alive."""
        return [tensor for ref in self.born.values() if (tensor := ref()) is not None]

    def is_own(self, root: Storage) -> bool:
        """True if a storage was made in the capture."""
        return id(root) in self._born_storages

    def changed(self) -> list[Lifted]:
        """The storages that have been written to."""
        return [found for found in self.lifted.values() if found.storage.array is not found.traced]

    def is_moved(self, tensor: torch.Tensor) -> bool:
        """True if a tensor stands for one in torch's memory."""
        return any(moved is tensor for _, moved in self._moved.values())

    def taken_from_memory(self) -> frozenset[int]:
        """The tensors in torch's memory, by `id`, that are operands."""
        found = [source.what[0]() for source, _ in self.operands if source.kind == "cpu"]
        return frozenset([id(tensor) for tensor in found if tensor is not None])

    def forget_moved(self) -> None:
        """Releases the tensors that stand for those in torch's memory."""
        self._moved.clear()

    def restore(self) -> None:
        """Gives the storages their own arrays back."""
        for found in self.lifted.values():
            end_trace(found.storage, found.array)
        for leaf, gradient in self.leaves.values():
            if leaf.is_leaf and leaf.grad is not gradient:
                leaf.grad = gradient


def _has_numbers(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    values = (v for a in (*args, *kwargs.values()) for v in (a if isinstance(a, list | tuple) else (a,)))
    return any(type(v) is torch.SymFloat for v in values)


@functools.cache
def _static_of(func: Any) -> frozenset[int | str]:
    """The static arguments of an operator's kernel, by position and by name."""
    overload = func.name().partition("::")[2]
    base = VARIANTS[overload].base if overload in VARIANTS else overload
    entry = registry.KERNELS.get(base)
    names = entry.static if entry is not None else ()
    at = {a.name: i for i, a in enumerate(func._schema.arguments)}
    return frozenset(names) | frozenset(at[n] for n in names if n in at)


def check_given(tensor: torch.Tensor) -> None:
    """Raises for an unsupported argument."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise UnsupportedInputError(
            "an argument of the step", "a tensor that a graph was recorded for", "x.detach(): the step ends there"
        )
