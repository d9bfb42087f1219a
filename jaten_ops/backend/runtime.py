"""A compiled graph: tensors in, one executable, tensors out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from jaten_ops import bridge, carrier
from jaten_ops.execute import raise_first_broken
from jaten_ops.x64 import Enabled

from .layout import Layout, concretize, layout_of
from .lower import Lowered


@dataclass
class _Compiled:
    """The executable for one combination of sizes, and how each of its outputs is viewed."""

    run: Callable[..., Any]
    errors: list[Exception]
    symbols: dict[Any, int]
    layouts: list[Layout | None]


class _Input:
    """How one input becomes an array. A static one is converted once and kept while its memory stays."""

    def __init__(self, node: torch.fx.Node, static: bool) -> None:
        value: Any = node.meta.get("val")
        self.is_tensor = isinstance(value, torch.Tensor)
        self.on_jax = self.is_tensor and value.device.type == "jax"
        self.static = static and not self.on_jax
        self._address = -1
        self._array: Any = None

    def array(self, tensor: torch.Tensor) -> jax.Array:
        if self.on_jax:
            return carrier.unwrap(tensor)
        if not self.static:
            return bridge.borrow(tensor)
        # The array holds the memory, so no other tensor can come to lie at this address while it is kept.
        if tensor.data_ptr() != self._address:
            self._array = bridge.borrow(tensor)
            self._address = tensor.data_ptr() if bridge.shares_memory(self._array, tensor) else -1
        return self._array


class _Output:
    """How one output of the graph becomes a value: a tensor made of an array, an input handed back, a size, None."""

    def __init__(self, node: Any, inputs: dict[torch.fx.Node, int], strided: bool) -> None:
        self.node = node
        is_node = isinstance(node, torch.fx.Node)
        self.input = inputs.get(node) if is_node else None
        self.value = node.meta.get("val") if is_node else node
        self.is_array = self.input is None and isinstance(self.value, torch.Tensor)
        self.on_jax = self.is_array and self.value.device.type == "jax"
        self._strided = strided and self.is_array and not self.on_jax

    def layout(self, symbols: dict[Any, int]) -> Layout | None:
        """The strides in which the output is handed out, for given sizes; None for row-major."""
        if not self._strided:
            return None
        sizes = [concretize(s, symbols) for s in self.value.shape]
        return layout_of(sizes, [concretize(s, symbols) for s in self.value.stride()])


class Executable:
    """A graph of jaten ops, called with a list of tensors and sizes, which it empties.

    Args:
        gm: the graph.
        static_inputs: the indices of inputs that keep their memory from call to call.
        strided_outputs: how many outputs get the strides that the graph says; None for all.
    """

    def __init__(self, gm: torch.fx.GraphModule, *, static_inputs: frozenset[int], strided_outputs: int | None) -> None:
        self._lowered = lowered = Lowered(gm, torch.get_default_dtype())
        self._inputs = [_Input(n, i in static_inputs) for i, n in enumerate(lowered.placeholders)]
        index = {n: i for i, n in enumerate(lowered.placeholders)}
        self._outputs = [
            _Output(n, index, strided_outputs is None or i < strided_outputs) for i, n in enumerate(lowered.outputs)
        ]
        # one array may be two outputs, for the user and for the backward, with different strides
        self._arrays = [o for o in self._outputs if o.is_array]
        self._dynamic = any(_is_symbolic(n.meta.get("val")) for n in lowered.placeholders)
        self._compiled: dict[tuple[Any, ...], _Compiled] = {}
        borrows = any(i.is_tensor and not i.on_jax for i in self._inputs)
        exports = any(not o.on_jax for o in self._arrays)
        # XLA computes asynchronously: until it is done, a torch program could write to the memory that it reads
        self._must_wait = borrows and not exports

    def __call__(self, args: list[Any]) -> list[Any]:
        taken = [i.array(a) if i.is_tensor else a for i, a in zip(self._inputs, args, strict=True)]
        key = tuple([a.shape if isinstance(a, jax.Array) else a for a in taken]) if self._dynamic else ()
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(taken)
        arrays = [a for i, a in zip(self._inputs, taken, strict=True) if i.is_tensor]
        if self._lowered.random:
            arrays.append(_seed())
        results, holds = compiled.run(*arrays)
        if compiled.errors:
            raise_first_broken(holds, compiled.errors)
        if self._must_wait:
            jax.block_until_ready(results)
        out = self._hand_out(compiled, results, args)
        args.clear()
        return out

    def _hand_out(self, compiled: _Compiled, results: Sequence[jax.Array], args: list[Any]) -> list[Any]:
        out: list[Any] = []
        at = 0
        for output in self._outputs:
            if output.is_array:
                array, layout = results[at], compiled.layouts[at]
                at += 1
                tensor = carrier.wrap(array) if output.on_jax else bridge.export(array)
                out.append(tensor if layout is None else layout.view(tensor))
            elif output.input is not None:
                out.append(args[output.input])
            else:
                value = output.value
                out.append(concretize(value, compiled.symbols) if isinstance(value, torch.SymInt) else value)
        return out

    def _compile(self, taken: list[Any]) -> _Compiled:
        lowered = self._lowered
        sizes = {n: a for n, i, a in zip(lowered.placeholders, self._inputs, taken, strict=True) if not i.is_tensor}
        tensors = [n for n, i in zip(lowered.placeholders, self._inputs, strict=True) if i.is_tensor]
        symbols = _symbols(lowered.placeholders, taken) if self._dynamic else {}
        layouts = [o.layout(symbols) for o in self._arrays]
        wanted = [o.node for o in self._arrays]
        errors: list[Exception] = []

        def graph(*arrays: jax.Array) -> tuple[list[jax.Array], jax.Array | None]:
            seed = arrays[-1] if lowered.random else None
            values = sizes | dict(zip(tensors, arrays, strict=False))
            results, conditions = lowered(values, seed, wanted)
            errors[:] = conditions.errors
            stored = [a if x is None else x.store(a) for a, x in zip(results, layouts, strict=True)]
            return stored, conditions.stacked() if conditions.errors else None

        arrays = [a for i, a in zip(self._inputs, taken, strict=True) if i.is_tensor]
        if lowered.random:
            arrays.append(jax.ShapeDtypeStruct((), np.dtype("int64")))
        with Enabled():
            run = jax.jit(graph).lower(*arrays).compile()
        return _Compiled(run, errors, symbols, layouts)


def _seed() -> jax.Array:
    return bridge.borrow(torch.empty((), dtype=torch.int64).random_())


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(s, torch.SymInt) for s in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _symbols(placeholders: Sequence[torch.fx.Node], taken: Sequence[Any]) -> dict[Any, int]:
    """The value of each symbol that is an input by itself or the size of one."""
    found: dict[Any, int] = {}
    for node, value in zip(placeholders, taken, strict=True):
        meta: Any = node.meta.get("val")
        is_tensor = isinstance(meta, torch.Tensor)
        pairs: list[Any] = list(zip(meta.shape, value.shape, strict=True)) if is_tensor else [(meta, value)]
        for symbolic, concrete in pairs:
            if isinstance(symbolic, torch.SymInt | torch.SymFloat) and symbolic.node.expr.is_symbol:
                found[symbolic.node.expr] = concrete
    return found
