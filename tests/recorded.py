"""The ATen calls that the samples of an OpInfo reach, kept so that they can be made again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .replay import OP_INFOS, callable_overload, describe_call, jaten_overload, op_named, samples, supported

__all__ = ["Call", "op_named", "reached_overloads", "recorded_calls"]


@dataclass
class Call:
    """One call of a functional overload that jaten has a kernel for, with arguments of its own."""

    overload: str
    aten: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return describe_call(self.overload, self.args, self.kwargs)


def op_of_aten(overload: str) -> Any:
    packet, _, suffix = overload.partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


class _Record(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        overload = jaten_overload(func)
        overload = overload and callable_overload(overload, args)
        if overload is not None:
            own = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs or {}))
            self.calls.append(Call(overload, op_of_aten(overload), *own))
        return func(*args, **(kwargs or {}))


def recorded_calls(name: str, dtype: torch.dtype, most: int) -> Iterator[Call]:
    """The distinct calls of the first samples of an OpInfo, forward only."""
    distinct: set[str] = set()
    for sample in samples(name, dtype, False, most):
        with _Record() as record:
            OP_INFOS[name](sample.input, *sample.args, **sample.kwargs)
        for call in record.calls:
            if str(call) not in distinct:
                distinct.add(str(call))
                yield call


@functools.cache
def reached_overloads() -> dict[str, str]:
    """For each overload that the first float32 sample of an OpInfo reaches, the first such OpInfo."""
    reached: dict[str, str] = {}
    for name in OP_INFOS:
        if supported(name, torch.float32) and not name.startswith("jiterator"):
            for call in recorded_calls(name, torch.float32, 1):
                reached.setdefault(call.overload, name)
    return dict(sorted(reached.items()))
