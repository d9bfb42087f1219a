"""A compiled graph, called: tensors in, one executable, tensors out."""

from __future__ import annotations

import os
import weakref
from typing import Any

import jax
import torch
from jax.sharding import Sharding
from torch.autograd import profiler

from jaten_ops.arrays import carrier, partitioned
from jaten_ops.arrays.placements import layout_of_text, names_mesh
from jaten_ops.arrays.storage_views import onto_one_mesh
from jaten_ops.device.autograd_engine import PASS
from jaten_ops.device.second_derivatives import RECORDED
from jaten_ops.ops import constraint
from jaten_ops.xla import disk_store
from jaten_ops.xla.tracebacks import TracebackScope

from . import leaf_gradients
from .compile_log import GraphLog
from .graph_compilation import Call, Compiler
from .graph_description import describe
from .graph_info import GraphInfo
from .lowering import Lowered
from .nodes import fake_value, overload_of
from .serialized_graph import plan_of

_EXECUTABLES: weakref.WeakSet[Executable] = weakref.WeakSet()


def forget_all() -> None:
    """Makes each graph compile again, if it is still called.

    In a forked process that is refused if JAX was running before: XLA's threads do not survive a fork, and a program
    would wait for them.
    """
    for executable in list(_EXECUTABLES):
        executable.forget()


os.register_at_fork(after_in_child=forget_all)


class Executable:
    """A graph of jaten ops, called with a list of tensors and sizes, which it empties.

    Args:
        gm: the graph.
        info: what is known of it. Outputs that the user may see get the strides that the graph says.
        lowered: the graph as a JAX function, if it is not to be traced node by node.
        log: that of the graph, if there is one.

    Attributes:
        info: that.
        plan: the graph's, by which its executable is found on the disk; None if it has none, or nothing is kept.
        log: tells what is compiled.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, info: GraphInfo, lowered: Lowered | None = None, log: GraphLog | None = None
    ) -> None:
        self.info = info
        self.plan = None if lowered is not None or disk_store.folder() is None else plan_of(gm)
        self.log = log or GraphLog(gm, "backward graph" if info.is_backward else "graph")
        described = describe(lowered or Lowered(gm, torch.get_default_dtype()), info)
        self._tensors, self._sizes, self._dynamic = described.tensors, described.sizes, described.is_dynamic
        self._mesh, self._is_backward = _mesh_of(gm), info.is_backward
        self._has_gradients = any(o.is_gradient and o.on_jax for o in described.outputs)
        self._compiler = Compiler(described, self.plan, self.log, info.autotune, self._mesh)
        self._calls: dict[tuple[Any, ...], Call] = {}
        _EXECUTABLES.add(self)

    def _watched(self, args: list[Any]) -> None:
        """Raises an error with the line of the user's program if a result of the backward pass has a NaN."""
        if torch.is_anomaly_check_nan_enabled() and (where := self._compiler.place_of_nan(args)):
            raise RuntimeError(f"{self.log.title}: {where}")

    def __call__(self, args: list[Any]) -> list[Any]:
        key = (*[_shape(args[i]) for i in self._tensors], *[args[i] for i in self._sizes]) if self._dynamic else ()
        if partitioned.MET or self._mesh is not None:
            key += _places([args[i] for i in self._tensors], self._mesh)
        if self._is_backward:
            if PASS.is_recorded:
                RECORDED.any = True
            if torch.is_anomaly_enabled():
                self._watched(args)
        with TracebackScope():  # what is kept of this call keeps no code of its callers
            call = self._calls.get(key)
            if call is None:
                with jax.disable_jit(False):  # `jax.disable_jit()` would unroll the loops of kernels
                    call = self._calls[key] = self._compiler.compile(args)
            if profiler._is_profiler_enabled:
                with profiler.record_function(f"jaten {self.log.title}"):
                    results = call(args)
            else:
                results = call(args)
        if self.info.unseen_of_leaves:
            leaf_gradients.without_writes(results, self.info.unseen_of_leaves)
        if self._has_gradients:
            leaf_gradients.put_in_place(results)
        return results

    def forget(self) -> None:
        """Clears the compiled executables."""
        self._calls.clear()


def _mesh_of(gm: torch.fx.GraphModule) -> Sharding | None:
    """A sharding over the mesh on which the graph places values; None if it does not."""
    for node in gm.graph.nodes:
        is_placed = node.op == "call_function" and overload_of(node.target) == constraint.NAME
        if is_placed and names_mesh(node.args[1]):
            return partitioned.replicated(layout_of_text(node.args[1]).sharding(fake_value(node).shape))
    return None


def _places(given: list[Any], mesh: Sharding | None) -> tuple[Any, ...]:
    """The shardings of tensors of the device, all of which are moved to one mesh; empty if there is none."""
    roots = [carrier.view_of(t).storage.root for t in given if isinstance(t, torch.Tensor) and t.device.type == "jax"]
    return tuple([root.array.sharding for root in roots]) if onto_one_mesh(roots, mesh) is not None else ()


def _shape(value: Any) -> Any:
    """The part of an operand that the executable depends on: a shape, but not the value of a number."""
    return value.shape if isinstance(value, torch.Tensor) else None
