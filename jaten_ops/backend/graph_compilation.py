"""The compilation of a graph for inputs of some sizes, and the call that comes of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Sharding

from jaten_ops.arrays import bridge, carrier, gpu_memory, partitioned
from jaten_ops.arrays.abstract_arrays import AbstractArray
from jaten_ops.arrays.strides import order_of, strides_in
from jaten_ops.cpu.layouts import Order
from jaten_ops.errors import MissingValuesError, UnsupportedInputError
from jaten_ops.kernels import joining
from jaten_ops.xla import autotune_mode, x64
from jaten_ops.xla.progress import announced

from . import small_gradients
from .compile_log import GraphLog
from .executable_cache import CompileRequest, build
from .generated_call import CallPlan, PackedOutput, WriteBack, generate_call
from .graph_description import Description, Output
from .layout import StridedLayout, symbols_of
from .lent_inputs import Lent, Static
from .nan_search import place_of_nan
from .nodes import fake_value
from .passes.partial_writes import taken
from .passes.traced_ints import SPEC, from_operand, to_operand
from .serialized_graph import Plan

Call = Callable[[list[Any]], list[Any]]
"""Takes a list of inputs, which it empties; returns the outputs."""


@dataclass
class Compiler:
    """The compiler of a graph, which compiles it for each combination of sizes.

    Attributes:
        described: the graph.
        plan: the graph's, by which its executable is found on the disk; None if it has none, or nothing is kept.
        log: tells what is compiled.
        autotune: which operations are measured; None for what holds in the process.
        mesh: a sharding over the mesh on which the graph places values; None if it does not.
        statics: the arrays of inputs that keep their memory, by their numbers and orders; all calls share them.
    """

    described: Description
    plan: Plan | None
    log: GraphLog
    autotune: autotune_mode.AutotuneMode | None = None
    mesh: Sharding | None = None
    statics: dict[tuple[int, Order | None], Static] = field(default_factory=dict)

    def compile(self, args: list[Any]) -> Call:
        """The call for inputs of the sizes that these have."""
        graph = self.described
        orders = {i: None if i in graph.donated else _order(args[i]) for i in graph.tensors}
        mesh = _common_sharding(graph, args) or self.mesh
        device = _device(graph, args)
        place = graph.place if mesh is None else partitioned.replicated(mesh)
        place = place if device is None or place is None else device
        operands = self._operands(args, orders, place)
        if mesh is None and len(jax.local_devices()) > 1:
            operands = [(i, _taken_to(take, args[i], device, i in graph.donated)) for i, take in operands]
        arrays = [_array(take, args[i]) for i, take in operands]
        values = [None if i in graph.passed else fake_value(n) for i, n in enumerate(graph.lowered.placeholders)]
        symbols = symbols_of(values, args) if graph.is_dynamic else {}
        layouts = [o.layout(symbols, over_mesh=mesh is not None) for o in graph.arrays]
        packed = small_gradients.packs(self._small(layouts))
        kept = small_gradients.others(packed, len(layouts))
        starts = [jax.device_put(joining.summands(start), place) for start in graph.lowered.starts.values()]
        errors: list[Exception] = []
        places = {at: _sharding(args[i]) for at, i in graph.replaced.items() if layouts[at] is None}
        request = CompileRequest(
            small_gradients.packed(_traceable(graph, args, symbols, layouts, errors, places), packed, kept),
            [*map(_spec, starts, itertools.repeat(place)), *self._specs(arrays, place)],
            [*[None] * len(starts), *orders.values(), *[None] * graph.lowered.random],
            [*[graph.arrays[i].is_free for i in kept], *[False] * len(packed)],
            [len(starts) + at for at, i in enumerate(graph.tensors) if i in graph.donated],
        )
        written = sorted(part.input for part in graph.writes)
        beside = repr((layouts, packed, graph.lowered.default_float, written, str(device)))
        with (
            x64.tracing(),
            jax.default_device(device) if device else contextlib.nullcontext(),
            announced(f"a graph of {graph.lowered.calls} operators"),
            self.log.compiling(symbols, arrays),
            autotune_mode.using(self.autotune),
        ):
            run, left = build(request, errors, self.plan, beside)
        self.log.compiled(run, arrays)
        made: dict[int, Any] = {
            i: PackedOutput(n, at) for n, pack in enumerate(packed) for at, i in enumerate(pack.members)
        }
        for i, order in zip(kept, left, strict=False):  # what is packed, and the conditions, come last
            keeps = graph.on_host or graph.arrays[i].value.is_cuda
            made[i] = graph.arrays[i].export(layouts[i], order, symbols, keeps=keeps, spread=mesh is not None)
            if mesh is None:
                made[i] = _put_on(graph.arrays[i], made[i], device)
        exports = iter([made[i] for i in range(len(layouts))])
        random = graph.lowered.random
        plan = CallPlan(
            gpu_memory.after_torch(run) if graph.fills_gpu else functools.partial(run, *starts) if starts else run,
            operands,
            [next(exports) if o.is_array else o.other(symbols) for o in graph.outputs],
            errors,
            seed=_seed if random else None,
            wide=random or any(not isinstance(take, Static) and bridge.is_wide(args[i]) for i, take in operands),
            waits=graph.must_wait,
            writes=self._writes(exports),
            unpackers=[pack.unpacker() for pack in packed],
        )
        return generate_call(plan, len(args), self._not_finite)

    def _small(self, layouts: Sequence[Any]) -> list[tuple[int, torch.dtype, tuple[int, ...]]]:
        """Gradients in torch's memory that may share an array, if they are small: places, dtypes and shapes."""
        graph = self.described
        if not graph.on_host or graph.writes:
            return []
        each = enumerate(zip(graph.arrays, layouts, strict=True))
        return [(i, o.value.dtype, tuple(o.value.shape)) for i, (o, x) in each if o.is_gradient and x is None]

    def place_of_nan(self, args: list[Any], kind: str = "nan") -> str:
        """Words for the operator from which a NaN in the results comes; empty if there is none. Nothing is changed."""
        graph = self.described
        values: dict[Any, Any] = {graph.lowered.placeholders[i]: args[i] for i in graph.sizes}
        with x64.tracing():
            for at, i in enumerate(graph.tensors):
                value = args[i]
                if at in graph.numbers:
                    array = from_operand(jnp.asarray(to_operand(value)))
                else:
                    array = carrier.unwrap(value) if value.device.type == "jax" else bridge.borrow(value)
                if array.is_deleted():  # it was given away, to be written to
                    return ""
                values[graph.lowered.placeholders[i]] = array
            return place_of_nan(graph.lowered, values, 0 if graph.lowered.random else None, kind)

    def _not_finite(self, error: Exception, args: list[Any]) -> NoReturn:
        """Raises the error of `jax_debug_nans` with the line of the user's program."""
        *_, kind = error.args
        where = self.place_of_nan(args, kind) or f"a result has a value that is {kind}"
        raise FloatingPointError(f"{self.log.title}: {where}") from None

    def _operands(self, args: list[Any], orders: Mapping[int, Order | None], place: Any) -> list[tuple[int, Any]]:
        """For each operand the index of its input, and its conversion or stored array."""
        graph = self.described
        numbers = {graph.tensors[at] for at in graph.numbers}
        found: list[tuple[int, Any]] = []
        for i in graph.tensors:
            if i in graph.static and place is graph.place:  # several devices do not share torch's memory
                found.append((i, self.statics.setdefault((i, orders[i]), Static(orders[i], place))))
            elif (order := orders[i]) is not None:
                found.append((i, _converter_in(order, args[i], place)))
            elif i in graph.donated:
                found.append((i, taken))
            else:
                found.append((i, to_operand if i in numbers else _converter(args[i], graph.on_host, place)))
        return found

    def _specs(self, arrays: Sequence[Any], place: Any) -> list[Any]:
        """Shape, dtype and place of each operand, and of the seed behind them."""
        graph = self.described
        specs = [SPEC if at in graph.numbers else _spec(a, place) for at, a in enumerate(arrays)]
        return [*specs, *[_spec(np.empty((), np.int64), None if graph.place is None else place)] * graph.lowered.random]

    def _writes(self, exports: Iterator[Callable[[Any], Any]]) -> list[WriteBack]:
        """The writes of the results that follow the graph's own."""
        at = itertools.count(sum(o.is_array for o in self.described.outputs))
        return [
            WriteBack(
                *(part.input, part.write, part.donated),
                [g if isinstance(g, int) else (next(at), next(exports)) for g in part.given],
            )
            for part in self.described.writes
        ]


