"""The inputs and outputs of a graph: the operands of its executable, and the use of its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from jaten_ops.arrays import bridge, carrier, gpu_memory
from jaten_ops.arrays.storage_views import Storage, View
from jaten_ops.arrays.strides import strides_in
from jaten_ops.cpu.layouts import Order
from jaten_ops.errors import KernelResultError
from jaten_ops.tensor.tensor import PUT_IN_PLACE, from_array, from_view
from jaten_ops.xla import cpu_client

from .generated_call import SavedInput
from .graph_info import GraphInfo, PartialWrite
from .layout import StridedLayout, concretize, is_symbolic, strided_layout_of
from .lowering import Lowered
from .nodes import fake_value, is_jax_node, is_of_meta, source_line


class Output:
    """The conversion of one output of the graph to a value: a tensor of an array, an input, a size, or None.

    Args:
        node: the output.
        inputs: the numbers of the inputs.
        seen: whether the user may see it.
        is_gradient: whether it leaves as a gradient: on the device as the user's tensor, and not as a carrier, of which
            AOTAutograd would make one.
        strides: on the device, those that it has; None if it is row-major.
        is_absent: whether it stands for a gradient on the device of which there is none.
    """

    def __init__(
        self,
        node: Any,
        inputs: Mapping[torch.fx.Node, int],
        *,
        seen: bool,
        is_gradient: bool = False,
        strides: tuple[int, ...] | None = None,
        is_absent: bool = False,
    ) -> None:
        self.node = node
        is_node = isinstance(node, torch.fx.Node)
        self.input = inputs.get(node) if is_node else None
        self.value = node.meta.get("val") if is_node else node
        self.is_array = self.input is None and isinstance(self.value, torch.Tensor)
        self.on_jax = self.is_array and is_jax_node(node)
        self._seen, self.is_gradient, self._strides, self._is_absent = seen, is_gradient, strides, is_absent

    def layout(self, symbols: Mapping[Any, int], *, over_mesh: bool = False) -> StridedLayout | None:
        """The strides of the output, for given sizes; None if it is contiguous, or one of the device over a mesh."""
        if self.on_jax:
            known = self._strides is not None and not over_mesh
            return strided_layout_of(self.value.shape, self._strides) if known else None  # type: ignore[arg-type]  # no None
        if not self._seen:
            return None
        sizes = [concretize(s, symbols) for s in self.value.shape]
        return strided_layout_of(sizes, [concretize(s, symbols) for s in self.value.stride()])

    @property
    def is_free(self) -> bool:
        """True if its dimensions may be in any order: only the backward graph will see it."""
        return not self._seen

    def check(self, array: jax.Array, symbols: Mapping[Any, int]) -> None:
        """Raises KernelResultError if the output differs from its fake, on which its users rely."""
        got = tuple(array.shape), np.dtype(array.dtype)
        said = tuple([concretize(s, symbols) for s in self.value.shape]), bridge.to_numpy_dtype(self.value.dtype)
        if got != said:
            raise KernelResultError(f"{self.node.name} = {self.node.target}", got, said, source_line(self.node))

    def export(
        self,
        layout: StridedLayout | None,
        order: Order | None,
        symbols: Mapping[Any, int],
        *,
        keeps: bool,
        spread: bool = False,
    ) -> Callable[[jax.Array], torch.Tensor]:
        """A function that makes a tensor of an array with dimensions in this order.

        Args:
            layout, order: those of the array.
            symbols: the sizes.
            keeps: whether the array is stored with the tensor.
            spread: whether the array may be on several devices.
        """
        shape = tuple([concretize(s, symbols) for s in self.value.shape])
        if self.on_jax:
            if layout is not None:
                return lambda array: carrier.of(View(Storage(array), shape, layout.strides, 0))
            if order is None:
                return from_array if self.is_gradient else carrier.wrap
            stride, dtype = strides_in(shape, order), self.value.dtype
            if self.is_gradient:
                return lambda array: from_view(View(Storage(array), shape, stride, 0), dtype)
            return lambda array: carrier.of(View(Storage(array), shape, stride, 0))
        export = bridge.exporter(self.value.dtype, math.prod(shape), self.value.device.type, spread=spread)
        if layout is not None:
            return lambda array: layout.laid_out(export(array))
        if self._seen:
            return export
        if order is None:
            return (lambda array: _with_array(export(array), array)) if keeps else export
        # a view, which AOTAutograd replaces by another when it saves it: it loses attributes, but not its strides
        inverse = tuple(order.index(d) for d in range(len(order)))
        return lambda array: export(array).permute(inverse)

    def other(self, symbols: Mapping[Any, int]) -> Any:
        """The entry in `CallPlan.outputs` of an output that is not made of an array."""
        if self.input is not None:
            return SavedInput(self.input) if not self._seen and is_jax_node(self.node) else self.input
        return (PUT_IN_PLACE if self._is_absent else concretize(self.value, symbols),)


def _with_array(tensor: torch.Tensor, array: jax.Array) -> torch.Tensor:
    """A tensor that only the backward graph will see, with its array."""
    tensor._jaten_array = array  # type: ignore[attr-defined]  # an attribute of our own
    return tensor


@dataclass(frozen=True)
class Description:
    """A graph as its executable's calls see it.

    Attributes:
        lowered: the graph as a JAX function.
        outputs: what the call returns.
        arrays: the outputs that are results of the executable, and behind them what is written to inputs.
        writes: the inputs of which a part is written.
        tensors: the numbers of the inputs that are operands.
        numbers: the places among the operands of those that are numbers.
        sizes: the numbers of the inputs that are compiled in.
        passed: the numbers of inputs with which nothing is computed: they are handed back as they came.
        static: the numbers of inputs that keep their memory from call to call.
        donated: the numbers of inputs that give their arrays away.
        replaced: by the places among the arrays of new values of inputs, the numbers of these.
        is_dynamic: whether sizes may change.
        on_host: whether all tensors are on the CPU.
        place: the JAX device of a program with tensors of torch's; None where all are of the device `jax`.
        must_wait: whether a call is over only when the results are there.
        fills_gpu: whether it makes CUDA tensors and takes none.
    """

    lowered: Lowered
    outputs: Sequence[Output]
    arrays: Sequence[Output]
    writes: Sequence[PartialWrite]
    tensors: Sequence[int]
    numbers: Sequence[int]
    sizes: Sequence[int]
    passed: frozenset[int]
    static: Sequence[int]
    donated: frozenset[int]
    replaced: Mapping[int, int]
    is_dynamic: bool
    on_host: bool
    place: Any
    must_wait: bool
    fills_gpu: bool


def describe(lowered: Lowered, info: GraphInfo) -> Description:
    """Describes a graph of jaten's operators.

    Args:
        lowered: the graph.
        info: what the passes have found.
    """
    values = [fake_value(node) for node in lowered.placeholders]
    index = {n: i for i, n in enumerate(lowered.placeholders)}
    outputs, arrays = _outputs(lowered, info, index)
    # as the ids of nested tensors' lengths
    passed = frozenset(index[n] for n in info.numbers if all(user.op == "output" for user in n.users))
    without = frozenset(i for i, v in enumerate(values) if is_of_meta(v))  # handed back at most
    passed, values = passed | without, [None if i in without else v for i, v in enumerate(values)]
    numbers = {index[n] for n in info.numbers} - passed
    tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) or i in numbers]
    writes = list(info.partial_writes.values())
    kinds = {v.device.type for v in [*values, *(o.value for o in arrays)] if isinstance(v, torch.Tensor)}
    borrows = any(isinstance(v, torch.Tensor) and v.device.type != "jax" for v in values)
    # XLA computes asynchronously: before it is done, a torch program could write to the memory that it reads
    writes_at_once = any(not part.donated and not part.computed for part in writes)
    on_host = kinds == {"cpu"}
    return Description(
        lowered,
        outputs,
        arrays,
        writes,
        tensors,
        numbers=[at for at, i in enumerate(tensors) if i in numbers],
        sizes=sorted({*range(len(values))}.difference(tensors, passed)),
        passed=passed,
        static=_static(
            [i for i in sorted(info.static_inputs) if i not in numbers], [values[i] for i in tensors], values
        ),
        donated=frozenset(part.input for part in writes if part.donated),
        replaced=_replaced(info, outputs, arrays),
        is_dynamic=any(is_symbolic(v) for i, v in enumerate(values) if i not in numbers | passed),
        on_host=on_host,
        place=_place([v.device for v in [*values, *(o.value for o in arrays)] if isinstance(v, torch.Tensor)]),
        must_wait=writes_at_once or (borrows and all(o.on_jax for o in arrays)),
        fills_gpu=any(o.value.is_cuda for o in arrays)
        and not any(isinstance(v, torch.Tensor) and v.is_cuda for v in values),
    )


def _place(devices: Sequence[torch.device]) -> Any:
    """The JAX device of a program with tensors on these devices of torch, if some are CPU or CUDA tensors."""
    kinds = {device.type for device in devices}
    if kinds == {"cpu"}:
        return cpu_client.device()
    if "cuda" in kinds:
        return gpu_memory.gpu_device(next(d.index or 0 for d in devices if d.type == "cuda"))
    return jax.local_devices()[0] if "cpu" in kinds else None


def _outputs(
    lowered: Lowered, info: GraphInfo, index: Mapping[torch.fx.Node, int]
) -> tuple[list[Output], list[Output]]:
    """The outputs, and those that are arrays, with what is computed for writes behind them."""
    # the results of padded programs are cut, and writes take carriers
    is_fixed = not any(is_symbolic(fake_value(node)) for node in lowered.placeholders)
    gradients = info.is_backward and not info.writes and is_fixed
    outputs = [
        Output(
            *(n, index),
            seen=info.seen is None or i < info.seen,
            is_gradient=gradients,
            strides=info.result_strides.get(i),
            is_absent=i in info.unseen,
        )
        for i, n in enumerate(lowered.outputs)
    ]
    for n, part in info.partial_writes.items():  # the input itself is returned
        outputs[n] = Output(lowered.placeholders[part.input], index, seen=True)
    # one array may be two outputs, for the user and for the backward graph, with different strides
    computed = [node for part in info.partial_writes.values() for node in part.computed]
    return outputs, [o for o in outputs if o.is_array] + [Output(node, index, seen=True) for node in computed]


def _replaced(info: GraphInfo, outputs: Sequence[Output], arrays: Sequence[Output]) -> dict[int, int]:
    """The places among the arrays of whole new values of inputs, with the numbers of the inputs."""
    places = {id(o): at for at, o in enumerate(arrays)}
    found = {places[id(outputs[n])]: i for n, i in info.new_values.items() if id(outputs[n]) in places}
    at = sum(o.is_array for o in outputs)
    for part in info.partial_writes.values():
        if part.donated:
            found[at] = part.input
        at += len(part.computed)
    return found


def _static(named: Sequence[int], operands: Sequence[Any], values: Sequence[Any]) -> list[int]:
    """The named inputs that are in torch's memory, and keep it from call to call.

    Where all operands on a GPU would be among them, one is left out: by an operand that a call takes anew, the program
    waits for what torch has queued (`gpu_memory`).
    """
    found = [i for i in named if isinstance(values[i], torch.Tensor) and values[i].device.type in ("cpu", "cuda")]
    on_gpu = [i for i in found if values[i].is_cuda]
    if on_gpu and len(on_gpu) == sum(isinstance(v, torch.Tensor) and v.is_cuda for v in operands):
        found.remove(on_gpu[0])
    return found
