"""Lowering of a graph of `jaten::` ops to one JAX function: each node calls its kernel, traced under `jax.jit`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.export import is_symbolic_dim

from jaten_ops import registry
from jaten_ops.arrays import bridge, carrier
from jaten_ops.errors import KernelError, KernelResultError, UnsupportedInputError
from jaten_ops.kernel_base import checks, prng, promotion
from jaten_ops.kernels import joining
from jaten_ops.meta.refusals import refuse
from jaten_ops.ops import result_checks
from jaten_ops.ops.executor import KernelCall, Signature, as_meta, freeze
from jaten_ops.tracing import out_of_sight
from jaten_ops.xla import matmul_precision

from .layout import concretize, symbols_of
from .nodes import attribute_of, is_higher_order, overload_of, part_of, scope_of, source_line
from .passes.traced_ints import with_traced_start
from .subgraphs import rule_of

SizeOf = Callable[[Any], int | None]
"""The value of a size of the graph that may be symbolic; None if it is not known."""


_PLAIN = (IndexError, RuntimeError, TypeError, ValueError)  # these take one argument, a message


class _KernelNode:
    """One node of a graph, to be called with arrays for its inputs."""

    def __init__(self, node: torch.fx.Node, index: int) -> None:
        key = overload_of(node.target)
        assert key is not None
        spec = registry.SPECS[key]
        self._node, self._spec, self.index, self.scope = node, spec, index, scope_of(node)
        self._signature = Signature(spec)
        self._call = KernelCall(spec, with_traced_start(node, registry.KERNELS[key].fn))
        self._values = self._signature.bind(node.args, node.kwargs)
        kinds = [spec.arguments[i].type for i in self._signature.kernel_positions]
        self._tensors = [n for n, kind in enumerate(kinds) if kind in ("Tensor", "Tensor?")]
        static = registry.KERNELS[key].static
        names = [spec.arguments[i].name for i in self._signature.kernel_positions]
        self._numbers = [
            n for n, kind in enumerate(kinds)
            if n in self._tensors or (kind.startswith("Scalar") and names[n] not in static)
        ]  # fmt: skip
        self._is_own = spec.namespace == "jaten"
        self.draws = spec.draws(self._values)

    def run(self, read: Callable[[Any], Any], key: jax.Array | None, size_of: SizeOf) -> Any:
        values = [freeze(read(self._values[i])) for i in self._signature.kernel_positions]
        for n in self._tensors:  # ATen makes a plain number a tensor that promotes as a number
            if isinstance(values[n], bool | int | float | complex):
                values[n] = jnp.asarray(values[n])
        for n in self._numbers:  # a size that an exported program leaves open
            if is_symbolic_dim(values[n]):
                values[n] = promotion.number_of(jnp.asarray(values[n]))
        if not self.draws:  # a kernel may use an argument for others, too
            key = jax.random.key(0, impl=prng.IMPL) if self._spec.random else None
        elif key is not None:
            key = jax.random.fold_in(key, self.index)
            if part := part_of(self._node):
                key = jax.random.fold_in(key, part)
        self._ask(values)
        conditions = checks.Conditions()
        source = "" if self._is_own else source_line(self._node)
        try:
            with checks.collect(conditions):
                got = result_checks.settled(self._spec, self._call(values, key), source)
        except KernelResultError:
            raise
        except Exception as error:
            self._refuse_unknown_sizes(values, error)
            self._refuse_dtypes(error)
            shapes = ", ".join(_describe(v) for v in values)
            raise KernelError(self._spec.name, shapes, source_line(self._node), error) from error
        self._forward(conditions)
        if not self._is_own:
            result_checks.hold_against(self._spec, got, self._node.meta["val"], source, size_of)
        return got

    def _ask(self, values: list[Any]) -> None:
        """Raises errors of ATen's kernel that its meta function, used during capture, does not raise."""
        if not self._is_own or any(map(_is_open, values)):
            return
        try:
            with out_of_sight(), torch.no_grad():
                refuse(self._spec, *as_meta(self._signature, values))
        except _PLAIN as error:
            raise type(error)(f"{error}{source_line(self._node)}") from error

    def _refuse_unknown_sizes(self, values: list[Any], error: Exception) -> None:
        """Raises the error of a call in a loop or a branch that fails because a size is an array there."""
        types = [self._signature.arguments[i].type for i in self._signature.kernel_positions]
        sizes = [v for v, kind in zip(values, types, strict=True) if kind.startswith(("int", "SymInt"))]
        if any(isinstance(size, jax.Array) for size in jax.tree.leaves(sizes)):
            got = f"one that the program computes, in {self._spec.name}{source_line(self._node)}"
            expected = (
                "one that is known when it is compiled; make the tensor as large as it may get, and mask the rest"
            )
            raise UnsupportedInputError("a size or a position in a loop or a branch", got, expected) from error

    def _refuse_dtypes(self, error: Exception) -> None:
        """Raises the error of a call whose results have a dtype that JAX does not have."""
        for value in jax.tree.leaves(self._node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.dtype not in bridge.DTYPES:
                what = f"a result of {self._spec.name}{source_line(self._node)}"
                expected = "a dtype that JAX has; convert the operands with .to(...)"
                raise UnsupportedInputError(what, value.dtype, expected) from error

    def _forward(self, conditions: checks.Conditions) -> None:
        """Adds the node's conditions to the graph's, with the user's line in their messages."""
        for holds, error in zip(conditions.values, conditions.errors, strict=True):
            checks.require(holds, type(error), f"{error}{source_line(self._node)}")


class _HigherOrderNode:
    """One call of an operator that takes graphs."""

    def __init__(self, node: torch.fx.Node, index: int) -> None:
        self._node, self._rule, self.index, self.scope = node, rule_of(node), index, scope_of(node)

    def run(self, read: Callable[[Any], Any], key: jax.Array | None, size_of: SizeOf) -> Any:
        args, kwargs = with_tuples(read(self._node.args)), read(self._node.kwargs)
        return self._rule(None if key is None else jax.random.fold_in(key, self.index), *args, **kwargs)


_PART = "jaten_nn::part"
_READ = "_local_scalar_dense"
"""Reads a number from a tensor. In a loop or a branch it stays an array, which operators accept except as a size."""


def with_tuples(value: Any) -> Any:
    """Values with FX's lists, which JAX does not know, as tuples."""
    return tuple(map(with_tuples, value)) if isinstance(value, list | tuple) else value


def _is_open(value: Any) -> bool:
    """True for an array with a size that an exported program leaves open, and for such a size."""
    sizes = value if isinstance(value, tuple) else getattr(value, "shape", (value,))
    return any(is_symbolic_dim(size) or (isinstance(size, jax.Array) and _is_open(size)) for size in sizes)


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
        starts: where parts of joined tensors begin, by their nodes, for who makes operands of these numbers.
        default_float: the dtype of results that none of its operands decides.
    """

    def __init__(self, gm: torch.fx.GraphModule, default_float: torch.dtype) -> None:
        self.default_float = bridge.DTYPES[default_float]
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        self._result: Any = output.args[0]
        self.outputs: list[Any] = list(self._result) if isinstance(self._result, list | tuple) else [self._result]
        self.nodes = list(gm.graph.nodes)
        self.starts = {n: n.args[1] for n in self.nodes if overload_of(n.target) == _PART}
        self._strides = set(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_stride.int))
        self._steps: list[tuple[torch.fx.Node, Any]] = []
        self.random = False
        self.calls = 0
        for index, node in enumerate(gm.graph.nodes):
            if node.op == "get_attr":
                value = _constant(gm, node, default_float)
                self._steps.append((node, value))
                if isinstance(value, Lowered):
                    self.calls, self.random = self.calls + value.calls, self.random or value.random
            elif node.op == "call_function":
                key = overload_of(node.target)
                step: Any = _KernelNode(node, index) if key in registry.KERNELS and key != _READ else None
                step = _HigherOrderNode(node, index) if is_higher_order(node) else step
                self._steps.append((node, step))
                self.calls += step is not None
                self.random |= isinstance(step, _KernelNode) and step.draws

    def __call__(
        self,
        values: Mapping[torch.fx.Node, Any],
        seed: Any,
        wanted: Sequence[torch.fx.Node],
        *,
        scoped: bool = False,
        seen: Callable[[torch.fx.Node, Any], None] | None = None,
    ) -> Any:
        """Runs the graph.

        Args:
            values: for each placeholder its array, or int for a size; for parts of joined tensors where they begin.
            seed: the int64 seed of this call, None if the graph is not random.
            wanted: the nodes whose values are returned.
            scoped: whether JAX's operations are named by their nodes, as "node3" of `nodes[3]`, and not by modules.
            seen: is called with each node and its value.

        Returns:
            The values of the wanted nodes, and the conditions that kernels set (see `kernels.checks`).
        """
        key = None if seed is None else jax.random.key(seed, impl=prng.IMPL)
        conditions = checks.Conditions()
        with (
            promotion.default_float(self.default_float),
            checks.collect(conditions),
            matmul_precision.as_in_torch(),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            env = self._run(values, key, scoped, seen)
        return [env[node] for node in wanted], conditions

    def inner(self, operands: Sequence[Any], key: jax.Array | None) -> Any:
        """Runs it as a graph inside another; returns its results, with lists as tuples."""
        env = self._run(dict(zip(self.placeholders, operands, strict=True)), key if self.random else None, False)
        return with_tuples(torch.fx.map_arg(self._result, lambda node: env[node]))

    def _run(
        self,
        values: Mapping[torch.fx.Node, Any],
        key: jax.Array | None,
        scoped: bool,
        seen: Callable[[torch.fx.Node, Any], None] | None = None,
    ) -> dict[torch.fx.Node, Any]:
        """The values of all nodes."""
        env = dict(values)

        def read(argument: Any) -> Any:
            return torch.fx.map_arg(argument, lambda node: env[node])

        size_of = self._sizes(values)
        for node, step in self._steps:
            if node.op == "get_attr":
                env[node] = step
            elif node in self.starts:
                env[node] = joining.part(read(node.args[0]), values.get(node, self.starts[node]), node.args[2])
            elif step is not None:
                with jax.named_scope(f"node{step.index}" if scoped else step.scope):
                    env[node] = step.run(read, key, size_of)
            else:
                env[node] = size_of(node.meta["val"]) if node in self._strides else _run_python(node, read)
            if seen is not None:
                seen(node, env[node])
        return env

    def _sizes(self, values: Mapping[torch.fx.Node, Any]) -> SizeOf:
        """A function for the values of symbolic sizes and strides, as expressions of those of the inputs."""

        @functools.cache
        def known() -> dict[Any, int]:
            given = [(n.meta.get("val"), values[n]) for n in self.placeholders if n in values]  # others are returned
            sized = [(v, x) for v, x in given if isinstance(v, torch.Tensor) or isinstance(x, int)]
            return symbols_of(*zip(*sized, strict=True)) if sized else {}

        def size_of(size: Any) -> int | None:
            if isinstance(size, int):
                return size
            return concretize(size, known()) if size.node.expr.free_symbols <= known().keys() else None

        return size_of


def _constant(gm: torch.fx.GraphModule, node: torch.fx.Node, default_float: torch.dtype) -> Any:
    """An attribute of the graph: a graph inside it, or a tensor as a NumPy copy, which must not see later writes."""
    value = attribute_of(gm, node)
    if isinstance(value, torch.fx.GraphModule):
        return Lowered(value, default_float)
    if not isinstance(value, torch.Tensor):
        return value
    with out_of_sight():  # tensors of inference mode would meet the one that fakes them
        return np.array(carrier.unwrap(value) if value.device.type == "jax" else bridge.borrow(value))


def _run_python(node: torch.fx.Node, read: Callable[[Any], Any]) -> Any:
    """Sizes and arithmetic on them, and getitem: concrete while tracing, since every array has a concrete shape."""
    args = [read(a) for a in node.args]
    name = overload_of(node.target)
    if name == "sym_size.int":
        return args[0].shape[args[1]]
    if name == "sym_numel":
        return args[0].size
    if name == _READ:  # in a graph inside another
        return promotion.number_of(args[0])
    if any(map(is_symbolic_dim, args)) and node.target in _OF_FLOATS:
        args = [jnp.asarray(a, np.float64) if is_symbolic_dim(a) else a for a in args]
        return promotion.number_of(_OF_FLOATS[node.target](*args))
    return node.target(*args, **node.kwargs)  # type: ignore[operator]  # a call_function's target is callable


_OF_FLOATS: dict[Any, Callable[..., Any]] = {
    torch.sym_float: lambda x: x,
    operator.truediv: operator.truediv,
    operator.pow: operator.pow,
    math.sqrt: jnp.sqrt,
    torch.sym_sqrt: jnp.sqrt,
}
"""Functions of sizes that give floats, for those that an exported program leaves open."""