def _traceable(
    graph: Description,
    args: Sequence[Any],
    symbols: Mapping[Any, int],
    layouts: Sequence[StridedLayout | None],
    errors: list[Exception],
    places: Mapping[int, Any],
) -> Callable[..., list[jax.Array]]:
    """The graph as a function of its operands, that fills a list with what its conditions stand for.

    Results for which `places` has a sharding get that one.
    """
    placeholders, numbers, starts = graph.lowered.placeholders, set(graph.numbers), [*graph.lowered.starts]
    sizes = {placeholders[i]: args[i] for i in graph.sizes}
    tensors = [placeholders[i] for i in graph.tensors]
    wanted = [o.node for o in graph.arrays]

    def run(*arrays: jax.Array) -> list[jax.Array]:
        seed = arrays[-1] if graph.lowered.random else None
        given = [from_operand(a) if at in numbers else a for at, a in enumerate(arrays[len(starts) :])]
        values = sizes | dict(zip(tensors, given, strict=False)) | dict(zip(starts, arrays, strict=False))
        results, conditions = graph.lowered(values, seed, wanted)
        for output, array in zip(graph.arrays, results, strict=True):
            output.check(array, symbols)
        errors[:] = conditions.errors
        for at, sharding in places.items():
            if sharding is not None:
                results[at] = jax.lax.with_sharding_constraint(results[at], sharding)
        stored = [a if x is None else x.store(a) for a, x in zip(results, layouts, strict=True)]
        return [*stored, conditions.stacked()] if conditions.errors else stored

    return run


