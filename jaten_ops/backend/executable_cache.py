"""The disk cache of graphs' executables, by the serialized graph: on a hit neither JAX nor XLA does any work."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaten_ops.cpu.layouts import Order, flattened, has_turns, in_turn, ordered
from jaten_ops.xla import cpu_client, disk_store, executables, malloc, onednn
from jaten_ops.xla.disk_cache import DiskCache

from .serialized_graph import Plan

CACHE = DiskCache("graph")
_BY_FRAMES = "the messages name lines of the program"
_Found = tuple[Any, list[Order | None], list[Exception]]


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
    devices = _devices(traced.operands)
    # the rewrites for a CPU know nothing of partitions; of platforms `jax.jit` refuses several
    platform = next(iter(devices)).platform if len(devices) == 1 else "partitioned"
    program = ordered(
        traced.graph,
        platform=platform,
        taken=traced.taken,
        free=lambda: [*traced.free, *[False] * bool(errors)],
        left=left,
    )
    donated = tuple(traced.donated)
    alone = cpu_client.out_of_mesh() if len(devices) == 1 else contextlib.nullcontext()
    with alone, onednn.calling(platform == "cpu"):
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
    devices = _devices(traced.operands)
    if plan is None or len(devices) != 1:
        return None
    described = repr(([_described(x) for x in traced.operands], traced.taken, traced.free, traced.donated))
    return CACHE.fingerprint(plan.identity(), beside, described, device=devices.pop(), of_package=True)


def _described(operand: Any) -> Any:
    """An operand's shape, dtype, place and layout."""
    if isinstance(operand, jax.Array):
        stored: Any = operand
        return operand.aval, operand.sharding, operand.committed, stored.format.layout
    return operand, operand.weak_type


def _recalled(key: str, plan: Plan, taken: int) -> _Found | None:
    found = CACHE.lookup(key, pickle.loads)
    if found == _BY_FRAMES:
        found = CACHE.lookup(disk_store.key_of(key, plan.frames()), pickle.loads)
    if found is None:
        return None
    name, left, errors = found
    run = executables.load_kept(name, jax.tree.structure(((0,) * taken, {})), jax.tree.structure([0] * len(left)))
    return None if run is None else (run, left, errors)


def _remember(key: str, plan: Plan, found: tuple[str, list[Order | None], list[Exception]]) -> None:
    if found[-1]:
        CACHE.store(key, lambda: pickle.dumps(_BY_FRAMES))
        key = disk_store.key_of(key, plan.frames())
    CACHE.store(key, lambda: _dumped(found))


def _dumped(found: Any) -> bytes:
    content = pickle.dumps(found)
    pickle.loads(content)  # an exception class may have any constructor
    return content
