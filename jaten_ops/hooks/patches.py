"""The table of what importing jaten changes of torch and JAX.

`PATCHES` are attributes that jaten replaces itself, `REGISTERED` and `FILLED` what torch's and JAX's own ways to
register things change. A test holds them against the libraries before and after; docs/patches.md is made of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from ..device import autograd_engine
from ..dispatch.higher_order import NAMES, teach
from ..xla import kernel_cache
from . import (
    accelerator,
    compiled_optimizers,
    constructors,
    cpu_dispatch,
    default_backend,
    dtensor_draws,
    export,
    foreach_types,
    generators,
    graph_cache,
    higher_order,
    jax_arguments,
    ledger,
    loop_residuals,
    make_fx,
    optimizer_lists,
    override_blocks,
    partition_specs,
    process_groups,
    recomputed_inputs,
    schemas,
    tensor_guards,
    torchscript,
    value_checks,
    version_errors,
)
from .ledger import Patch

_MOVES = tuple(f"torch.nn.modules.module:Module.{name}" for name in ("to", "cpu", "jax"))
_NO_BACKEND = "torch's error: no backend of the group serves the device; one made of 'cpu:gloo,jax:gloo' has one"
_ACCELERATOR = (
    "torch would report the device in the PrivateUse1 slot as the process's accelerator, and programs that ask for one"
    " would move to it"
)
_CHOSEN = "programs that ask torch for an accelerator move to the device"
_CONSTRUCTOR = "torch's constructor cannot create such an object on a device written in Python"
_HIGHER_ORDER = "cond, scan, map and flex_attention would look at operands' memory, which on the device is not torch's"


def _rows(whats: Iterable[str], make: Any, why: str, test: str, **options: Any) -> list[Patch]:
    """Several attributes with one replacement, for one reason."""
    return [Patch(what, make, why, test, **options) for what in whats]


_DEVICE = [
    Patch("torch._C:_accelerator_getAccelerator", accelerator.kept, _ACCELERATOR, "test_plain_programs", loss=_CHOSEN),
    Patch("torch._C:_get_accelerator", accelerator.kept_or_cpu, _ACCELERATOR, "test_plain_programs", loss=_CHOSEN),
    Patch(
        "torch._C:_accelerator_isAllocatorInitialized",
        accelerator.has_allocator,
        "torch.accelerator.empty_cache and the resets of statistics would ask C++ for an allocator of the device",
        "device/test_device",
        loss="torch.accelerator.empty_cache and its like raise torch's internal error",
    ),
    Patch(
        "torch.accelerator:empty_host_cache",
        accelerator.empty_host_cache,
        "C++ would look for the device's host allocator and end the process",
        "device/test_device",
        takes="",
        is_use=version_errors.always,
    ),
    *_rows(
        ("torch.accelerator:memory_stats", "torch.accelerator.memory:memory_stats"),
        accelerator.memory_stats,
        "C++ has no memory statistics for a device written in Python",
        "device/test_device",
        takes="device_index",
        is_use=version_errors.always,
    ),
    Patch(
        "torch.accelerator:get_memory_info",
        accelerator.get_memory_info,
        "C++ has no memory statistics for a device written in Python",
        "device/test_device",
        takes="device_index",
        is_use=version_errors.always,
    ),
    Patch(
        "torch.accelerator:synchronize",
        accelerator.synchronize,
        "C++ cannot wait for a device written in Python",
        "device/test_device",
        takes="device",
        is_use=version_errors.always,
    ),
    Patch(
        "torch.autograd.variable:Variable._execution_engine",
        lambda _: autograd_engine.Engine(),
        "torch's engine has no thread for a device added after the first backward pass, and ends the process on an"
        " exception in a pass on the device",
        "device/test_autograd_engine",
        used_by=("torch.autograd:backward", "torch.autograd:grad"),
        is_use=version_errors.reaches_device,
    ),
    Patch(
        "torch:Generator",
        lambda _: generators.Generator,
        "C++ cannot create a generator for a device written in Python",
        "hooks/test_generators",
    ),
    *_rows(
        ("torch:to_dlpack", "torch.utils.dlpack:to_dlpack"),
        constructors.to_dlpack,
        "C++ would find no memory in a tensor of the device",
        "tensor/test_tensor",
    ),
    Patch(
        "torch.utils:swap_tensors",
        constructors.swap_tensors,
        "`module.to` also moves parameters that are in graphs, have hooks or are uninitialized, which torch's refuses",
        "device/test_moving_modules",
        takes="t1 t2",
        used_by=_MOVES,
    ),
    Patch(
        "torch:Tensor.as_subclass",
        constructors.as_subclass,
        "libraries give what they compute on the CPU the class of a tensor on the device: it would have no values",
        "tensor/test_subclasses",
        loss="operators on such a tensor raise an error",
    ),
    Patch(
        "torch.nn.parameter:Parameter.__new__",
        constructors.parameter,
        "a user's subclass of Parameter also makes objects of its own class on the device",
        "tensor/test_subclasses",
        takes="cls data requires_grad",
        is_use=version_errors.for_a_subclass,
    ),
    Patch(
        "torch.nn.parameter:UninitializedParameter.__new__",
        constructors.lazy,
        _CONSTRUCTOR,
        "device/test_moving_modules",
        takes="cls requires_grad device dtype",
    ),
    Patch(
        "torch.nn.parameter:UninitializedBuffer.__new__",
        constructors.lazy,
        _CONSTRUCTOR,
        "device/test_moving_modules",
        takes="cls requires_grad device dtype persistent",
    ),
    Patch("torch.storage:UntypedStorage.__new__", constructors.storage, _CONSTRUCTOR, "tensor/test_storage"),
    *_rows(
        ("torch.optim.optimizer:_foreach_supported_types", "torch.utils._foreach_utils:_foreach_supported_types"),
        foreach_types.add_tensor,
        "optimizers and gradient clipping process lists of the device's tensors at once",
        "dispatch/test_in_place",
        adds_to=list,
        loss="optimizers and clipping process the tensors one by one",
    ),
    *(*optimizer_lists.ROWS, *value_checks.ROWS),
    Patch(
        "torch.distributed.distributed_c10d:Backend.default_device_backend_map",
        process_groups.add_default,
        "gloo serves tensors of the device",
        "dispatch/test_collectives",
        adds_to=dict,
        optional=True,
        loss=_NO_BACKEND,
    ),
    Patch(
        "torch.distributed.distributed_c10d:Backend.backend_capability",
        process_groups.add_capability,
        "gloo serves tensors of the device in groups that name it",
        "dispatch/test_collectives",
        adds_to=dict,
        optional=True,
        loss=_NO_BACKEND,
    ),
    Patch(
        "torch.distributed.distributed_c10d:BackendConfig.__init__",
        process_groups.default_backend,
        "gloo serves tensors of the device in groups without a named backend",
        "dispatch/test_collectives",
        takes="self backend",
        optional=True,
        loss=_NO_BACKEND,
    ),
    Patch(
        "torch.distributed.tensor._random:OffsetBasedRNGTracker._distribute_region",
        dtensor_draws.of_parts,
        "random operators on DTensors would move a state that generators of the CPU do not have",
        "distributed/test_ranks",
        takes="self spec generator",
        when="first random DTensor",
        optional=True,
        is_use=version_errors.always,
    ),
]

_PROGRAMS = [
    *_rows(
        ("torch._C:_get_schema", "torch._C:_dispatch_find_schema_or_throw"),
        schemas.found_by_name,
        "operators of jaten are defined when they are first named, and look-ups in C++ do not ask torch.ops",
        "hooks/test_torchscript",
        for_device=False,
        loss="torch's error for an operator that has not been named in Python before",
    ),
    Patch(
        "torch._subclasses.fake_tensor:FakeTensorMode.may_turn_const",
        export.out_of_constants,
        "`torch.tensor(2.0).to(device)` must be a node of a graph, not a constant",
        "test_tracing",
        takes="self t",
        used_by=("torch.export:export", "torch.fx.experimental.proxy_tensor:_MakefxTracer.trace"),
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:ProxyTorchDispatchMode.__torch_dispatch__",
        make_fx.recording,
        "`make_fx` would leave operators on the device out of its graph",
        "hooks/test_make_fx",
        takes="self func types args kwargs",
        used_by=("torch.fx.experimental.proxy_tensor:_MakefxTracer.trace",),
    ),
    Patch(
        "torch.jit._script:ScriptModule._apply",
        torchscript.with_slots,
        "C++ keeps a scripted module's tensors, and must get those that have moved",
        "hooks/test_torchscript",
        takes="self fn recurse",
        used_by=_MOVES,
        is_use=version_errors.scripted,
    ),
    *_rows(
        (
            f"torch.jit._script:{cls}.{name}"  # to the former torch has copied the latter's methods
            for cls in ("ScriptModule", "RecursiveScriptModule")
            for name in ("save", "save_to_buffer")
        ),
        torchscript.saved_from_cpu,
        "C++ would save storages that have no bytes on the device",
        "hooks/test_torchscript",
    ),
    Patch(
        "torch.jit:load",
        torchscript.loaded_and_moved,
        "C++ cannot load tensors onto the device, nor programs with operators that nobody has named",
        "hooks/test_torchscript",
        takes="f map_location _extra_files _restore_shapes",
    ),
    Patch(
        "torch.nn.utils.parametrize:register_parametrization",
        export.of_others,
        "`run_decompositions` must not take the device's parameters apart",
        "hooks/test_export",
        takes="module tensor_name parametrization unsafe",
        used_by=("torch.export:ExportedProgram.run_decompositions",),
    ),
    Patch(
        "torch.export.exported_program:ExportedProgram.run_decompositions",
        export.for_tensors,
        "exported programs take all tensors for row-major, which inputs need not be",
        "hooks/test_export",
        takes="self decomp_table decompose_custom_triton_ops",
    ),
    Patch(
        "torch:_TorchCompileInductorWrapper.__call__",
        default_backend.if_on_cpu,
        "torch.compile without a backend would call Inductor, which has no code for the device",
        "hooks/test_default_backend",
        takes="self model_ inputs_ config_patches",
    ),
    loop_residuals.ROW,
    *(*jax_arguments.ROWS, *recomputed_inputs.ROWS),
    override_blocks.ROW,
    tensor_guards.ROW,
    compiled_optimizers.ROW,
    *export.ROWS,
]

_IN_CAPTURES = [
    Patch(
        f"torch._dynamo.variables.{what}", make, why, "hooks/test_partition_specs",
        takes=takes, loss=loss, when="Dynamo", optional=True,
    ) for what, make, why, takes, loss in (
        (
            "user_defined:UserDefinedClassVariable.call_function", partition_specs.made_in_captures,
            "Dynamo cannot trace the constructor of `jax.sharding.PartitionSpec`, which is C++", "self tx args kwargs",
            "Dynamo's error for a PartitionSpec in a captured function: make it outside",
        ),
        (
            "tensor:TensorVariable.call_method", partition_specs.redistributes,
            "Dynamo would record `redistribute` as a node, whose arguments cannot be a mesh and placements",
            "self tx name args kwargs", "Dynamo's error for `redistribute` in a captured function: use `constrain`",
        ),
    )
]  # fmt: skip

_STORAGES = Patch(
    "torch._dynamo.variables.higher_order_ops:get_tensor_storages",
    higher_order.storages,
    _HIGHER_ORDER,
    "dispatch/test_higher_order",
    takes="tensor",
    when="Dynamo",
    optional=True,
    used_by=("torch:cond",),
)
_FLEX = ("torch.nn.attention.flex_attention:flex_attention",)
_OF_FLEX = [
    Patch(f"torch.nn.attention.flex_attention:{name}", make, why, test, takes=takes, used_by=_FLEX, optional=True)
    for name, make, takes, why, test in (
        ("setup_compilation_env", higher_order.environment_with(lambda: None), "", _HIGHER_ORDER,
         "dispatch/test_higher_order"),
        ("_validate_device", higher_order.device_check, "query key value", "flex_attention would refuse the device",
         "kernels/test_flex_attention"),
    )
]  # fmt: skip
_OPERATORS_ON_FUNCTIONS = [
    *(
        Patch(
            f"torch.ops:higher_order.{name}.python_key_table", functools.partial(teach, name),
            "what runs an operator on functions takes no tensors of a subclass", "dispatch/test_higher_order",
            adds_to=dict, loss="torch's error: the operator has no rule for tensors of the device",
        )
        for name in NAMES
    ),
    Patch(
        "torch._higher_order_ops.utils:setup_compilation_env",
        higher_order.environment_with(lambda: ledger.install_rows([_STORAGES], "Dynamo", has_device=True)),
        _HIGHER_ORDER, "dispatch/test_higher_order", takes="", used_by=("torch:cond",),
    ),
    *_rows(
        (f"torch._higher_order_ops.{module}:_from_fun" for module in ("utils", "map", "invoke_subgraph")),
        higher_order.example, _HIGHER_ORDER, "dispatch/test_higher_order", takes="t", used_by=("torch:cond",),
    ),
    Patch(
        "torch._higher_order_ops.utils:_collect_fake_inputs", higher_order.operand_values, _HIGHER_ORDER,
        "dispatch/test_higher_order", takes="inputs", used_by=("torch:cond",),
    ),
    *_OF_FLEX,
    Patch(
        "torch.nn.attention._utils:_validate_sdpa_input",
        higher_order.operand_check_with(lambda: ledger.install_rows(_OF_FLEX, "import", has_device=True)),
        "flex_attention would refuse the device", "kernels/test_flex_attention",
        takes="query key value attn_mask dropout_p is_causal scale allow_lowp_kv",
    ),
    _STORAGES,
]  # fmt: skip

_CACHES = [
    *(
        Patch(
            what, make, "AOTAutograd's graphs are kept in jaten's folder, under keys that include its kernels",
            "backend/test_warm_start", takes=takes, when="first compile", for_device=False,
            loss="graphs are captured anew in each process",
        )
        for what, make, takes in (
            (
                "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.iterate_over_candidates",
                graph_cache.finding, "cls local remote_cache key",
            ),
            (
                "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache._write_to_local_cache",
                graph_cache.writing, "key content",
            ),
            ("torch._inductor.codecache:FxGraphHashDetails.__init__", graph_cache.describing, None),
        )
    ),
    Patch(
        "jax._src.compiler:backend_compile_and_load", kernel_cache.watched,
        "JAX would compile single kernels anew in each process, without jaten's compiler options",
        "xla/test_kernel_cache",
        takes="backend module executable_devices options host_callbacks", for_device=False,
        loss="single kernels are compiled anew in each process, without jaten's compiler options",
    ),
]  # fmt: skip

PATCHES: dict[str, Patch] = {
    row.what: row
    for row in (*_DEVICE, *_PROGRAMS, *_IN_CAPTURES, *_OPERATORS_ON_FUNCTIONS, *_CACHES, *cpu_dispatch.ROWS)
}

_SLOT = "torch names any device of its PrivateUse1 slot so: torch.utils.rename_privateuse1_backend"
_METHODS = "torch gives any device of its PrivateUse1 slot these: generate_methods_for_privateuse1_backend"

REGISTERED: dict[str, str] = {
    "torch:jax": "the module of the device: torch._register_device_module",
    "torch.ops:jaten": "the operators: torch.library",
    "torch.ops:jaten_call": "the operator that calls JAX functions: torch.library",
    "torch.ops:jaten_distributed": "the operator that places values over a mesh: torch.library",
    "torch.ops:jaten_nn": "operators of the device's own: torch.library",
    "torch.ops:jaten_random": "the operator that draws PRNG keys: torch.library",
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
"""The attributes that torch's own ways to register a device and operators change, and which way it is."""

