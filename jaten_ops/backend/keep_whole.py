"""Operators that torch decomposes while it traces, before a backend is called, although each has a kernel.

`interpolate` is the one that takes time: torch makes it a gather, whose gradient is a scatter, many times slower than
the kernels here. What torch makes of the multilabel margin loss is wrong, its gradient as well: places without a label
count as labels of the first class. What torch does so is written in private tables of its operators; where they are
missing, nothing changes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence

import torch
from torch.utils._pytree import tree_leaves

from jaten_ops import registry

from .layout import has_symbolic_size

_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
# the running statistics are updated from their parts
_LEFT = frozenset({"native_batch_norm", "cudnn_batch_norm"})


@functools.cache
def kept_operators() -> tuple[torch._ops.OpOverload, ...]:
    """The overloads with a kernel, and those with scales (`.vec`) of which ATen makes a call of one with a kernel."""
    found = []
    for key in registry.KERNELS:
        packet, _, overload = key.partition(".")
        aten = getattr(torch.ops.aten, packet, None)
        names = (overload or "default", *(["vec"] if not overload else []))
        if aten is not None and packet not in _LEFT:
            ops = [getattr(aten, name) for name in names if name in aten.overloads()]
            found += [op for op in ops if any(k in getattr(op, "py_kernels", ()) for k in _KEYS)]
    return tuple(found)


def _values_in(gm: torch.fx.GraphModule) -> Iterator[object]:
    """Dynamo's example values in a graph and in the graphs inside it."""
    for graph in gm.modules():
        if isinstance(graph, torch.fx.GraphModule):
            yield from tree_leaves([node.meta.get("example_value") for node in graph.graph.nodes])


def _is_empty(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 0


# one capture at a time: the first of two to end would restore the tables of the other
_LOCK = threading.RLock()


@contextlib.contextmanager
def traced_whole(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Iterator[None]:
    """A context in which torch traces them whole; those that resize images, if all sizes are known, and none is 0.

    The C++ code of these does not take symbols, and ATen's meta functions of `upsample_nearest2d` and its kin refuse
    empty batches, by a number where a bool is expected.
    """
    with _LOCK:
        ops = kept_operators()
        if any(has_symbolic_size(value) or _is_empty(value) for value in (*inputs, *_values_in(gm))):
            ops = tuple(op for op in ops if "upsample" not in op.__name__)
        taken = [(op, key, op.py_kernels.pop(key)) for op in ops for key in _KEYS if key in op.py_kernels]
        _forget()
        try:
            yield
        finally:
            for op, key, fn in taken:
                op.py_kernels[key] = fn
            _forget()


def _forget() -> None:
    for op in kept_operators():
        op._dispatch_cache.clear()
