"""`torch.export` of programs with tensors of the device `jax`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.export import ExportedProgram
from torch.fx.experimental import proxy_tensor

from ..tensor.tensor import Tensor
from ..tracing import opaque
from . import ledger
from .ledger import Patch


def out_of_constants(asked: Callable[..., bool]) -> Callable[..., bool]:
    """`FakeTensorMode.may_turn_const`, False for tensors of the device: `torch.tensor(2.0).to(device)` is a node.

    Operators on constants of one element run during capture, and their results are stored in the graph, which is not
    possible for a wrapper's contents.
    """
    return lambda mode, t: t.device.type != "jax" and asked(mode, t)


def with_carriers(process: Callable[..., None]) -> Callable[..., None]:
    """`_process_equalities`, which must not require a name for the sizes of a tensor's carrier.

    Sizes that a program assumes to be equal must have one `Dim`, which only sizes of inputs have. That a carrier has
    its tensor's sizes is not an assumption of the program.
    """

    def process_with_carriers(constraint: Any, get_sources: Callable[..., Any], *others: Any) -> None:
        process(constraint, get_sources, *others)
        inner = torch._dynamo.source.AttrSource  # export has loaded Dynamo
        relaxed: set[Any] = others[-1]
        for source in get_sources(constraint.t_id, constraint.dim):
            relaxed.add(replace(source, base=inner(source.base, "_carrier")))

    return process_with_carriers


def by_own_sizes(bind: Callable[..., None]) -> Callable[..., None]:
    """`_set_unbacked_bindings`, by which a graph asks a tensor for a size that depends on values, not its carrier.

    Exported programs have no nodes for attributes.
    """

    @opaque
    def bind_by_own_sizes(out: Any, proxy: Any) -> None:
        bind(out, proxy)
        bindings = proxy.node.meta.get("unbacked_bindings", {}) if isinstance(proxy, torch.fx.Proxy) else {}
        for symbol, path in bindings.items():
            bindings[symbol] = tuple(key for key in path if getattr(key, "inner_name", None) != "_carrier")

    return bind_by_own_sizes


def _is_on_jax(node: Any) -> bool:
    """True if a node is a tensor of the device, or its carrier, as in programs that were decomposed."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


_decomposing: ContextVar[bool] = ContextVar("_decomposing", default=False)


def for_tensors(decompose: Any) -> Any:
    """`ExportedProgram.run_decompositions`, whose programs on the device take open sizes, and any strides."""

    @functools.wraps(decompose)
    def call(program: ExportedProgram, *args: Any, **kwargs: Any) -> ExportedProgram:
        if not any(map(_is_on_jax, program.graph.nodes)):
            return decompose(program, *args, **kwargs)
        ledger.install_rows(_SIZES, "Dynamo", has_device=True)
        before = _decomposing.set(True)
        try:
            result = decompose(program, *args, **kwargs)
        finally:
            _decomposing.reset(before)
        changed = False
        for node in result.graph.nodes:  # in exported programs all tensors are contiguous; outside they need not be
            if node.target is torch.ops.aten.view.default and _is_on_jax(node):
                node.target, changed = torch.ops.aten.reshape.default, True
        if changed:
            result.graph_module.recompile()
        return result

    return call


def of_carriers(find: Callable[..., Any]) -> Callable[..., Any]:
    """`enumerate_filter_symints`, which finds none in `run_decompositions`: open sizes are those of carriers.

    AOTAutograd takes the sizes that it finds for arguments and results, which exported programs do not have.
    """
    return lambda sizes: [] if _decomposing.get() else find(sizes)


def of_no_carriers(find: Callable[..., Any]) -> Callable[..., Any]:
    """`_symint_placeholders`, which says for each size of a carrier that it is no argument."""
    return lambda sizes: (False,) * len(sizes) if _decomposing.get() else find(sizes)


