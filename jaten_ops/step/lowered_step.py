"""A traced step as one function of its operands, lowered: the groups in which they come, and their places."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..cpu.layouts import flattened, has_turns, in_turn, ordered
from ..xla import cpu_client, onednn
from ..xla.x64 import Enabled
from .trace import Trace


class Groups(NamedTuple):
    """The operands of a program, by their numbers in the trace.

    Attributes:
        written, read: those in storages that are written to, and in storages that are not.
        others: tensors in torch's memory.
        numbers: of parameter groups.
        seeds: of generators.
        constants: tensors in torch's memory that no longer exist, with their values.
    """

    written: list[int]
    read: list[int]
    others: list[int]
    numbers: list[int]
    seeds: list[int]
    constants: dict[int, Any]


def groups_of(trace: Trace) -> Groups:
    """The operands of a trace."""
    sources = [source for source, _ in trace.capture.operands]
    written = {w.operand: w for w in trace.written}
    in_memory = {i: s.what for i, s in enumerate(sources) if s.kind == "cpu"}
    alive = [i for i, (ref, _, _) in in_memory.items() if ref() is not None]
    return Groups(
        [*written],
        [found.operand for found in trace.capture.lifted.values() if found.operand not in written],
        alive,
        [i for i, s in enumerate(sources) if s.kind == "number"],
        [i for i, s in enumerate(sources) if s.kind == "seed"],
        {i: array for i, (_, _, array) in in_memory.items() if i not in alive},
    )


def operands_by_number(
    groups: Groups, written: Any, read: Any, others: Any, numbers: Any, seeds: Any
) -> dict[int, Any]:
    """The operands of a trace by their numbers, from those of each group."""
    operands: dict[int, Any] = dict(groups.constants)
    operands.update(zip(groups.written, written, strict=True))
    operands.update(zip(groups.read, read, strict=True))
    operands.update(zip(groups.others, others, strict=True))
    operands.update((index, numbers[i]) for i, index in enumerate(groups.numbers))
    operands.update(zip(groups.seeds, seeds, strict=True))
    return operands


def in_own_memory(array: Any) -> jax.ShapeDtypeStruct:
    """A stand-in for an array in torch's memory, where the client of `cpu_client` computes."""
    own = jax.sharding.SingleDeviceSharding(cpu_client.device())
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=own)


def lowered(
    trace: Trace,
    groups: Groups,
    written: Sequence[Any],
    read: Sequence[Any],
    others: Sequence[Any],
    *,
    places: list[Any] | None,
    absent: Any = None,
    in_memory: bool = False,
) -> tuple[jax.stages.Lowered, str]:
    """The program of a trace, and its text in StableHLO.

    Args:
        trace, groups: the traced step and its operands.
        written, read, others: the arrays of these groups, or what stands for arrays.
        places: the shardings of what is written, for a program over a mesh; None for one of a device.
        absent: one of the devices of `cpu_client.absent`, if those of the mesh are not there.
        in_memory: whether the operands are torch's memory, which no program may reuse.
    """

    def program(*operands: Any) -> Any:
        return trace.program(
            operands_by_number(groups, *operands), lambda fn: flattened(ordered(fn, platform=kind), platform=kind)
        )

    drawn = [jax.ShapeDtypeStruct((), np.dtype("int64"))] * len(groups.seeds)
    numbers = jax.ShapeDtypeStruct((len(groups.numbers),), np.dtype("float64"))
    placed: dict[str, Any] = {} if places is None else {"out_shardings": (places, None, None, None)}
    kind = None if places is None else "partitioned"

    if in_memory:
        written, read, others = ([in_own_memory(a) for a in part] for part in (written, read, others))

    def made(fn: Callable[..., Any]) -> tuple[jax.stages.Lowered, str]:
        donated = () if in_memory else 0
        traced = jax.jit(fn, donate_argnums=donated, **placed).trace([*written], [*read], [*others], numbers, drawn)
        device = cpu_client.device() if in_memory else absent
        if device is None:
            found = traced.lower()
        else:
            with jax.default_device(device):  # JAX compiles with the client of this device
                found = traced.lower(lowering_platforms=(device.platform,))
        return found, found.as_text()

    alone = cpu_client.out_of_mesh() if in_memory else contextlib.nullcontext()
    with Enabled(), alone, onednn.calling(places is None and absent is None):
        found, text = made(flattened(ordered(program, platform=kind), platform=kind))
        return made(in_turn(program)) if has_turns(text) else (found, text)
