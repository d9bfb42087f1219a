"""Operators that take graphs: `torch.cond`, loops, scans, and attention with functions of the user.

In a graph each becomes JAX's own form of it, with the graphs that it is given as functions. What kernels in these
require (see `kernels.checks`) comes out of a branch or a loop as a number: that of the first condition that is broken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from jaten_ops import registry
from jaten_ops.arrays import bridge
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.kernel_base.checks import Guarded
from jaten_ops.kernel_base.promotion import cast
from jaten_ops.kernels import control_flow, flex_attention
from jaten_ops.ops.executor import KernelCall, Signature, freeze

from .nodes import overload_of


class InnerGraph(control_flow.FunctionOperand, Protocol):
    """A graph inside a graph."""

    nodes: list[torch.fx.Node]


def _invoke_subgraph(key: Any, subgraph: InnerGraph, _identifier: str, *operands: Any) -> Any:
    return subgraph.inner(operands, key)


def _out_dtype(_key: Any, op: Any, dtype: torch.dtype, *args: Any) -> Any:
    """An operator computed in a wider dtype than its operands', which the result has, too."""
    name = overload_of(op) or ""
    if name not in registry.KERNELS:
        raise registry.missing(op.name())
    arrays = [a for a in args if isinstance(a, jax.Array)]
    common = functools.reduce(torch.promote_types, [bridge.TORCH_DTYPES[np.dtype(a.dtype)] for a in arrays], dtype)
    spec, wide = registry.SPECS[name], bridge.to_numpy_dtype(common)
    signature = Signature(spec)
    values = signature.bind([cast(a, wide) if isinstance(a, jax.Array) else freeze(a) for a in args], {})
    result = KernelCall(spec, registry.KERNELS[name].fn)([values[i] for i in signature.kernel_positions])
    return cast(result, bridge.to_numpy_dtype(dtype))


# Attention: the functions of single elements, over all elements

_worst = flex_attention.collapsing(lambda broken: jnp.max(broken, 0))
_total = flex_attention.collapsing(lambda x: jnp.sum(x, 0))


def _refuse_mixed(_: jax.Array) -> jax.Array:
    got = "one that a score_mod reads at an index and, for another part of its gradient, as a whole"
    raise UnsupportedInputError("a tensor with a gradient", got, "one that is only indexed, or two of the same values")


_unmixed = flex_attention.collapsing(_refuse_mixed)


def _sums(graph: InnerGraph) -> list[Callable[[jax.Array], jax.Array]]:
    """For each result of a graph, a sum over all scores; results of `zeros_and_scatter` are sums already."""
    made: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if overload_of(node.target) == _SCATTER or not made.isdisjoint(node.all_input_nodes):
            made.add(node)
    results = graph.nodes[-1].args[0]
    return [_unmixed if r in made else _total for r in results] if isinstance(results, list | tuple) else []


_SCATTER = "flex_lib::zeros_and_scatter"


def _over_scores(key: Any, graph: InnerGraph, captured: Sequence[Any]) -> Callable[..., Any]:
    """A graph of single elements over all of them: of a score, its numbers b, h, m and n, and what is captured.

    Returns:
        A function of the queries' numbers, the shape (B, H, M, N), scores, and other operands of that shape. What the
        graph returns beyond the first is summed, but for the gradients of the four numbers, which are left out.
    """
    captured, sums = tuple(captured), _sums(graph)[5:]  # behind those of the score and its four numbers

    def over(queries: jax.Array, shape: Sequence[int], *scores: jax.Array) -> Any:
        guarded = Guarded(lambda *operands: graph.inner((*operands, *captured), key))
        single: list[bool] = []

        def element(b: Any, h: Any, m: Any, n: Any, *scores: Any) -> Any:
            results, broken = guarded(*scores[:1], b, h, m, n, *scores[1:])
            single[:] = [not isinstance(results, tuple)]
            first, *others = (results,) if single[0] else results
            summed = [None if x is None else total(x) for total, x in zip(sums, others[4:], strict=True)]
            return first, tuple(summed), _worst(broken)

        batch, heads, _, length = shape
        places = lax.iota(np.int32, batch), lax.iota(np.int32, heads), queries, lax.iota(np.int32, length)
        fn = flex_attention.each_score(element, [True] * len(scores), (0, None, None))
        first, others, broken = fn(*places, *scores)
        guarded.report(broken)
        return first if single[0] else (first, others)

    return over


def _flex_attention(
    key: Any, q: Any, k: Any, v: Any, score_mod: InnerGraph, block_mask: Any, scale: Any, _options: Any,
    score_captured: Any = (), mask_captured: Any = (),
) -> Any:  # fmt: skip
    score, mask = _over_scores(key, score_mod, score_captured), _over_scores(key, block_mask[-1], mask_captured)
    return flex_attention.flex_forward(q, k, v, scale, flex_attention.Mods(score, mask))


def _flex_attention_backward(
    key: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, grad_out: Any, grad_logsumexp: Any,
    score_mod: InnerGraph, joint: InnerGraph, block_mask: Any, scale: Any, _options: Any,
    score_captured: Any = (), mask_captured: Any = (),
) -> Any:  # fmt: skip
    mods = flex_attention.Mods(
        _over_scores(key, score_mod, score_captured),
        _over_scores(key, block_mask[-1], mask_captured),
        _over_scores(key, joint, score_captured),
    )
    return flex_attention.flex_backward(q, k, v, (out, logsumexp), (grad_out, grad_logsumexp), scale, mods)


BY_NAME: dict[str, Callable[..., Any]] = {
    "cond": control_flow.cond,
    "while_loop": control_flow.while_loop,
    "scan": control_flow.scan,
    "map_impl": control_flow.map_,
    "associative_scan": control_flow.associative_scan,
    "invoke_subgraph": _invoke_subgraph,
    "out_dtype": _out_dtype,
    "flex_attention": _flex_attention,
    "flex_attention_backward": _flex_attention_backward,
}
_OPS = torch.ops.higher_order
RULES = {getattr(_OPS, name): rule for name, rule in BY_NAME.items() if hasattr(_OPS, name)}
"""The function that runs each operator: it takes a PRNG key or None, and the operands, with graphs as `InnerGraph`."""


def rule_of(node: torch.fx.Node) -> Callable[..., Any]:
    """The function that runs a node with graphs among its operands."""
    return RULES[node.target]
