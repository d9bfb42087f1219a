"""The executables of graphs, found again by their plans: neither JAX nor XLA has anything to do then."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaten_ops import allocator, disk, executables, fingerprint
from jaten_ops.folding import folded

from .plans import Plan

_BY_FRAMES = "the messages name lines of the program"


def build(
    graph: Callable[..., list[jax.Array]],
    operands: Sequence[Any],
    errors: list[Exception],
    plan: Plan | None,
    beside: str,
) -> Callable[..., Any]:
    """The executable of a graph.

    Args:
        graph: the JAX function, which fills `errors` when it is traced. It has one result more if there are any.
        operands: arrays, or their descriptions.
        errors: what the conditions of the graph stand for, in their order.
        plan: the graph's, if it has one.
        beside: what else decides which function this is.
    """
    allocator.retain()
    key = _key(operands, plan, beside)
    found = None if key is None or plan is None else _recalled(key, plan, len(operands))
    if found is not None:
        run, errors[:] = found
        return run
    lowered = jax.jit(folded(graph)).lower(*operands)
    run, name = executables.compiled(lowered)
    if key is not None and plan is not None and name is not None and not executables.calls_out(lowered):
        _remember(key, plan, name, len(jax.tree.leaves(lowered.out_info)), errors)
    return run


def _key(operands: Sequence[Any], plan: Plan | None, beside: str) -> str | None:
    """What decides the executable; None if that cannot be told."""
    if plan is None or disk.folder() is None:
        return None
    devices = {d for x in operands if x.sharding is not None for d in x.sharding.device_set} or {jax.devices()[0]}
    package = fingerprint.of_package()
    place = fingerprint.of_device(devices.pop()) if len(devices) == 1 else None
    if package is None or place is None:
        return None
    return disk.key_of("graph", package, place, plan.identity(), beside, repr([_described(x) for x in operands]))


def _described(operand: Any) -> Any:
    """An operand's shape, dtype, place and layout."""
    if isinstance(operand, jax.Array):
        stored: Any = operand
        return operand.aval, operand.sharding, operand.committed, stored.format.layout
    return operand, operand.weak_type


def _recalled(key: str, plan: Plan, taken: int) -> tuple[Any, list[Exception]] | None:
    content = disk.read(key)
    if content == _BY_FRAMES.encode():
        content = disk.read(disk.key_of(key, plan.frames()))
    if content is None:
        return None
    try:
        name, results, errors = pickle.loads(content)
    except Exception:  # as an exception class may that has moved
        return None
    run = executables.load(name, jax.tree.structure(((0,) * taken, {})), jax.tree.structure([0] * results))
    return None if run is None else (run, errors)


def _remember(key: str, plan: Plan, name: str, results: int, errors: list[Exception]) -> None:
    try:
        content = pickle.dumps((name, results, errors))
        pickle.loads(content)
    except Exception:  # an exception class may have any constructor
        return
    if errors:
        disk.write(key, _BY_FRAMES.encode())
        key = disk.key_of(key, plan.frames())
    disk.write(key, content)
