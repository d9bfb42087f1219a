"""`torch.distributed` on tensors of the device `jax`, by the CPU's collectives: values are copied there and back.

So `DistributedDataParallel` trains modules on the device, with the backend "gloo". What a collective gives is there
when it returns, with `async_op=True` as well; `send` and `recv` are over when they have been waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ..errors import UnsupportedInputError
from ..registry import missing
from ..registry.handlers import Handler
from ..tensor.operand_values import is_traced
from ..tensor.tensor import from_array, has_values
from .operands import borrowed_copy, is_on_jax
from .writes import store

_SENDS = ("send",)
_RECEIVES = ("recv_", "recv_any_source_")


def collective(func: Any) -> Handler:
    """The handler of an operator of the namespace `c10d` on tensors of the device, or of it and of the CPU."""
    name = func._schema.name.removeprefix("c10d::")
    given = [
        i
        for i, a in enumerate(func._schema.arguments)
        if name not in _SENDS and (a.name == "tensors" or a.name.startswith("output"))
    ]

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for a in args for t in _tensors(a)]
        if any(map(is_traced, tensors)):
            raise missing(func.name())
        if not all(has_values(t) for t in tensors if is_on_jax(t)):
            raise UnsupportedInputError(
                "a program that JAX traces as a whole", f"one that calls {func.name()}",
                "one without: torch.compile parts a program there, and for tensors of jaten_ops.distributed XLA"
                " communicates",
            )  # fmt: skip
        there = [_on_cpu(a) for a in args]
        result = func(*there, **kwargs)
        if name in _SENDS:  # it keeps the sent values until the work is done
            return result
        received = [pair for i in given for pair in zip(_tensors(args[i]), _tensors(there[i]), strict=True)]
        if name in _RECEIVES:
            return _later(result, received)
        work = result[-1] if isinstance(result, tuple) else result
        if work is not None:
            dist.Work.unbox(work).wait()
        _bring(received)
        return (args[0], work) if isinstance(result, tuple) else result

    return call


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument: itself, or those in a list or in nested lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _tensors(v)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_on_cpu(v) for v in value]
    return value.detach().cpu() if isinstance(value, torch.Tensor) and is_on_jax(value) else value


def _bring(received: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies received values from the CPU to tensors of the device."""
    for target, source in received:
        if is_on_jax(target):
            store(target, from_array(borrowed_copy(source)))


def _later(work: Any, received: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """A work object whose `wait` copies the received values; not now, since they may not have been sent."""
    future: torch.futures.Future[None] = torch.futures.Future()

    def wait() -> None:
        try:
            dist.Work.unbox(work).wait()
            _bring(received)
        except Exception as error:  # the error is raised for who waits
            future.set_exception(error)  # type: ignore[arg-type]  # torch annotates it by what the future gives
        else:
            future.set_result(None)

    threading.Thread(target=wait, daemon=True).start()
    of_cpp: Any = torch._C._distributed_c10d
    return of_cpp._create_work_from_future(future).boxed()
