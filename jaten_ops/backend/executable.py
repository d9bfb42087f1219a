"""A compiled graph: tensors in, one executable, tensors out."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import torch

from jaten_ops.arrays import bridge, carrier
from jaten_ops.arrays.storage_views import Storage, View
from jaten_ops.arrays.strides import order_of, strides_in
from jaten_ops.cpu.layouts import Order
from jaten_ops.errors import KernelResultError
from jaten_ops.xla import cpu_client, disk_store, x64
from jaten_ops.xla.progress import announced

from .compile_log import GraphLog
from .executable_cache import CompileRequest, build
from .generated_call import Program, Static, Write, generate_call
from .layout import Layout, concretize, is_symbolic, layout_of, symbols_of
from .lowering import Lowered
from .passes.partial_writes import parts_of, taken
from .passes.traced_ints import SPEC, from_operand, numbers_of, to_operand
from .serialized_graph import plan_of
from .targets import source_line


class _Output:
    """How one output of the graph becomes a value: a tensor made of an array, an input handed back, a size, None.

    Args:
        node: the output.
        inputs: the numbers of the inputs.
        seen: whether the user may see it.
    """

    def __init__(self, node: Any, inputs: dict[torch.fx.Node, int], *, seen: bool) -> None:
        self.node = node
        is_node = isinstance(node, torch.fx.Node)
        self.input = inputs.get(node) if is_node else None
        self.value = node.meta.get("val") if is_node else node
        is_tensor = self.input is None and isinstance(self.value, torch.Tensor)
        self.on_jax = is_tensor and self.value.device.type == "jax"
        self.is_array = is_tensor
        self._seen = seen

    def layout(self, symbols: dict[Any, int]) -> Layout | None:
        """The strides in which the output is handed out, for given sizes; None for row-major."""
        if not self._seen or self.on_jax:
            return None
        sizes = [concretize(s, symbols) for s in self.value.shape]
        return layout_of(sizes, [concretize(s, symbols) for s in self.value.stride()])

    @property
    def is_free(self) -> bool:
        """Whether its dimensions may come in any order: only the backward graph will see it."""
        return not self._seen

    def check(self, array: jax.Array, symbols: dict[Any, int]) -> None:
        """Raises KernelResultError where the output is not what its fake says, of which its users are sure."""
        got = tuple(array.shape), np.dtype(array.dtype)
        said = tuple([concretize(s, symbols) for s in self.value.shape]), bridge.to_numpy_dtype(self.value.dtype)
        if got != said:
            raise KernelResultError(f"{self.node.name} = {self.node.target}", got, said, source_line(self.node))

    def export(
        self, layout: Layout | None, order: Order | None, symbols: dict[Any, int], *, keeps: bool
    ) -> Callable[[jax.Array], torch.Tensor]:
        """What makes a tensor of the array, whose dimensions are in this order, and keeps the array with it."""
        shape = tuple([concretize(s, symbols) for s in self.value.shape])
        if self.on_jax:
            if order is None:
                return carrier.wrap
            stride = strides_in(shape, order)
            return lambda array: carrier.of(View(Storage(array), shape, stride, 0))
        export = bridge.exporter(self.value.dtype, math.prod(shape))
        if layout is not None:
            return lambda array: layout.laid_out(export(array))
        if self._seen:
            return export
        if order is None:
            return (lambda array: _with_array(export(array), array)) if keeps else export
        # a view, in whose place AOTAutograd saves another: no attribute would stay, but its strides tell the order
        inverse = tuple(order.index(d) for d in range(len(order)))
        return lambda array: export(array).permute(inverse)

    def other(self, symbols: dict[Any, int]) -> Any:
        """What stands for an output that is not made of an array, as `Program.outputs` has it."""
        if self.input is not None:
            return self.input
        return (concretize(self.value, symbols),)


def _with_array(tensor: torch.Tensor, array: jax.Array) -> torch.Tensor:
    """A tensor that only the backward graph will see, with the array that it takes then."""
    tensor._jaten_array = array  # type: ignore[attr-defined]  # an attribute of our own
    return tensor


def _converter_of_saved(place: Any) -> Callable[[torch.Tensor], Any]:
    """What converts inputs that the forward graph may have made: they have its arrays with them, if any."""

    def convert(tensor: torch.Tensor) -> Any:
        array = getattr(tensor, "_jaten_array", None)
        return bridge.lend(tensor, place) if array is None else array

    return convert


def _converter_in(order: Order, tensor: torch.Tensor, place: Any) -> Callable[[torch.Tensor], Any]:
    """What converts inputs of a tensor's shape and device to arrays whose dimensions are in an order."""
    if tensor.device.type != "jax":
        return lambda tensor: bridge.lend(tensor.permute(order), place)
    stride = strides_in(tuple(tensor.shape), order)
    return lambda tensor: carrier.view_of(tensor).in_order(order, stride)


