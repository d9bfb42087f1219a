"""Second derivatives through compiled graphs: torch refuses them, where it notices.

A first derivative that is recorded (`create_graph=True`) has behind it, for each compiled backward graph, a node that
raises. AOTAutograd ties it to what the graph takes: on the CPU to inputs of the program, but to nothing for saved
intermediate values, or for tensors of the device, of which the graph takes what is inside. A pass that asks for the
gradients of some tensors runs only the nodes on a way to them. So it would leave this one out, and the gradient be less
than it is. Here the ways are followed as they are: the node's results depend on all inputs of the compiled program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..tracing import opaque

_STANDS_FOR_ONE = "CompiledFunctionBackwardBackward"  # AOTAutograd's name; a test fails when it changes


class _Recorded:
    """A note that a compiled backward graph has run in a pass that was recorded, so that other passes look for one.

    Attributes:
        any: that.
    """

    any = False


RECORDED = _Recorded()


@opaque
def refuse_second(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raises RuntimeError if gradients of outputs for inputs need the derivative of a compiled backward graph.

    Args:
        outputs: tensors, or `GradientEdge`s, that a pass has begun with.
        inputs: those whose gradients it was asked for.
    """
    wanted = {_node_of(x) for x in inputs}
    for node in _behind([_node_of(t) for t in outputs]):
        if node.name() == _STANDS_FOR_ONE and not wanted.isdisjoint(_behind(_taken_by(node))):
            raise RuntimeError(
                "torch.compile with aot_autograd does not currently support double backward. Fix: compile a function"
                " that computes the first derivative itself, as by torch.func.grad, or do not compile."
            )


def nodes_behind(outputs: Sequence[Any]) -> Iterator[Any]:
    """The nodes of the graph behind tensors, or edges, as torch's engine sees it."""
    return _behind([_node_of(t) for t in outputs], hidden=False)


def _node_of(tensor: Any) -> Any:
    """The node of a tensor or an edge; None without one, and inside a transform, which runs no compiled program."""
    if not isinstance(tensor, torch.Tensor):
        return tensor.node
    if not tensor.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _behind(nodes: Sequence[Any], *, hidden: bool = True) -> Iterator[Any]:
    """These nodes and all from which they come; with the inputs of compiled backward graphs, if `hidden`."""
    waiting = [node for node in nodes if node is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        before = [n for n, _ in node.next_functions if n is not None]
        if hidden and node.name() == _STANDS_FOR_ONE:
            before += _taken_by(node)
        new = [n for n in before if n not in seen]
        seen.update(new)
        waiting += new


def _taken_by(node: Any) -> list[Any]:
    """The nodes of a compiled program's inputs, for the node that stands for the derivative of its gradient."""
    run = _held_by(type(node)._forward_cls.forward, callable)
    while isinstance(run, functools.partial):
        run = run.args[-1]
    differentiated = _held_by(run, lambda value: hasattr(value, "next_functions"))
    return [n for n, _ in differentiated.next_functions if n is not None]


def _held_by(fn: Any, is_wanted: Any) -> Any:
    """The value of that kind over which a function closes."""
    return next(cell.cell_contents for cell in fn.__closure__ if is_wanted(cell.cell_contents))
