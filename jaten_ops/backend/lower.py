"""From a graph of `jaten::` ops to one JAX function: each node is a call of its kernel, traced under `jax.jit`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from jaten_ops import bridge, registry
from jaten_ops.errors import KernelError
from jaten_ops.execute import KernelCall, Signature, freeze
from jaten_ops.kernels import checks, prng, promotion

from .layout import concretize, symbols_of
from .positions import kernel_of
from .targets import overload_of, source_line


class _KernelNode:
    """One node of a graph, ready to be called with arrays for its inputs."""

    def __init__(self, node: torch.fx.Node, index: int) -> None:
        key = overload_of(node.target)
        assert key is not None
        spec = registry.SPECS[key]
        self._node, self._spec, self.index = node, spec, index
        self._signature = Signature(spec)
        self._call = KernelCall(spec, kernel_of(node, registry.KERNELS[key].fn))
        self._values = self._signature.bind(node.args, node.kwargs)
        self._single = len(spec.returns) == 1 and not spec.returns[0].endswith("[]")

    def run(self, read: Callable[[Any], Any], key: jax.Array | None) -> Any:
        values = [freeze(read(self._values[i])) for i in self._signature.kernel_positions]
        key = jax.random.fold_in(key, self.index) if self._spec.random and key is not None else None
        conditions = checks.Conditions()
        try:
            with checks.collect(conditions):
                results = self._call(values, key)
        except Exception as error:
            shapes = ", ".join(_describe(v) for v in values)
            raise KernelError(self._spec.name, shapes, source_line(self._node), error) from error
        self._forward(conditions)
        if self._single:
            results = results[0] if isinstance(results, tuple | list) else results
        return jax.tree.map(lambda a: promotion.cast(a, a.dtype), results)

    def _forward(self, conditions: checks.Conditions) -> None:
        """Hands the node's conditions on to the graph's, with the user's line in their messages."""
        for holds, error in zip(conditions.values, conditions.errors, strict=True):
            checks.require(holds, type(error), f"{error}{source_line(self._node)}")


def _describe(value: Any) -> str:
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_describe, value)) + "]"
    return repr(value)


class Lowered:
    """A graph as a JAX function.

    Attributes:
        random: whether it draws random numbers, and so takes a seed.
        calls: how many operators it calls.
        nodes: the graph's.
        default_float: the dtype of results that none of its operands decides.
    """

    def __init__(self, gm: torch.fx.GraphModule, default_float: torch.dtype) -> None:
        self.default_float = bridge.DTYPES[default_float]
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        self.outputs: list[Any] = list(output.args[0])
        self.nodes = list(gm.graph.nodes)
        self._strides = set(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_stride.int))
        self._steps: list[tuple[torch.fx.Node, Any]] = []
        self.random = False
        self.calls = 0
        for index, node in enumerate(gm.graph.nodes):
            if node.op == "get_attr":
                self._steps.append((node, _constant(gm, node)))
            elif node.op == "call_function":
                key = overload_of(node.target)
                kernel = _KernelNode(node, index) if key in registry.KERNELS else None
                self._steps.append((node, kernel))
                self.calls += kernel is not None
                self.random |= kernel is not None and registry.SPECS[key or ""].random

    def __call__(
        self, values: Mapping[torch.fx.Node, Any], seed: Any, wanted: Sequence[torch.fx.Node], *, scoped: bool = False
    ) -> Any:
        """Runs the graph.

        Args:
            values: for each placeholder its array, or int for a size.
            seed: the int64 seed of this call, None if the graph is not random.
            wanted: the nodes whose values are returned.
            scoped: whether JAX is told which node its operations are of, as "node3" of `nodes[3]`.

        Returns:
            The values of the wanted nodes, and the conditions that kernels set (see `kernels.checks`).
        """
        env = dict(values)

        def read(argument: Any) -> Any:
            return torch.fx.map_arg(argument, lambda node: env[node])

        key = None if seed is None else jax.random.key(seed, impl=prng.IMPL)
        conditions = checks.Conditions()
        with (
            promotion.default_float(self.default_float),
            checks.collect(conditions),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            for node, step in self._steps:
                if node.op == "get_attr":
                    env[node] = step
                elif step is not None:
                    with jax.named_scope(f"node{step.index}") if scoped else contextlib.nullcontext():
                        env[node] = step.run(read, key)
                else:
                    env[node] = self._stride(node, values) if node in self._strides else _run_python(node, read)
        return [env[node] for node in wanted], conditions

    def _stride(self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> int:
        """A stride that the graph asks for: an expression in the sizes, since arrays have none."""
        known = [n for n in self.placeholders if isinstance(n.meta["val"], torch.Tensor) or isinstance(values[n], int)]
        sizes = symbols_of([n.meta["val"] for n in known], [values[n] for n in known])
        return concretize(node.meta["val"], sizes)


def _constant(gm: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    """A tensor that the graph holds, as a numpy array of its own: the graph may not see later writes to it."""
    value = gm
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return np.array(bridge.borrow(value)) if isinstance(value, torch.Tensor) else value


def _run_python(node: torch.fx.Node, read: Callable[[Any], Any]) -> Any:
    """Sizes and arithmetic on them, and getitem: concrete while tracing, since every array has a concrete shape."""
    args = [read(a) for a in node.args]
    name = overload_of(node.target)
    if name == "sym_size.int":
        return args[0].shape[args[1]]
    if name == "sym_numel":
        return args[0].size
    return node.target(*args, **node.kwargs)  # type: ignore[operator]  # a call_function's target is callable
