"""The ledger of what importing jaten changes of torch and JAX: a row for each attribute.

`replace` is the one way by which jaten puts a function of its own in the place of another's. Where a torch or JAX has
the attribute not, or with other parameters, it is left as it is: one feature is off, which a line of the log says. The
snapshot in tests/test_import.py holds the table and what an import does together.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("jaten_ops")


@dataclass(frozen=True)
class Patch:
    """A function of torch's or JAX's that jaten replaces.

    Attributes:
        what: "module:attribute" or "module:Class.attribute".
        why: what does not work without.
        test: the file that holds the feature.
        takes: the names of the parameters, by which a version that has changed it is known; None where Python knows no
            signature.
        when: what replaces it: the import, that of the backend, or a use of it.
    """

    what: str
    why: str
    test: str
    takes: tuple[str, ...] | None = None
    when: str = "import"


def _rows(module: str, names: Iterable[str], why: str, test: str, takes: str | None = None) -> list[Patch]:
    """Several attributes of one module or class, for one reason."""
    parameters = None if takes is None else tuple(takes.split())
    return [Patch(f"{module}{name}", why, test, parameters) for name in names]


ACCELERATOR = (
    *("empty_cache", "empty_host_cache", "get_memory_info", "memory_stats", "synchronize"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("reset_accumulated_memory_stats", "reset_peak_memory_stats"),
)
"""What of torch.accelerator answers for the device."""

_MAKE_ON_DEVICE = "torch's own constructor makes no object on a device written in Python"
_TORCHSCRIPT = "C++ keeps, moves and saves a scripted module's tensors, which on the device have no bytes there"
_NAMED = "an operator of jaten's is defined when it is named, and C++ looks it up without asking torch.ops"
_HIGHER_ORDER = "cond, scan, map and flex_attention look at their operands' memory, which on the device is not torch's"
_GRAPH_CACHE = "AOTAutograd's graphs are kept in jaten's folder, with a key that knows its kernels"
_NOT_CHOSEN = "no program comes onto the device that has not named it: the process has the accelerator that it had"

PATCHES: dict[str, Patch] = {
    row.what: row
    for row in (
        Patch("torch._C:_accelerator_getAccelerator", _NOT_CHOSEN, "test_plain_programs"),
        Patch("torch._C:_get_accelerator", _NOT_CHOSEN, "test_plain_programs"),
        *_rows("torch._C:", ("_get_schema", "_dispatch_find_schema_or_throw"), _NAMED, "test_torchscript"),
        *_rows(
            "torch.accelerator:", ACCELERATOR, "they ask C++, where a device written in Python is not", "test_device"
        ),
        Patch(
            "torch.autograd.variable:Variable._execution_engine",
            "the engine has no thread for a device that came after its first backward pass, and ends the process for"
            " an exception in one on the device",
            "test_autograd_engine",
        ),
        Patch(
            "torch.distributed.distributed_c10d:BackendConfig.__init__",
            "a group for which no backend is named serves tensors of the device, too",
            "test_collectives",
            ("self", "backend"),
        ),
        Patch("torch:Generator", "C++ makes no generator for a device written in Python", "test_generators"),
        *_rows(
            "torch",
            (":to_dlpack", ".utils.dlpack:to_dlpack"),
            "C++ finds no memory of a tensor of the device",
            "test_tensor",
        ),
        Patch(
            "torch.utils:swap_tensors",
            "`module.to` moves parameters that hooks, graphs and lazy modules know",
            "test_moving_modules",
            ("t1", "t2"),
        ),
        Patch(
            "torch.nn.parameter:Parameter.__new__",
            "a parameter of a user's subclass stays one on the device",
            "test_subclasses",
            ("cls", "data", "requires_grad"),
        ),
        Patch(
            "torch.nn.parameter:UninitializedParameter.__new__",
            _MAKE_ON_DEVICE,
            "test_moving_modules",
            ("cls", "requires_grad", "device", "dtype"),
        ),
        Patch(
            "torch.nn.parameter:UninitializedBuffer.__new__",
            _MAKE_ON_DEVICE,
            "test_moving_modules",
            ("cls", "requires_grad", "device", "dtype", "persistent"),
        ),
        Patch("torch.storage:UntypedStorage.__new__", _MAKE_ON_DEVICE, "test_storage"),
        Patch(
            "torch._subclasses.fake_tensor:FakeTensorMode.may_turn_const",
            "`torch.tensor(2.0).to(device)` is a node of a graph, not a constant",
            "test_tracing",
            ("self", "t"),
        ),
        Patch(
            "torch.fx.experimental.proxy_tensor:ProxyTorchDispatchMode.__torch_dispatch__",
            "`make_fx` records operators on the device",
            "test_make_fx",
            ("self", "func", "types", "args", "kwargs"),
        ),
        Patch("torch.jit._script:ScriptModule._apply", _TORCHSCRIPT, "test_torchscript", ("self", "fn", "recurse")),
        *_rows(
            "torch.jit._script:",
            [f"{c}ScriptModule.{name}" for c in ("", "Recursive") for name in ("save", "save_to_buffer")],
            _TORCHSCRIPT,
            "test_torchscript",
        ),
        *_rows(
            "torch.jit",
            (":load", "._serialization:load"),
            _TORCHSCRIPT,
            "test_torchscript",
            "f map_location _extra_files _restore_shapes",
        ),
        Patch(
            "torch.nn.utils.parametrize:register_parametrization",
            "`run_decompositions` leaves the device's parameters whole",
            "test_torchscript",
            ("module", "tensor_name", "parametrization", "unsafe"),
        ),
        Patch(
            "torch.export.exported_program:ExportedProgram.run_decompositions",
            "in a program all tensors are row-major, which outside they need not be",
            "test_torchscript",
            ("self", "decomp_table", "decompose_custom_triton_ops"),
        ),
        *_rows(
            "torch",
            ("._higher_order_ops.utils:setup_compilation_env", ".nn.attention.flex_attention:setup_compilation_env"),
            _HIGHER_ORDER,
            "test_higher_order",
            "",
        ),
        *_rows(
            "torch._higher_order_ops.",
            ("utils:_from_fun", "map:_from_fun", "invoke_subgraph:_from_fun"),
            _HIGHER_ORDER,
            "test_higher_order",
            "t",
        ),
        Patch("torch._higher_order_ops.utils:_collect_fake_inputs", _HIGHER_ORDER, "test_higher_order", ("inputs",)),
        Patch(
            "torch.nn.attention.flex_attention:_validate_device",
            _HIGHER_ORDER,
            "test_flex_attention",
            ("query", "key", "value"),
        ),
        Patch(
            "torch.export.dynamic_shapes:_process_equalities",
            "the size of what carries a tensor is the tensor's, which a Dim names",
            "test_torchscript",
            (
                *("constraint", "get_sources", "shape_env", "names"),
                *("source_pairs", "derived_equalities", "phantom_symbols", "relaxed_sources"),
            ),
        ),
        Patch(
            "torch._dynamo.variables.higher_order_ops:get_tensor_storages",
            _HIGHER_ORDER,
            "test_higher_order",
            ("tensor",),
            when="with Dynamo",
        ),
        Patch(
            "torch:_TorchCompileInductorWrapper.__call__",
            "torch.compile without a backend: Inductor has no code for the device",
            "test_default_backend",
            ("self", "model_", "inputs_", "config_patches"),
        ),
        Patch(
            "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.iterate_over_candidates",
            _GRAPH_CACHE,
            "test_warm_start",
            when="first compile",
        ),
        Patch(
            "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache._write_to_local_cache",
            _GRAPH_CACHE,
            "test_warm_start",
            ("key", "content"),
            when="first compile",
        ),
        Patch(
            "torch._inductor.codecache:FxGraphHashDetails.__init__",
            _GRAPH_CACHE,
            "test_warm_start",
            when="first compile",
        ),
        Patch(
            "jax._src.compiler:backend_compile_and_load",
            "single kernels get jaten's compiler options and are kept for the next process",
            "test_kernel_cache",
            ("backend", "module", "executable_devices", "options", "host_callbacks"),
        ),
    )
}

_SLOT = "torch names any device of its PrivateUse1 slot so: torch.utils.rename_privateuse1_backend"
_METHODS = "torch gives any device of its PrivateUse1 slot these: generate_methods_for_privateuse1_backend"

REGISTERED: dict[str, str] = {
    "torch:jax": "the module of the device: torch._register_device_module",
    "torch.ops:jaten": "the operators: torch.library",
    "torch.ops:jaten_nn": "operators of the device's own: torch.library",
    **{
        f"torch.{module}:{cls}.{name}": _SLOT
        for module, cls in (("_C._autograd", "DeviceType"), ("_C._profiler", "ProfilerActivity"))
        for name in ("JAX", "__repr__", "__str__", "name")
    },
    "torch.utils.backend_registration:_privateuse1_backend_name": _SLOT,
    **{f"torch:Tensor.{name}": _METHODS for name in ("is_jax", "jax")},
    **{f"torch.nn.utils.rnn:PackedSequence.{name}": _METHODS for name in ("is_jax", "jax")},
    "torch.nn.modules.module:Module.jax": _METHODS,
}
"""What torch's own ways to register a device and operators change, and which they are."""