def of_tensors_sizes(convert: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    """`_convert_guards_to_code`, whose checks of an exported program's arguments are of tensors, not of carriers.

    The arguments may be functional tensors, or on the CPU once the program has been moved there.
    """

    def convert_of_tensors(graph_module: Any) -> list[str]:
        checks = [check.replace("._carrier", "") for check in convert(graph_module)]
        return [check for check in dict.fromkeys(checks) if len(set(check.split(" == "))) > 1 or " == " not in check]

    return convert_of_tensors


def of_tensors(register: Callable[..., Any]) -> Callable[..., Any]:
    """`register_buffer_assignment_hook`, whose hook also takes buffers of the device: torch's refuses subclasses."""

    def register_for_tensors(mod: Any, assigned_buffers: dict[str, str]) -> Any:
        handle = register(mod, assigned_buffers)
        hooks = nn.modules.module._global_buffer_registration_hooks
        theirs = hooks[handle.id]

        @opaque
        def name_assigned(module: Any, name: str, buffer: Any) -> Any:
            is_functional = type(buffer) is FunctionalTensor
            inner = buffer.from_functional() if is_functional else buffer
            if type(inner) is not Tensor:
                return theirs(module, name, buffer)
            if module._buffers is mod._buffers:
                mode = proxy_tensor.get_proxy_mode()
                assert mode is not None  # torch has this hook while it makes a graph
                slot = proxy_tensor.get_proxy_slot(inner, mode.tracer)
                assigned_buffers[name] = slot.proxy.node.name
            return inner if is_functional else buffer

        hooks[handle.id] = name_assigned
        return handle

    return register_for_tensors


def with_places_of_writes(module: Any) -> Any:
    """`ExportedProgram.module`, whose nodes that write to buffers are in the modules whose values they write.

    `run_decompositions` requires a module of each node. On the CPU, torch finds these by itself.
    """

    @functools.wraps(module)
    def call(program: ExportedProgram, *args: Any, **kwargs: Any) -> Any:
        made = module(program, *args, **kwargs)
        for node in made.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            value = node.args[1]
            if _is_on_jax(value) and "nn_module_stack" in value.meta:
                node.meta.setdefault("nn_module_stack", value.meta["nn_module_stack"])
        return made

    return call


def of_others(register_parametrization: Any) -> Any:
    """`register_parametrization`, by which `run_decompositions` takes subclasses apart: the device's stay whole."""

    @functools.wraps(register_parametrization)
    def call(module: Any, tensor_name: str, parametrization: Any, **options: Any) -> Any:
        whole = type(parametrization).__name__ == "UnwrapTensorSubclass"
        if whole and isinstance(getattr(module, tensor_name), Tensor):
            return module
        return register_parametrization(module, tensor_name, parametrization, **options)

    return call


_SIZES = [
    Patch(
        f"torch._functorch._aot_autograd.subclass_utils:{name}",
        make,
        "`run_decompositions` would fail for programs of the device with open sizes",
        "hooks/test_export",
        takes="lst",
        when="Dynamo",
        optional=True,
        since=since,
        used_by=("torch.export.exported_program:ExportedProgram.run_decompositions",),
    )
    for name, make, since in (
        ("enumerate_filter_symints", of_carriers, ""),
        ("_symint_placeholders", of_no_carriers, "2.14"),
    )
]
_ASSIGNED = [
    Patch(
        f"{module}:register_buffer_assignment_hook",
        of_tensors,
        "`torch.export` would refuse modules on the device that assign buffers",
        "hooks/test_export",
        takes="mod assigned_buffers",
        optional=True,
        used_by=("torch.export:export",),
    )
    for module in ("torch._functorch._aot_autograd.utils", "torch.export._trace")
]
_CHECKS = Patch(
    "torch.export.exported_program:_convert_guards_to_code",
    of_tensors_sizes,
    "exported programs with open sizes would ask arguments for their carriers, which they need not have",
    "hooks/test_export",
    takes="graph_module",
    used_by=("torch.export:export",),
)
_COPIES = Patch(
    "torch.export.exported_program:ExportedProgram.module",
    with_places_of_writes,
    "programs of the device that write to buffers could not be decomposed twice",
    "hooks/test_export",
    takes="self check_guards",
)
ROWS = [
    _CHECKS,
    _COPIES,
    *_SIZES,
    *_ASSIGNED,
    Patch(
        "torch.export.dynamic_shapes:_process_equalities",
        with_carriers,
        "`torch.export` would require a `Dim` for each size of a tensor's carrier",
        "hooks/test_export",
        takes="constraint get_sources shape_env names source_pairs derived_equalities phantom_symbols relaxed_sources",
        used_by=("torch.export:export",),
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:_set_unbacked_bindings",
        by_own_sizes,
        "`torch.export` would refuse a size that depends on values, which its graph would ask of a tensor's carrier",
        "hooks/test_export",
        takes="out out_proxy",
        used_by=("torch.export:export",),
    ),
]