def _sharding(value: Any) -> Any:
    """The sharding of a tensor over several devices; else None."""
    if not partitioned.MET or value.device.type != "jax":
        return None
    array = carrier.unwrap(value)
    return array.sharding if partitioned.is_partitioned(array) else None


def _array(take: Any, value: Any) -> Any:
    """An operand made of an input."""
    if isinstance(take, Static):
        return take.keep(value)
    return take.take(value) if isinstance(take, Lent) else take(value)


def _converter(value: Any, on_host: bool, place: Any) -> Callable[[Any], Any] | Lent:
    """A conversion for an input that is not static, with dimensions in the program's order."""
    kind = value.device.type
    if kind == "cpu" and on_host:
        if hasattr(value, "_jaten_array") or not value.numel() or not bridge.is_lent_as_numpy(value):
            return _converter_of_saved(place)
        return Lent(value, place)
    if kind == "cpu":
        return lambda tensor: bridge.lend(tensor, place)
    if kind == "jax":
        return carrier.unwrap
    return _converter_of_saved(place) if hasattr(value, "_jaten_array") else bridge.borrow


def _converter_of_saved(place: Any) -> Callable[[torch.Tensor], Any]:
    """A conversion for inputs that the forward graph has made: those carry its arrays, unless a hook replaced them."""

    def convert(tensor: torch.Tensor) -> Any:
        array = getattr(tensor, "_jaten_array", None)
        if array is not None:
            return array
        return bridge.lend(tensor, place) if tensor.is_cpu else bridge.borrow(tensor)

    return convert


def _converter_in(order: Order, tensor: torch.Tensor, place: Any) -> Callable[[torch.Tensor], Any]:
    """A conversion of inputs, of a tensor's shape and device, to arrays with dimensions in an order."""
    if tensor.device.type != "jax":
        return lambda tensor: bridge.lend(tensor.permute(order), place)
    stride = strides_in(tuple(tensor.shape), order)
    return lambda tensor: carrier.view_of(tensor).in_order(order, stride)


def _order(tensor: Any) -> Order | None:
    """The dimensions of an input by decreasing stride; None if it is contiguous or has gaps."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    if tensor.device.type == "jax":
        return carrier.view_of(tensor).order()
    return order_of(tuple(tensor.shape), tensor.stride()) if tensor.device.type == "cpu" else None


def _spec(array: Any, place: Any) -> Any:
    """An operand's shape, dtype and device; for torch's memory the program's device, if it has one."""
    if isinstance(array, jax.Array):
        return array
    if isinstance(array, AbstractArray):
        raise MissingValuesError
    sharding = jax.sharding.SingleDeviceSharding(place) if isinstance(place, jax.Device) else place
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def _on_jax(graph: Description, args: Sequence[Any]) -> list[torch.Tensor]:
    return [args[i] for i in graph.tensors if isinstance(args[i], torch.Tensor) and args[i].device.type == "jax"]


def _common_sharding(graph: Description, args: Sequence[Any]) -> Sharding | None:
    return partitioned.common_sharding(map(carrier.unwrap, _on_jax(graph, args))) if partitioned.MET else None


def _device(graph: Description, args: Sequence[Any]) -> Any:
    """The JAX device of a program with tensors of the device `jax`, even without inputs; None for the first device."""
    made = {o.value.device for o in graph.arrays if o.on_jax}
    arrays = [carrier.unwrap(tensor) for tensor in _on_jax(graph, args)]
    if any(map(partitioned.is_partitioned, arrays)):
        return None
    used = [d for array in arrays for d in array.devices()]
    named = [jax.local_devices()[device.index] for device in made if device.index]
    return next((d for d in (*used, *named) if d is not jax.local_devices()[0]), None)


def _put_on(output: Output, export: Callable[[Any], Any], device: Any) -> Callable[[Any], Any]:
    """Makes a tensor of a result, on the device that the graph names, if the program runs on another."""
    if not output.on_jax or len(jax.local_devices()) == 1:
        return export
    first, *_ = devices = jax.local_devices()
    wanted = devices[output.value.device.index or 0]
    return export if wanted == (device or first) else lambda array: export(partitioned.moved(array, wanted))


def _taken_to(take: Any, value: Any, device: Any, is_donated: bool) -> Any:
    """Takes an operand, from another device than the program's as well.

    Raises:
        UnsupportedInputError: the program writes to it, and would have to move it there and back.
    """
    device = device or jax.local_devices()[0]
    if not isinstance(value, torch.Tensor) or value.device.type != "jax" or carrier.unwrap(value).devices() == {device}:
        return take
    if is_donated:
        raise UnsupportedInputError(
            "a compiled program with tensors of several devices", f"a write to a part of a tensor on {value.device}",
            "writes to tensors of one device",
        )  # fmt: skip
    return lambda tensor: partitioned.moved(take(tensor), device)


def _seed() -> np.ndarray:
    return torch.empty((), dtype=torch.int64).random_().numpy()
