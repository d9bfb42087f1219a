"""Recorded ATen calls of the samples of an OpInfo, which can be repeated."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .replay import (
    OP_INFOS,
    callable_overload,
    describe_call,
    differentiable,
    jaten_overload,
    op_named,
    replay_sample,
    samples,
    supported,
)

__all__ = ["Call", "all_reached_overloads", "op_named", "reached_overloads", "recorded_calls"]

REACHING = (torch.float32, torch.complex64, torch.int64, torch.bool)


@dataclass
class Call:
    """One call of a functional overload with a jaten kernel, with copies of its arguments."""

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
    def __init__(self, ignored: Container[str] = ()) -> None:
        super().__init__()
        self._ignored = ignored
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        overload = jaten_overload(func)
        overload = overload and callable_overload(overload, args)
        if overload is not None and overload not in self._ignored:
            own = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs or {}))
            self.calls.append(Call(overload, op_of_aten(overload), *own))
        return func(*args, **(kwargs or {}))


def recorded_calls(
    name: str, dtype: torch.dtype, most: int, *, backward: bool = False, ignored: Container[str] = ()
) -> Iterator[Call]:
    """The distinct calls of the first samples of an OpInfo, optionally with those of the backward pass.

    Calls of the overloads in `ignored`, which may change while this goes on, are left out.
    """
    distinct: set[str] = set()
    backward = backward and differentiable(name, dtype)
    for sample in samples(name, dtype, backward, most):
        record = _Record(ignored)
        replay_sample(name, sample, backward, record)
        for call in record.calls:
            if str(call) not in distinct:
                distinct.add(str(call))
                yield call


REACHED_FIRST = Path(__file__).with_name("reached_first.txt")


def reached_overloads() -> dict[str, str]:
    """For each overload that the first float32 sample of an OpInfo reaches, the first such OpInfo.

    Read from a file that `python -m tests.harness.reach` writes, since computing it takes almost a minute.
    """
    lines = REACHED_FIRST.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if not line.startswith("#"))


def find_reached_overloads() -> dict[str, str]:
    """The table of `reached_overloads` for the installed torch."""
    reached: dict[str, str] = {}
    for name in OP_INFOS:
        if supported(name, torch.float32) and not name.startswith("jiterator"):
            for call in recorded_calls(name, torch.float32, 1, ignored=reached):
                reached.setdefault(call.overload, name)
    return dict(sorted(reached.items()))


def all_reached_overloads(names: Iterable[str], most: int) -> dict[str, tuple[str, torch.dtype]]:
    """For each overload that samples of the OpInfos reach, forward or backward, the first such OpInfo and its dtype.

    Of each OpInfo the first of `REACHING` dtypes that it supports is taken.
    """
    reached: dict[str, tuple[str, torch.dtype]] = {}
    for name in names:
        dtype = next((d for d in REACHING if supported(name, d)), None)
        if dtype is not None:
            for call in recorded_calls(name, dtype, most, backward=True, ignored=reached):
                reached.setdefault(call.overload, (name, dtype))
    return dict(sorted(reached.items()))
