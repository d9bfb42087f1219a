"""The operators of the installed torch, as `OpSpec`s: from the dispatcher and from torchgen's packaged derivatives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchgen
from torchgen.packaged.autograd.load_derivatives import load_derivatives

from .rows import TOLD_BY_OUT, OpSpec

# "Tensor(a!)" and "Tensor(a -> *)" are Tensor with alias marks
_ALIAS_MARK = re.compile(r"\([a-z][a-z0-9|]*!?(?: ?-> ?[*a-z|!]+)?\)(?=\[| |\?|$|,|\))")


def _aten_overloads() -> Iterator[tuple[str, torch._ops.OpOverload]]:
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, overload = name.partition("::")
        if namespace == "aten":
            packet, _, suffix = overload.partition(".")
            yield overload, getattr(getattr(torch.ops.aten, packet), suffix or "default")


def _without_alias_marks(schema: torch._C.FunctionSchema) -> str:
    text = str(schema).removeprefix("aten::")
    cut = text.index("(")
    return text[:cut] + "(" + _ALIAS_MARK.sub("", text[cut + 1 :])


def _used_gradients(info: Any) -> set[int]:
    """The results whose gradients the formulas of a torchgen `DifferentiabilityInfo` use; only these require one."""
    formulas = " ".join(d.formula for d in info.derivatives)
    results = range(len(info.func.func.returns))
    if not info.derivatives or re.search(r"\bgrads\b", formulas):
        return set(results)
    return {0} | {i for i in results if re.search(rf"\bgrad_{info.func.func.returns[i].name}\b", formulas)}


def _differentiability() -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """For each overload with a derivative: the differentiable arguments, and the nondifferentiable outputs."""
    packaged = Path(torchgen.__file__).parent / "packaged"
    infos, _ = load_derivatives(
        str(packaged / "autograd" / "derivatives.yaml"),
        str(packaged / "ATen" / "native" / "native_functions.yaml"),
        str(packaged / "ATen" / "native" / "tags.yaml"),
    )
    table = {}
    for schema, by_key in infos.items():
        info = by_key.get("Default")
        if info is None:
            continue
        names = [name for d in info.derivatives if "not_implemented" not in d.formula for name in d.var_names]
        outputs = info.output_differentiability or [i in _used_gradients(info) for i in range(len(schema.returns))]
        table[str(schema.name)] = (
            tuple(names),
            tuple(i for i, differentiable in enumerate(outputs) if not differentiable),
        )
    table["copy"] = (("src",), ())  # torch implements the derivative of `copy_` in C++
    return table


def _kind(overload: str, op: torch._ops.OpOverload) -> str:
    schema = op._schema
    if any(a.is_out for a in schema.arguments):
        return "out"
    if schema.is_mutable:
        return "inplace"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    # some have a composite body for other layouts and also a CPU kernel: on dense tensors they are leaves
    if has_kernel(f"aten::{overload}", "CompositeImplicitAutograd") and not has_kernel(f"aten::{overload}", "CPU"):
        return "composite"
    return "view" if any(r.alias_info is not None for r in schema.returns) else "functional"


def _of_foreach(schema: torch._C.FunctionSchema, gradients: Iterable[str]) -> tuple[str, ...]:
    """The differentiable arguments of a `_foreach_` overload: torchgen derives its formulas from the operator's own."""
    operator = schema.name.removeprefix("aten::_foreach_")
    if operator == schema.name or not any(o.partition(".")[0] == operator for o in gradients):
        return ()
    tensors = [a.name for a in schema.arguments if "Tensor" in str(a.type)]
    return ("src",) if operator == "copy" else tuple(tensors)


def read_functional() -> list[OpSpec]:
    """All functional leaf overloads, and the core-tagged ones among the composites."""
    gradients = _differentiability()
    specs = []
    for overload, op in _aten_overloads():
        kind = _kind(overload, op)
        core = torch.Tag.core in op.tags
        if kind in ("functional", "view") or (kind == "composite" and core):
            differentiable, nondifferentiable_outputs = gradients.get(overload, ((), ()))
            differentiable = differentiable or _of_foreach(op._schema, gradients)
            specs.append(
                OpSpec(
                    schema=_without_alias_marks(op._schema),
                    kind=kind,  # type: ignore[arg-type]  # _kind returns literals of Kind
                    tags=frozenset(tag.name for tag in op.tags),
                    differentiable=differentiable,
                    nondifferentiable_outputs=nondifferentiable_outputs,
                )
            )
    return specs


def _op(overload: str) -> torch._ops.OpOverload:
    packet, _, suffix = overload.partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


def _signature(schema: torch._C.FunctionSchema, without: frozenset[str] = frozenset()) -> frozenset[tuple[str, str]]:
    """The set of arguments, without their order: that of polygamma_ differs from polygamma's."""
    return frozenset((a.name, str(a.real_type)) for a in schema.arguments if not a.is_out and a.name not in without)


def _functional_packet(packet: str, kind: str) -> str:
    """The packet of the functional overload of an in-place or out= one."""
    if kind == "out":
        return packet
    return f"__{packet[3:]}" if packet.startswith("__i") else packet.removesuffix("_")


def _spec(overload: str, kind: str, base: str = "") -> OpSpec:
    """An overload with its schema as ATen has it."""
    op = _op(overload)
    return OpSpec(
        schema=str(op._schema).removeprefix("aten::"),
        kind=kind,  # type: ignore[arg-type]  # _kind returns literals of Kind
        tags=frozenset(tag.name for tag in op.tags),
        base=base,
    )


def read_variants(bases: list[OpSpec]) -> list[OpSpec]:
    """The in-place and out= overloads whose functional overload, with the same packet and arguments, is among `bases`.

    The out= overloads of factories lack the arguments that `out` determines.
    """
    by_packet: dict[str, list[tuple[str, torch._C.FunctionSchema]]] = {}
    for spec in bases:
        by_packet.setdefault(spec.packet, []).append((spec.overload, _op(spec.overload)._schema))
    specs = []
    for overload, op in _aten_overloads():
        kind = _kind(overload, op)
        if kind not in ("inplace", "out"):
            continue
        packet = overload.partition(".")[0]
        functional_packet = _functional_packet(packet, kind)
        candidates = [c for p in (functional_packet, f"{functional_packet}_functional") for c in by_packet.get(p, [])]
        wanted = _signature(op._schema)
        found = [base for base, schema in candidates if _signature(schema) == wanted]
        if not found and kind == "out":
            wanted = _signature(op._schema, TOLD_BY_OUT)
            found = [base for base, schema in candidates if _signature(schema, TOLD_BY_OUT) == wanted]
        if found:
            specs.append(_spec(overload, kind, found[0]))
    return specs


def read_composites(known: list[OpSpec]) -> list[OpSpec]:
    """The overloads that ATen composes from others, without the known ones."""
    names = {spec.overload for spec in known}
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return [
        _spec(overload, "composite")
        for overload, _ in _aten_overloads()
        if overload not in names and has_kernel(f"aten::{overload}", "CompositeImplicitAutograd")
    ]