_PRIMITIVES = "a JAX primitive of jaten's own and its rules, by the tables that jax.extend and jax.interpreters give"

FILLED: dict[str, str] = {
    **{
        f"{package}.interpreters.{table}": _PRIMITIVES
        for package in ("jax", "jax._src")
        for table in (
            *("ad:primitive_jvps", "ad:primitive_transposes", "batching:fancy_primitive_batchers"),
            "mlir:_lowerings",
        )
    },
    "jax._src.tree_util:_registry": "jax.tree_util.register_pytree_node",
    "jax._src.state.types:_registry": "the same",
    "torch.distributed.distributed_c10d:Backend.default_device_backend_map": "gloo serves the device's tensors",
    "torch.jit._builtins:_builtin_table": "torch.ops, for each operator that is named",
    "torch.library:_defs": "torch.library",
    "torch.library:_impls": "torch.library",
    "torch.ops:_dir": "torch.library",
    "torch.serialization:_package_registry": "torch.serialization.register_package",
    **dict.fromkeys(
        (
            "torch.optim.optimizer:_foreach_supported_types",
            "torch.utils._foreach_utils:_foreach_supported_types",
            "torch.distributed.tensor:_optim_foreach_supported_types",
            "torch.distributed.tensor:_util_foreach_supported_types",
        ),
        "optimizers and clipping take lists of the device's tensors at once; the latter two are the same lists",
    ),
}
"""The dictionaries and lists of torch and JAX into which jaten puts entries: why, or by which public function."""

