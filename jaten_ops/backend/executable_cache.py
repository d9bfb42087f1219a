"""The disk cache of graphs' executables, by the serialized graph: on a hit neither JAX nor XLA does any work."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaten_ops.cpu.layouts import Order, flattened, has_turns, in_turn, ordered
from jaten_ops.xla import disk_store, executables, fingerprint, malloc

from .serialized_graph import Plan

_BY_FRAMES = "the messages name lines of the program"


class CompileRequest(NamedTuple):
    """A compile: the function, its operands, and constraints on their layout and memory.

    Attributes:
        graph: the JAX function. It has one result more if some values are errors.
        operands: arrays, or their descriptions.
        taken: the order in which the dimensions of each come, None for the program's.
        free: for each result whether its dimensions may be left in any order.
        donated: the places of operands in whose memory results may be.
    """

    graph: Callable[..., list[jax.Array]]
    operands: Sequence[Any]
    taken: Sequence[Order | None]
    free: Sequence[bool]
    donated: Sequence[int] = ()


def build(
    traced: CompileRequest, errors: list[Exception], plan: Plan | None, beside: str
) -> tuple[Callable[..., Any], Sequence[Order | None]]:
    """The executable of a graph, and the order in which it leaves the dimensions of each result.

    Args:
        traced: the program; its graph fills `errors` when it is traced.
        errors: what the conditions of the graph stand for, in their order.
        plan: the graph's, if it has one.
        beside: what else decides which function this is.
    """
    malloc.retain()
    key = _key(traced, plan, beside)
    found = None if key is None or plan is None else _recalled(key, plan, len(traced.operands))
    if found is not None:
        run, left, errors[:] = found
        return run, left
    left = []
    platform = next(iter(_devices(traced.operands))).platform  # `jax.jit` refuses several
    program = ordered(
        traced.graph,
        platform=platform,
        taken=traced.taken,
        free=lambda: [*traced.free, *[False] * bool(errors)],
        left=left,
    )
    donated = tuple(traced.donated)
    lowered = jax.jit(flattened(program, platform=platform), donate_argnums=donated).lower(*traced.operands)
    if has_turns(lowered.as_text()):
        lowered = jax.jit(in_turn(program), donate_argnums=donated).lower(*traced.operands)
    run, name = executables.compiled(lowered)
    if key is not None and plan is not None and name is not None and not executables.calls_out(lowered):
        _remember(key, plan, (name, left, errors))
    return run, left


def _devices(operands: Sequence[Any]) -> set[Any]:
    return {d for x in operands if x.sharding is not None for d in x.sharding.device_set} or {jax.devices()[0]}


def _key(traced: CompileRequest, plan: Plan | None, beside: str) -> str | None:
    """The key of the executable; None if it cannot be determined."""
    if plan is None or disk_store.folder() is None:
        return None
    devices = _devices(traced.operands)
    package = fingerprint.of_package()
    place = fingerprint.of_device(devices.pop()) if len(devices) == 1 else None
    if package is None or place is None:
        return None
    described = repr(([_described(x) for x in traced.operands], traced.taken, traced.free, traced.donated))
    return disk_store.key_of("graph", package, place, plan.identity(), beside, described)


def _described(operand: Any) -> Any:
    """An operand's shape, dtype, place and layout."""
    if isinstance(operand, jax.Array):
        stored: Any = operand
        return operand.aval, operand.sharding, operand.committed, stored.format.layout
    return operand, operand.weak_type


def _recalled(key: str, plan: Plan, taken: int) -> tuple[Any, list[Order | None], list[Exception]] | None:
    content = disk_store.read(key)
    if content == _BY_FRAMES.encode():
        content = disk_store.read(disk_store.key_of(key, plan.frames()))
    if content is None:
        return None
    try:
        name, left, errors = pickle.loads(content)
    except Exception:  # for example an exception class that has moved
        return None
    run = executables.load(name, jax.tree.structure(((0,) * taken, {})), jax.tree.structure([0] * len(left)))
    return None if run is None else (run, left, errors)


def _remember(key: str, plan: Plan, found: tuple[str, list[Order | None], list[Exception]]) -> None:
    try:
        content = pickle.dumps(found)
        pickle.loads(content)
    except Exception:  # an exception class may have any constructor
        return
    if found[-1]:
        disk_store.write(key, _BY_FRAMES.encode())
        key = disk_store.key_of(key, plan.frames())
    disk_store.write(key, content)