_PRIMITIVES = "a JAX primitive of jaten's own and its rules, by the tables that jax.extend and jax.interpreters give"

_RULES = "ad:primitive_jvps", "ad:primitive_transposes", "batching:fancy_primitive_batchers", "mlir:_lowerings"

FILLED: dict[str, str] = {
    **{f"{package}.interpreters.{name}": _PRIMITIVES for package in ("jax", "jax._src") for name in _RULES},
    "jax._src.interpreters.ad:fancy_transposes": _PRIMITIVES,
    "jax._src.interpreters.partial_eval:custom_staging_rules": "a JAX primitive of jaten's own and its rule",
    "jax._src.tree_util:_registry": "jax.tree_util.register_pytree_node",
    "jax._src.state.types:_registry": "jax.tree_util.register_pytree_node",
    "torch.ops:higher_order.print.py_kernels": "py_impl of the operator",
    "torch.jit._builtins:_builtin_table": "torch.ops, for each operator that is named",
    **dict.fromkeys(("torch.library:_defs", "torch.library:_impls", "torch.ops:_dir"), "torch.library"),
    "torch.serialization:_package_registry": "torch.serialization.register_package",
    **dict.fromkeys(
        (
            "torch.distributed.tensor:_optim_foreach_supported_types",
            "torch.distributed.tensor:_util_foreach_supported_types",
        ),
        "the lists of the optimizers and of clipping, by other names",
    ),
}
"""The dictionaries and lists of torch and JAX that their own ways to register things fill, and which way it is."""

_COMPARED = "Adafactor takes the greater of two numbers: of symbols that is an expression, in Python a comparison"

SHADOWED: dict[str, str] = {f"torch.optim._adafactor:{name}": _COMPARED for name in ("max", "min")}
"""The built-in functions that a module of torch's has its own of while a step is traced, and why."""
