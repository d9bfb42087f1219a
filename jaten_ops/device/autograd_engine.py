"""Backward passes on the device: their thread, and their exceptions.

torch's engine makes its threads, one for each device there is, at the first backward pass of the process, be it the
CPU's. For a device that comes later it has none, and ends the process. So a pass runs in the thread that called it,
where also the program's context is JAX's: what is differentiated while JAX traces.

A second derivative through a compiled graph is refused (`second_derivatives`), where torch would leave it out.

Exceptions that leave Python code in a pass are kept by the device's guard (`guard`), and raised here. Signals wait
while no such code runs (`interrupts`).

torch compares the device of a gradient with that of its tensor, unless one is of a subclass, as the device's are. So it
is compared here, for what a pass begins with and for what it returns; one without dimensions is moved, as by torch.

`DistributedDataParallel` that looks for unused parameters keeps in the CPU's memory which were used, and copies that to
the device from pinned memory, for which torch asks the device in C++. JAX has no such memory: it is made as any other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.variable import ImperativeEngine
from torch.utils._python_dispatch import TorchDispatchMode

from ..arrays.observers import OBSERVERS, backward_begins, backward_ends
from ..tracing import opaque, unwatched
from . import guard, interrupts, second_derivatives

_CUDA = vars(torch.cuda)  # a call of its `is_initialized` would be a frame that Dynamo sees


class _Pass(threading.local):
    """The backward pass that runs in this thread.

    Attributes:
        accumulates: whether it adds to the `.grad` of all leaves that it meets, and records nothing.
        is_recorded: whether its gradients can be differentiated.
    """

    accumulates = is_recorded = False


PASS = _Pass()


class Engine(ImperativeEngine):
    """torch's engine, run in the calling thread; it raises the exceptions that the guard has kept."""

    @unwatched
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        if not OBSERVERS or not kwargs.get("accumulate_grad"):
            return self._run(*args, **kwargs)
        backward_begins()
        found = self._run(*args, **kwargs)
        backward_ends()
        return found

    @unwatched
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and any(map(_lie_apart, args[0], args[1])):
            args = (args[0], _moved(args[0], args[1]), *args[2:])
        threads = torch._C._is_multithreading_enabled()
        # CUDA devices have threads from the first pass on, and run in parallel
        torch._C._set_multithreading_enabled(threads and bool(_CUDA.get("_initialized")))
        around = PASS.accumulates, PASS.is_recorded
        PASS.accumulates, PASS.is_recorded, inputs = _read(*args, **kwargs)
        held = interrupts.hold_signals(_RUN)
        try:
            with _Unpinned() if _looks_for_unused(args[0]) else contextlib.nullcontext():
                found = super().run_backward(*args, **kwargs)
        except SystemError as error:
            if guard.taken:
                raise guard.taken.pop() from None
            if _NOTHING_SET in str(error):  # the one exception that the guard does not see
                raise StopIteration from error
            raise
        except RuntimeError as error:
            if _NOT_REACHED in str(error):
                second_derivatives.refuse_second(args[0], inputs)
            raise
        finally:
            PASS.accumulates, PASS.is_recorded = around
            torch._C._set_multithreading_enabled(threads)
            interrupts.release_signals(held)
        if inputs and (second_derivatives.RECORDED.any or any(grad is None for grad in found or ())):
            second_derivatives.refuse_second(args[0], inputs)
        if found and any(map(_lie_apart, inputs, found)):
            _moved(inputs, found, "a backward of an autograd.Function has returned an ")
        return found


_RUN = Engine._run.__code__


@opaque
def _lie_apart(tensor: Any, gradient: torch.Tensor | None) -> bool:
    """True if one of the two is on the device and the other is not; a `GradientEdge` has no device to compare."""
    if gradient is None or not isinstance(tensor, torch.Tensor):
        return False
    kinds = tensor.device.type, gradient.device.type
    return kinds[0] != kinds[1] and "jax" in kinds


@opaque
def _moved(tensors: Sequence[Any], gradients: Sequence[Any], problem: str = "") -> tuple[Any, ...]:
    """Gradients where the tensors are. Only those without dimensions may lie apart.

    Raises:
        RuntimeError: torch's for a gradient on another device.
    """
    moved = list(gradients)
    for i, (tensor, gradient) in enumerate(zip(tensors, gradients, strict=True)):
        if _lie_apart(tensor, gradient):
            if gradient.dim() or problem:
                raise RuntimeError(
                    f"{problem}invalid gradient at index {i} - expected device {tensor.device} but got"
                    f" {gradient.device}. Fix: gradient.to({str(tensor.device)!r})"
                )
            moved[i] = gradient.to(tensor.device)
    return tuple(moved)


@opaque
def _read(
    _outputs: Any,
    _gradients: Any = (),
    _keep_graph: Any = False,
    create_graph: Any = False,
    inputs: Any = None,
    allow_unreachable: Any = False,
    accumulate_grad: Any = False,
) -> tuple[bool, bool, Any]:
    """A pass's kind, and the tensors that it names: whether it adds to all leaves, as that of `tensor.backward()`; and
    whether it is recorded.
    """
    return bool(accumulate_grad and not create_graph and not inputs), bool(create_graph), inputs or ()


class _Unpinned(TorchDispatchMode):
    """A mode in which pinned memory is made as any other; what asks whether it is pinned goes on as if it were."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("pin_memory"):
            self._made.append(func(*args, **kwargs | {"pin_memory": False}))
            return self._made[-1]
        if func is torch.ops.aten.is_pinned.default and any(args[0] is tensor for tensor in self._made):
            return True
        return func(*args, **kwargs)


_LOOKS_FOR_UNUSED = "_DDPSinkBackward"  # torch's name of a node behind such a module; a test fails when it changes


@opaque
def _looks_for_unused(outputs: Sequence[torch.Tensor]) -> bool:
    """True if a pass on the device goes through a `DistributedDataParallel` that looks for unused parameters."""
    if not (dist.is_available() and dist.is_initialized()) or not any(t.device.type == "jax" for t in outputs):
        return False
    return any(node.name() == _LOOKS_FOR_UNUSED for node in second_derivatives.nodes_behind(outputs))


@opaque
def _may_be_on_device(output: Any) -> bool:
    return not isinstance(output, torch.Tensor) or output.device.type == "jax"


_NOTHING_SET = "without setting an exception"
_NOT_REACHED = "appears to not have been used in the graph"