_COMPARED = "Adafactor takes the greater of two numbers: of symbols that is an expression, in Python a comparison"

SHADOWED: dict[str, str] = {f"torch.optim._adafactor:{name}": _COMPARED for name in ("max", "min")}
"""The built-in functions that a module of torch's has its own of while a step is traced, and why."""

OFF: dict[str, str] = {}
"""The rows that this torch or JAX does not allow, and why."""

_replaced: dict[str, Any] = {}


def replace(what: str, make: Callable[[Any], Any]) -> bool:
    """Puts what `make` makes of a function of torch's or JAX's in its place; says whether it did, or had done so.

    Args:
        what: the key of a row of the ledger.
        make: takes the function, of a class or static method the plain one; returns what is called in its place.
    """
    if what in _replaced:
        return True
    row = PATCHES[what]
    owner, name = _owner(what)
    known: Any = _MISSING if owner is None else inspect.getattr_static(owner, name, _MISSING)
    if reason := _refusal(row, known):
        OFF[what] = reason
        _log.warning("%s %s: %s is off (%s)", what, reason, row.test.removeprefix("test_"), row.why)
        return False
    kind = type(known) if isinstance(known, staticmethod | classmethod) else None
    new = make(known if kind is None else known.__func__)
    if kind is None and name == "__new__":
        kind = staticmethod
    setattr(owner, name, new if kind is None else kind(new))
    _replaced[what] = known
    return True


@contextlib.contextmanager
def shadowed(what: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """For the length of a block a module has its own of a built-in function, in all threads.

    One block at a time; where the module has the name already, that stays.

    Args:
        what: a key of `SHADOWED`.
        make: takes the built-in function; returns what is called instead, which does for others what that does.
    """
    module, _, name = what.partition(":")
    known, scope = SHADOWED[what], vars(sys.modules[module])
    if name in scope:
        OFF[what] = "is not a built-in function"
        _log.warning("%s %s: it stays (%s)", what, OFF[what], known)
        yield
        return
    scope[name] = make(getattr(builtins, name))
    try:
        yield
    finally:
        del scope[name]


def is_loaded(what: str) -> bool:
    """Whether the module of a row is imported; one of Dynamo's need not be."""
    return what.partition(":")[0] in sys.modules


_MISSING = object()


def _owner(what: str) -> tuple[Any, str]:
    """The module or class that has the attribute, and its name there; None for one that is not there."""
    module, _, path = what.partition(":")
    owner = sys.modules.get(module)
    *classes, name = path.split(".")
    for cls in classes:
        owner = getattr(owner, cls, None)
    return owner, name


def _parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's parameters, all of which have names; `inspect.signature` takes ten times as long."""
    code = inspect.unwrap(function).__code__
    return tuple(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _refusal(row: Patch, known: Any) -> str:
    """What keeps an attribute from being replaced; empty if nothing does."""
    if known is _MISSING:
        return "is not there"
    if row.takes is not None:
        function = known.__func__ if isinstance(known, staticmethod | classmethod) else known
        found = _parameters(function)
        if found != row.takes:
            return f"takes ({', '.join(found)}), not ({', '.join(row.takes)})"
    return ""
