"""The table of private names of torch and JAX that jaten calls, and what public thing is missing for each.

A row stands for a name and all below it: "torch._C.DispatchKey" for "torch._C.DispatchKey.CPU", too. A test finds the
names in the source and compares; another one names those that an installed torch or JAX no longer has. Both, and the
files in which each is used, come from tools/private_names.py. docs/patches.md is made of this. The package itself does
not import it.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    "Operators as objects: torch.ops gives them, and nothing public has their classes.": (
        "torch._ops.HigherOrderOperator", "torch._ops.OpOverload", "torch._ops.OpOverloadPacket",
        "torch._ops.OperatorBase",
    ),
    "Operators that are defined when they are named, overloads in ATen's order: torch.library does neither.": (
        "torch._ops._OpNamespace", "torch._C._jit_get_operation",
    ),
    "Schemas are read as torch reads them; torch.library parses one only to define an operator.": (
        "torch._C.parse_schema",
    ),
    "What is registered for an operator: torch.library registers, and answers for one key at most.": (
        "torch._C._dispatch_get_all_op_names", "torch._C._dispatch_has_kernel_for_dispatch_key",
        "torch._library.simple_registry.singleton.find",
    ),
    "Dispatch keys of a thread: torch.library takes names of keys, and switches none off or on for a call.": (
        "torch._C.DispatchKey", "torch._C.DispatchKeySet", "torch._C._AutoDispatchBelowAutograd",
        "torch._C._ExcludeDispatchKeyGuard", "torch._C._ForceDispatchKeyGuard", "torch._C._dispatch_key_parse",
        "torch._C._dispatch_tls_is_dispatch_key_excluded", "torch._C._dispatch_tls_local_exclude_set",
        "torch._C._dispatch_tls_local_include_set", "torch._C._dispatch_tls_set_dispatch_key_excluded",
    ),
    "The modules that run and the nodes of autograd, for names in profiles: there are no public names of either.": (
        "torch._C._autograd._get_sequence_nr", "torch._C._current_autograd_node",
        "torch.autograd.graph._engine_run_backward.__code__", "torch.nn.Module._call_impl.__code__",
    ),
    "What is called for saved tensors in this thread: torch.autograd.graph sets that, and does not tell.": (
        "torch._C._autograd._top_saved_tensors_default_hooks", "torch.utils.checkpoint._StopRecomputationError",
    ),
    "Whether torch.profiler records, at no cost: the public names that tell are of backends.": (
        "torch.autograd.profiler._is_profiler_enabled",
    ),
    "Sizes that torch leaves open while it captures a program: torch.export is public, for programs on the CPU.": (
        "torch._dispatch.python.enable_python_dispatcher",
    ),
    "Tensors of a subclass without memory, and calls that bypass their class: both are documented as private names.": (
        "torch.Tensor._make_subclass", "torch.Tensor._make_wrapper_subclass", "torch._C.DisableTorchFunction",
        "torch._C.DisableTorchFunctionSubclass", "torch._C._disabled_torch_function_impl",
        "torch.utils._python_dispatch.TorchDispatchMode",
    ),
    "The device in torch's PrivateUse1 slot: in public it is to be had from C++ alone.": (
        "torch.utils.backend_registration._setup_privateuseone_for_python_backend", "torch._C._acc",
        "torch._C._autograd.DeviceType.PrivateUse1", "torch._C._get_privateuse1_backend_name", "torch._C.Generator",
    ),
    "The hook of torch.export for a buffer that is assigned: it takes no subclass of a tensor.": (
        "torch.nn.modules.module._global_buffer_registration_hooks",
    ),
    "Objects that get another tensor of C++: torch.utils.swap_tensors refuses those in a graph.": (
        "torch._C._swap_tensor_impl",
    ),
    "Memory that is shared with JAX: the public from_dlpack takes seven times as long for a small tensor.": (
        "torch._C._from_dlpack", "torch._C._to_dlpack", "jaxlib._jax.buffer_to_dlpack_managed_tensor",
        "jaxlib._jax.dlpack_managed_tensor_to_buffer",
    ),
    "What an executable keeps of the call stack: nothing public limits it, and a program that it keeps keeps it.": (
        "jaxlib._jax.TracebackScope",
    ),
    "Many tensors written to at once: a loop over `copy_` takes three times as long for small ones.": (
        "torch._foreach_copy_",
    ),
    "Pickles that torch's own tensors have: its `__reduce_ex__` knows no other class's storage.": (
        "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state", "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3", "torch.storage._new_dtypes",
    ),
    "Backward passes run in the thread that calls them: nothing public reads the setting that is put back after it.": (
        "torch._C._is_multithreading_enabled", "torch._C._set_multithreading_enabled",
    ),
    "Gradient modes and levels within an operator: the public functions check them anew and enter context managers.": (
        "torch._C._is_fwd_grad_enabled", "torch._C._set_grad_enabled", "torch._VF._unpack_dual",
        "torch.autograd.forward_ad._current_level", "torch.autograd.forward_ad._set_fwd_grad_enabled",
    ),
    "Inference mode in a graph of Dynamo: these two are what it records, and no context manager is in the graph.": (
        "torch.autograd.grad_mode._enter_inference_mode", "torch.autograd.grad_mode._exit_inference_mode",
    ),
    "Transforms of torch.func: nothing public tells whether one is on, its level, or what a tensor wraps.": (
        "torch._C._DisableFuncTorch", "torch._C._are_functorch_transforms_active", "torch._C._functorch",
        "torch._add_batch_dim", "torch._is_functional_tensor", "torch._remove_batch_dim",
        "torch._functorch.autograd_function.enable_single_level_autograd_function", "torch._functorch.pyfunctorch",
        "torch.autograd.Function._compiled_autograd_key", "torch.autograd.function._SingleLevelFunction",
    ),
    "ATen's checks of overlapping memory, views of negated values, and tensors that are conjugates: without a public"
    " name.": (
        "torch._C._set_conj", "torch._debug_has_internal_overlap", "torch._neg_view",
    ),
    "Modes and tensors by which torch captures a program: public are they only within torch.compile.": (
        "torch._C._TorchDispatchModeKey", "torch._C._get_dispatch_mode", "torch._C._len_torch_dispatch_stack",
        "torch._guards.detect_fake_mode",
        "torch._subclasses.FakeTensor", "torch._subclasses.fake_tensor", "torch._subclasses.functional_tensor",
        "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
        "torch.utils._python_dispatch._disable_current_modes",
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    ),
    "Programs that are compiled anew once something else than their arguments changes: torch.compile has no guards of a"
    " backend's, and functions are forgotten all at once by torch.compiler.reset.": (
        "torch._dynamo.guards.install_guard", "torch._dynamo.source.GlobalStateSource",
        "torch._dynamo.symbolic_convert.InstructionTranslator", "torch._guards.Guard",
    ),
    "Context managers that were made outside of a captured function: Dynamo lets nobody say that it may trace one.": (
        "torch._dynamo.variables.ctx_manager",
    ),
    "An operator's kernel at a dispatch key, called with numbers for tensors: torch.library.get_kernel takes none.": (
        "torch._ops.resolve_key",
    ),
    "torch.jit.trace: what is public takes ten times as long, and cannot be switched off for a block.": (
        "torch._C._get_tracing_state", "torch._C._is_tracing", "torch._C._set_tracing_state",
    ),
    "Code that Dynamo is not to look into: torch.compiler.disable imports Dynamo, and takes a microsecond a call.": (
        "torch._C._dynamo.eval_frame", "torch._dynamo.disable", "torch.compiler._is_compiling_flag",
    ),
    "Whether distributions validate arguments by default: torch has a function that sets it, and none that asks.": (
        "torch.distributions.Distribution._validate_args",
    ),
    "torch.compile: a backend gets Dynamo's graph in public, and AOTAutograd, its partitioner and tables privately.": (
        "torch._decomp.core_aten_decompositions", "torch._decomp.decomposition_table",
        "torch._dynamo.backends.common.aot_autograd", "torch._dynamo.exc.TorchDynamoException",
        "torch._dynamo.OptimizedModule", "torch._dynamo.lookup_backend",
        "torch._dynamo.source.AttrSource", "torch._dynamo.utils.counters",
        "torch._functorch._aot_autograd.schemas.OutputType", "torch._functorch._aot_autograd.schemas.PlainTensorMeta",
        "torch._functorch.aot_autograd.aot_module_simplified",
        "torch._functorch.config", "torch._functorch.partitioners.min_cut_rematerialization_partition",
        "torch._guards.CompileContext", "torch._guards.TracingContext",
    ),
    "Lists of tensors: the operators that torch's optimizers call on them have no public name.": (
        "torch._foreach_add_",
    ),
    "Captured graphs that are kept for the next process: AOTAutograd's cache is for Inductor.": (
        "torch._functorch._aot_autograd.autograd_cache.BypassAOTAutogradCache",
        "torch._functorch.aot_autograd.SerializableAOTDispatchCompiler", "torch._inductor.output_code.OutputCode",
    ),
    "Objects of JAX's that a captured function makes: Dynamo lets classes of torch alone be registered as constants.": (
        "torch._dynamo.allow_c_slot", "torch._dynamo.source.GlobalSource",
        "torch._dynamo.variables.base.VariableTracker",
    ),
    "Dynamo's questions about a device: its interface of devices is in no public module.": (
        "torch._dynamo.device_interface",
    ),
    "Operators on functions, as torch.cond: a tensor of a subclass cannot be registered with them in public.": (
        "torch._higher_order_ops.utils", "torch.nn.attention._utils",
    ),
    "Loops with a carry: torch.scan is not public yet, nor how its function is split into two passes.": (
        "torch._higher_order_ops.partitioner", "torch._higher_order_ops.scan",
    ),
    "A module with other parameters for one call of its forward: torch.func.functional_call calls the hooks, too.": (
        "torch.nn.utils.stateless._reparametrize_module",
    ),
    "Hooks of all modules and optimizers: they can be added in public, but not asked for.": (
        "torch.nn.modules.module._global_backward_hooks", "torch.nn.modules.module._global_backward_pre_hooks",
        "torch.nn.modules.module._global_forward_hooks", "torch.nn.modules.module._global_forward_pre_hooks",
        "torch.optim.optimizer._global_optimizer_post_hooks", "torch.optim.optimizer._global_optimizer_pre_hooks",
    ),
    "Pending receives: a future becomes a `Work` of torch.distributed in C++ alone.": ("torch._C._distributed_c10d",),
    "Trees of arguments: torch has no public functions for them.": (
        "torch.utils._pytree",
    ),
    "The keys of kernels that are kept: they are those of JAX's own cache of compiled programs.": (
        "jax._src.compilation_cache", "jax._src.compiler",
    ),
    "Executables that are cleared: with JAX 0.12 `clear_cache` leaves those of functions that keep unused arguments.": (
        "jax._src.interpreters.pxla",
    ),
    "An equation that JAX records without its cache of types, which would keep torch modules: primitives have no public"
    " rule for that.": (
        "jax._src.interpreters.partial_eval",
    ),
    "64-bit dtypes in kernels alone: jax.enable_x64 takes five times as long.": (
        "jax._src.config.ExplicitX64Mode", "jax._src.config.enable_x64", "jax._src.config.explicit_x64_dtypes",
    ),
    "Weakly typed arrays: nothing public makes one of another array.": (
        "jax._src.lax.lax._convert_element_type",
    ),
    "jax_debug_nans and jax_disable_jit: what the former raises in an executable has no public name, and what is public"
    " takes longer to ask.": (
        "jax._src.api_util.InternalFloatingPointError", "jax._src.config.debug_nans", "jax._src.config.disable_jit",
    ),
    "Whether JAX has started: all that is public starts it.": ("jax._src.xla_bridge",),
    "Symbolic sizes: jax.errors has the class of a question without an answer from JAX 0.10.1 on.": ("jax._src.core",),
}  # fmt: skip
"""Private names that are called, each with the public function that is missing."""

NAMES: dict[str, str] = {name: why for why, names in GROUPS.items() for name in names}
"""The reason of each row."""

ATTRIBUTES: dict[str, str] = {
    "_accelerator_connector": "the part of Lightning's Trainer that chooses devices",
    "_backward_cls": "the class of the nodes of an autograd.Function, which have its name",
    "_buffers": "a module's buffers with what is None among them, which `named_buffers` leaves out",
    "_c": "the C++ object of a scripted module, whose slots hold its tensors",
    "_can_decompose": "whether torch composes an operator of others: torch.export keeps some of these",
    "_cdata": "the address of the C++ object of a storage or a tensor: which tensors share one",
    "_compute_rng_offsets": "where the parts of a random DTensor begin",
    "_concrete_type": "the attributes of a scripted module, lists of tensors among them",
    "_destroy": "the end of the registrations of a torch.library.Library",
    "_dispatch_cache": "the kernels that an operator has looked up in Python, when one is added",
    "_evaluate": "the value of a symbolic dimension of JAX's for values of its variables",
    "_executable": "the executable of a compiled program of JAX, without the checks of each call",
    "_forward_cls": "the autograd.Function of a node, of which nothing public tells",
    "_forward_pre_hooks": "a module's hooks, by which weight norms and pruning compute weights anew in each call",
    "_get_vars": "the variables of a symbolic dimension of JAX's",
    "_init_flat_weights": "the weights of a recurrent layer as its next call collects them",
    "_lowering": "the constants of a compiled program of JAX",
    "_op_dk": "an operator's kernel of one dispatch key, which torch.library does not call",
    "_parallel_devices": "the devices that it has chosen, of which no public name tells before the run",
    "_qualified_op_name": "the name of a packet of overloads",
    "_registration_handles": "the registrations of a torch.library.Library, which are kept as long as it is",
    "_schema": "the schema of an operator, which is public in C++ alone",
    "_sequence_nr": "the number of a node of autograd, which tells after which operators it was recorded",
}
"""Private attributes of objects of torch, JAX and Lightning that are read, and what they are."""