def _order(tensor: Any) -> Order | None:
    """The order in which the dimensions of an input lie; None if it is row-major or has gaps."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    if tensor.device.type == "jax":
        return carrier.view_of(tensor).order()
    return order_of(tuple(tensor.shape), tensor.stride()) if tensor.device.type == "cpu" else None


_EXECUTABLES: weakref.WeakSet[Executable] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked process each graph is to be compiled again, which is refused there if JAX was running before.

    XLA's threads are gone, and a program would wait for them.
    """
    for executable in _EXECUTABLES:
        executable.forget()


os.register_at_fork(after_in_child=_after_fork)


class Executable:
    """A graph of jaten ops, called with a list of tensors and sizes, which it empties.

    Args:
        gm: the graph.
        static_inputs: the indices of inputs that keep their memory from call to call.
        seen: how many of the outputs the user may see, which get the strides that the graph says; None for all.
        written: for each output that is an input's new value the number of that input.

    Attributes:
        plan: the graph's, by which its executable is found on the disk; None if it has none, or nothing is kept.
        log: tells what is compiled.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, *, static_inputs: frozenset[int], seen: int | None, written: Mapping[int, int]
    ) -> None:
        self.plan = None if disk_store.folder() is None else plan_of(gm)
        self.log = GraphLog(gm)
        self._lowered = lowered = Lowered(gm, torch.get_default_dtype())
        values: list[Any] = [n.meta.get("val") for n in lowered.placeholders]
        index = {n: i for i, n in enumerate(lowered.placeholders)}
        every = numbers_of(gm.graph)
        self._outputs = [_Output(n, index, seen=seen is None or i < seen) for i, n in enumerate(lowered.outputs)]
        self._parts = parts_of(lowered.outputs, index, written)
        for n in self._parts:  # the input itself is handed back
            self._outputs[n] = _Output(lowered.placeholders[written[n]], index, seen=True)
        # one array may be two outputs, for the user and for the backward, with different strides
        self._arrays = [o for o in self._outputs if o.is_array] + [
            _Output(node, index, seen=True) for part in self._parts.values() for node in part.computed
        ]
        # that nothing is computed with, as the ids of nested tensors' lengths: they are handed back as they came
        self._passed = passed = {index[n] for n in every if all(user.op == "output" for user in n.users)}
        numbers = {index[n] for n in every} - passed
        self._dynamic = any(is_symbolic(v) for i, v in enumerate(values) if i not in numbers | passed)
        self._tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) or i in numbers]
        self._sizes = sorted({*range(len(values))}.difference(self._tensors, passed))
        self._numbers = [at for at, i in enumerate(self._tensors) if i in numbers]
        self._static = sorted(i for i in static_inputs if i not in numbers and _is_on_cpu(values[i]))
        self._donated = {part.input for part in self._parts.values() if part.donated}
        self._calls: dict[tuple[Any, ...], Callable[[list[Any]], list[Any]]] = {}
        handed = {v.device.type for v in [*values, *(o.value for o in self._arrays)] if isinstance(v, torch.Tensor)}
        self._on_host = handed == {"cpu"}
        self._place = cpu_client.device() if self._on_host else bridge.cpu_device() if "cpu" in handed else None
        self._statics: dict[tuple[int, Order | None], Static] = {}
        borrows = any(isinstance(v, torch.Tensor) and v.device.type != "jax" for v in values)
        # XLA computes asynchronously: until it is done, a torch program could write to the memory that it reads
        writes_at_once = any(not part.donated and not part.computed for part in self._parts.values())
        self._must_wait = writes_at_once or (borrows and all(o.on_jax for o in self._arrays))
        _EXECUTABLES.add(self)

    def __call__(self, args: list[Any]) -> list[Any]:
        key = (*[_shape(args[i]) for i in self._tensors], *[args[i] for i in self._sizes]) if self._dynamic else ()
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._compile(args)
        return call(args)

    def forget(self) -> None:
        """Leaves what has been compiled."""
        self._calls.clear()

    def _operands(self, args: list[Any], orders: dict[int, Order | None]) -> list[tuple[int, Any]]:
        """For each operand the number of the input and what converts it, or keeps its array."""
        numbers = {self._tensors[at] for at in self._numbers}
        found: list[tuple[int, Any]] = []
        for i in self._tensors:
            if i in self._static:
                found.append((i, self._statics.setdefault((i, orders[i]), Static(orders[i], self._place))))
            elif (order := orders[i]) is not None:
                found.append((i, _converter_in(order, args[i], self._place)))
            elif i in self._donated:
                found.append((i, taken))
            else:
                found.append((i, to_operand if i in numbers else self._converter(args[i])))
        return found

    def _converter(self, value: Any) -> Callable[[Any], Any]:
        """What converts an input that is not static, in the program's order."""
        kind = value.device.type
        if kind == "cpu":
            place = self._place
            return _converter_of_saved(place) if self._on_host else lambda tensor: bridge.lend(tensor, place)
        return carrier.unwrap if kind == "jax" else bridge.borrow

    def _compile(self, args: list[Any]) -> Callable[[list[Any]], list[Any]]:
        """The call for inputs of such sizes."""
        lowered = self._lowered
        orders = {i: None if i in self._donated else _order(args[i]) for i in self._tensors}
        operands = self._operands(args, orders)
        arrays = [take.keep(args[i]) if isinstance(take, Static) else take(args[i]) for i, take in operands]
        sizes = {lowered.placeholders[i]: args[i] for i in self._sizes}
        tensors = [lowered.placeholders[i] for i in self._tensors]
        values = [None if i in self._passed else n.meta.get("val") for i, n in enumerate(lowered.placeholders)]
        symbols = symbols_of(values, args) if self._dynamic else {}
        layouts = [o.layout(symbols) for o in self._arrays]
        wanted = [o.node for o in self._arrays]
        errors: list[Exception] = []

        def graph(*arrays: jax.Array) -> list[jax.Array]:
            seed = arrays[-1] if lowered.random else None
            values = sizes | dict(zip(tensors, arrays, strict=False))
            values |= {tensors[at]: from_operand(arrays[at]) for at in self._numbers}
            results, conditions = lowered(values, seed, wanted)
            for output, array in zip(self._arrays, results, strict=True):
                output.check(array, symbols)
            errors[:] = conditions.errors
            stored = [a if x is None else x.store(a) for a, x in zip(results, layouts, strict=True)]
            return [*stored, conditions.stacked()] if conditions.errors else stored

        device = self._device(args)
        with (
            x64.tracing(),
            jax.default_device(device) if device else contextlib.nullcontext(),
            announced(f"a graph of {lowered.calls} operators"),
            self.log.compiling(symbols, arrays),
        ):
            shapes = [SPEC if at in self._numbers else _described(a, self._place) for at, a in enumerate(arrays)]
            if lowered.random:
                shapes.append(_described(np.empty((), np.int64), self._place))
            donated = [at for at, i in enumerate(self._tensors) if i in self._donated]
            run, left = build(
                CompileRequest(
                    *(graph, shapes, [*orders.values(), *[None] * lowered.random]),
                    *([o.is_free for o in self._arrays], donated),
                ),
                *(errors, self.plan, repr((layouts, lowered.default_float, sorted(self._parts), str(device)))),
            )
        each = zip(self._arrays, layouts, left, strict=False)  # the conditions come last
        exports = iter([o.export(layout, order, symbols, keeps=self._on_host) for o, layout, order in each])
        outputs = [next(exports) if o.is_array else o.other(symbols) for o in self._outputs]
        writes = self._writes(sum(o.is_array for o in self._outputs), exports)
        seed = _seed if lowered.random else None
        wide = lowered.random or any(not isinstance(take, Static) and bridge.is_wide(args[i]) for i, take in operands)
        program = Program(run, operands, outputs, errors, seed, wide, self._must_wait, writes)
        return generate_call(program, len(args))

    def _device(self, args: list[Any]) -> Any:
        """The device of a program of the device `jax`, also of one that reads no input; None for the first."""
        made = {o.value.device for o in self._arrays if o.on_jax}
        if not made:
            return None
        given = [args[i] for i in self._tensors if isinstance(args[i], torch.Tensor) and args[i].device.type == "jax"]
        used = [d for tensor in given for d in carrier.unwrap(tensor).devices()]
        named = [jax.devices()[device.index] for device in made if device.index]
        return next((d for d in (*used, *named) if d is not jax.devices()[0]), None)

    def _writes(self, begin: int, exports: Iterator[Callable[[Any], Any]]) -> list[Write]:
        """What is done with the results that come after the graph's own."""
        at = itertools.count(begin)
        return [
            Write(
                *(part.input, part.write, part.donated),
                [g if isinstance(g, int) else (next(at), next(exports)) for g in part.given],
            )
            for part in self._parts.values()
        ]


def _is_on_cpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _shape(value: Any) -> Any:
    """What of an operand decides the executable: a number is handed over whatever it is."""
    return value.shape if isinstance(value, torch.Tensor) else None


def _described(array: Any, place: Any) -> Any:
    """An operand's shape, dtype and place: for what is lent from torch's memory the program's, if it has one."""
    if isinstance(array, jax.Array):
        return array
    sharding = None if place is None else jax.sharding.SingleDeviceSharding(place)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def _seed() -> np.ndarray:
    return torch.empty((), dtype=torch.int64).random_().numpy()
