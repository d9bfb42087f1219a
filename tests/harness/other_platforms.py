"""Programs of kernels for another platform than a CPU, and what of a CPU's forms is in them."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from jaten_ops import registry
from jaten_ops.arrays import bridge
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.kernel_base import platform
from jaten_ops.ops.executor import Executor, KernelCall, Signature, freeze
from jaten_ops.xla.x64 import Enabled

from .recorded import Call

# Functions of jaten_ops/cpu with operations in every program, and which those are. The table may only shrink.
OF_EVERY_PLATFORM = {
    "for_floats.<locals>.function": "the function itself, of other dtypes than float32",
    "contract": "the product itself: only its first operand may have another form",
    "reduce_prod": "the product of what is not a long row of float32",
    "sum_of_last": "the sum over dimensions that are not the last ones",
}

_FRAME = re.compile(r'"([^"]*)"\("([^"]+)":(\d+)')
_OF_CPU, _CHOICE = "/jaten_ops/cpu/", "/kernel_base/platform.py"


def _values(call: Call) -> list[Any]:
    """The arguments of a call as its kernel gets them, with shapes and dtypes in place of tensors."""
    signature = Signature(registry.SPECS[call.overload])
    values = signature.bind(call.args, call.kwargs)
    return [_abstract(values[i]) for i in signature.kernel_positions]


def has_program(call: Call) -> bool:
    """False if the kernel looks at the values of this call's arguments, or JAX lacks a dtype of theirs."""
    spec, eager = registry.SPECS[call.overload], registry.KERNELS[call.overload].eager
    try:
        values = _values(call)
    except UnsupportedInputError:
        return False
    return not (KernelCall(spec, eager)(values) if callable(eager) else eager)


def program(call: Call, on: str) -> Any:
    """The program of a kernel for a platform, as a module of StableHLO."""
    spec, taken = registry.SPECS[call.overload], _values(call)
    executor = Executor(spec, registry.KERNELS[call.overload], None)
    if spec.random:
        taken.append(jax.ShapeDtypeStruct((), np.dtype("int64")))
    with Enabled():
        traced = executor._jit[torch.float32].trace(*taken)
        return traced.lower(lowering_platforms=(on,)).compiler_ir("stablehlo")


def _abstract(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return jax.ShapeDtypeStruct(tuple(value.shape), bridge.to_numpy_dtype(value.dtype))
    return tuple(map(_abstract, value)) if isinstance(value, list | tuple) else freeze(value)


def operations(block: Any) -> Iterator[Any]:
    """The operations of a program; of a choice between platforms those that are chosen."""
    for operation in block.operations:
        inner = [b for region in operation.regions for b in region.blocks]
        name = operation.operation.name
        numbers = [
            [o.operation.name for o in b.operations] == ["stablehlo.constant", "stablehlo.return"] for b in inner
        ]
        chooses = name == "stablehlo.case" and all(numbers)
        if not chooses and not (name == "stablehlo.case" and len(inner) == 1):
            yield operation
        if not chooses:
            for b in inner:
                yield from operations(b)


def _is_read(operation: Any) -> bool:
    """False for a constant that nothing reads, or only a choice between platforms: XLA drops it."""
    readers = {use.owner.name for result in operation.results for use in result.uses}
    return operation.operation.name != "stablehlo.constant" or not readers <= {"stablehlo.case"}


def _counted(module: Any) -> collections.Counter[str]:
    """The operations of a program that compute something, by name and types, with their numbers."""
    kinds = ((o.operation.name, o) for o in operations(module.body) if _is_read(o))
    none = ("func.call", "func.func", "func.return", "stablehlo.return")
    return collections.Counter(f"{n} {[str(r.type) for r in o.results]}" for n, o in kinds if n not in none)


def _of_cpu(operation: Any) -> str | None:
    """The function of jaten_ops/cpu that makes an operation outside `by_platform`, and its line; None if none does."""
    frames = _FRAME.findall(str(operation.location))
    inside = [_OF_CPU in file for _, file, _ in frames]
    if True not in inside:
        return None
    first = inside.index(True)
    end = first + [*inside[first:], False].index(False)
    chosen = any(_CHOICE in file for _, file, _ in [*frames[:first], *frames[end : end + 1]])
    function, file, line = frames[end - 1]
    return None if chosen or function in OF_EVERY_PLATFORM else f"{function} ({file.rpartition('/')[2]}:{line})"


def leaks(calls: Sequence[Call], on: str) -> list[str]:
    """The parts of a CPU's forms that programs of some calls have on another platform, one a line.

    A program must have the operations that it has if `by_platform` knows no form for a CPU, and none that a function of
    jaten_ops/cpu makes outside `by_platform`.
    """
    elsewhere = SimpleNamespace(platform_dependent=lambda *operands, cpu, default: default(*operands))
    jax.clear_caches()
    programs = [program(call, on) for call in calls]
    found = [f"{call}: {by}" for call, p in zip(calls, programs, strict=True) for by in _made_by_cpu(p)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "lax", elsewhere)
        jax.clear_caches()
        for call, both in zip(calls, programs, strict=True):
            counted, expected = _counted(both), _counted(program(call, on))
            if counted != expected:
                found.append(f"{call}: {dict(counted - expected)} in place of {dict(expected - counted)}")
    jax.clear_caches()
    return found


def _made_by_cpu(module: Any) -> list[str]:
    return sorted({by for o in operations(module.body) if (by := _of_cpu(o)) is not None})
