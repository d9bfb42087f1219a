"""Inputs that a program writes to in part, such as a token's place in a cache of keys and values.

AOTAutograd makes all of an input's new value a result, and copies it to the input after the call. Where only a part is
new, only that is written here: by rows to torch's memory; a tensor of the device gives its array to the executable,
which writes in it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import torch

from jaten_ops import registry
from jaten_ops.arrays import carrier
from jaten_ops.arrays.storage_views import owned
from jaten_ops.ops.executor import Signature

from ..graph_info import GraphInfo, PartialWrite
from ..nodes import overload_of

Reader = Callable[[Sequence[Any]], Any]
Writer = Callable[[torch.Tensor, Sequence[Any]], Any]

_REGIONS = {"slice_scatter": "slice.Tensor", "select_scatter": "select.int"}
_VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "slice_scatter": torch.ops.aten.slice.Tensor,
    "select_scatter": torch.ops.aten.select.int,
}
WRITING = frozenset({"copy", "index_copy", "index_put", *_REGIONS})
"""The operators that may write to a part of a tensor."""

_index_put = torch.ops.aten.index_put_.default  # the method does not accept None

_NUMBERS = frozenset({operator.add, operator.sub, operator.mul, operator.neg})


def partial_writes(gm: torch.fx.GraphModule, info: GraphInfo) -> GraphInfo:
    """For outputs that are new values of inputs finds what of those is new; leaves out those of which it may be all."""
    if info.kind != "inference":  # where gradients are computed, the backward may need what was there before
        return info
    placeholders = gm.graph.find_nodes(op="placeholder")
    inputs = {node: i for i, node in enumerate(placeholders)}
    outputs: Any = gm.graph.output_node().args[0]
    found = {n: _part_of(outputs[n], placeholders[i], inputs) for n, i in info.new_values.items()}
    return info.having(partial_writes={n: part for n, part in found.items() if part is not None})


def _part_of(node: Any, base: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> PartialWrite | None:
    values: list[torch.fx.Node] = []
    write = _partial(node, [base], values)
    if write is None or not _alike(node, base):
        return None
    if base.meta["val"].device.type == "jax":
        return PartialWrite(inputs[base], True, [node], _put)
    tensors = [v for v in (base, *values) if isinstance(v.meta.get("val"), torch.Tensor)]
    if any(v.meta["val"].device.type != "cpu" for v in tensors):
        return None
    return PartialWrite(inputs[base], False, [inputs.get(v, v) for v in values], _by_rows(write))


def _bound(node: Any) -> tuple[str, dict[str, Any]]:
    """The operator of a node, and its arguments by name."""
    key = overload_of(node.target) if isinstance(node, torch.fx.Node) else None
    spec = registry.SPECS.get(key or "")
    if key is None or spec is None:
        return "", {}
    return key, dict(zip([a.name for a in spec.arguments], Signature(spec).bind(node.args, node.kwargs), strict=True))


def _uncopied(node: Any) -> Any:
    """The source of copies over whole tensors of its own dtype and shape."""
    key, given = _bound(node)
    while key == "copy" and _alike(given["src"], given["self"]):
        node = given["src"]
        key, given = _bound(node)
    return node


def _alike(node: Any, other: torch.fx.Node) -> bool:
    one, two = (n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in (node, other))
    return isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor) and (
        one.dtype == two.dtype and one.shape == two.shape
    )  # fmt: skip


def _partial(node: Any, bases: Collection[torch.fx.Node], values: list[torch.fx.Node]) -> Writer | None:
    """A writer of a node's value into a tensor that has the value of `bases`; None if all of it may be new."""
    node = _uncopied(node)
    key, given = _bound(node)
    if key not in WRITING or key == "copy":
        return None
    self: torch.fx.Node = given["self"]
    if self not in bases:  # after another part
        first = _partial(self, bases, values)
        last = None if first is None else _partial(node, [self], values)
        return None if first is None or last is None else lambda tensor, v: (first(tensor, v), last(tensor, v))
    if key in _REGIONS:
        return _region(key, given, bases, values)
    if key == "index_copy":
        at, source = _need(given["index"], values), _need(given["source"], values)
        return lambda tensor, v: tensor.index_copy_(given["dim"], at(v), source(v))
    if given["accumulate"]:
        return None
    indices = [None if i is None else _need(i, values) for i in given["indices"]]
    source = _need(given["values"], values)
    return lambda tensor, v: _index_put(tensor, [None if i is None else i(v) for i in indices], source(v))


def _region(
    key: str, given: dict[str, Any], bases: Collection[torch.fx.Node], values: list[torch.fx.Node]
) -> Writer | None:
    """A writer of a slice of a tensor, whole or in part."""
    where = [_number(value, values) for name, value in given.items() if name not in ("self", "src")]
    if any(read is None for read in where):
        return None
    seen = _same_region(key, given, bases)
    written = _partial(given["src"], seen, values)
    if written is None:
        source = _need(_uncopied(given["src"]), values)
        written = lambda tensor, v: tensor.copy_(source(v))  # noqa: E731  # one of two
    return lambda tensor, v: written(_VIEWS[key](tensor, *[read(v) for read in where if read is not None]), v)


def _same_region(key: str, given: dict[str, Any], bases: Collection[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes that read the region that is written."""
    found = []
    for user in {user: None for base in bases for user in base.users}:
        name, read = _bound(user)
        if name == _REGIONS[key] and all(read[n] == value for n, value in given.items() if n not in ("self", "src")):
            found.append(user)
    return found


def _need(node: torch.fx.Node, values: list[torch.fx.Node]) -> Reader:
    """A function that finds the value of a node among the writer's values."""
    if node not in values:
        values.append(node)
    return operator.itemgetter(values.index(node))


def _number(value: Any, values: list[torch.fx.Node]) -> Reader | None:
    """A function that finds a number: a constant, an input, or computed from such; None for anything else."""
    if not isinstance(value, torch.fx.Node):
        return lambda _: value
    if value.op == "placeholder":
        return _need(value, values)
    parts = [_number(a, values) for a in value.args] if value.target in _NUMBERS else [None]
    if any(part is None for part in parts):
        return None
    compute: Any = value.target
    return lambda v: compute(*[part(v) for part in parts if part is not None])


def _by_rows(write: Writer) -> Callable[..., None]:
    """The writer for a tensor in torch's memory, with the values as arguments."""

    def call(tensor: torch.Tensor, *values: Any) -> None:
        with torch.no_grad():
            write(tensor, values)

    return call


def taken(tensor: torch.Tensor) -> jax.Array:
    """The array of a tensor of the device, to be donated."""
    return owned(carrier.view_of(tensor))


def _put(tensor: torch.Tensor, result: jax.Array) -> None:
    """Gives a tensor the array that results from its donated one."""
    carrier.view_of(tensor).write(result)
