"""The rooms of the house: the layers of modules of each folder, which say what may import what."""

from __future__ import annotations

# The rooms, low to high, and their layers of modules, low to high; imports only go down, not within a layer.
ROOMS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "program_lines": (),
    "stages": (),
    "schema": (
        "exclusions releases spec",
        "__init__",
    ),
    "supported_versions": (),
    "tracing": (),
    "registry": (
        "active_overrides external_ops handlers parameters",
        "__init__",
    ),
    "xla": (
        "autotune_mode cheap_puts compiler_bugs compiles cpu_client cpu_features disk_store equations jitted malloc"
        " matmul_library matmul_precision platform_branches progress tracebacks x64",
        "traced_constants",
        "compiler_options memory_order onednn",
        "fingerprint",
        "disk_cache",
        "autotune kernel_cache",
        "library_choice",
        "executables",
        "__init__",
    ),
    "masking": (
        "cpu_forms masked_values",
        "masked_run",
        "masked_indices masked_places masked_programs masked_rules",
        "open_program",
        "size_choice",
        "__init__",
    ),
    "interpreter": (
        "primitive_rules",
        "exact_arithmetic flat_equations gathers library_calls moved_elements",
        "exact_reductions",
        "interpreted_program padded_calls",
        "first_calls",
        "__init__",
    ),
    "arrays": (
        "abstract_arrays gpu_memory observers seeds strides uninitialized_values",
        "partitioned placements",
        "bridge stepped_slices",
        "strided_elements",
        "storage_views",
        "attributes local_parts view_ops",
        "carrier",
        "__init__",
    ),
    "kernel_base": (
        "checks division materialize platform promotion",
        "conv_parts derivatives extrema number_ranges prng vjp",
        "__init__",
    ),
    "cpu": (
        "attention_tiles conv_direct conv_fold_full_dims conv_phases conv_taps dot_reductions elementary folding"
        " layouts.values ragged_tiles reductions row_scans slice_writes",
        "exponentials layouts.exchanged_factors",
        "conv_eigen conv_grouped conv_matrix conv_onednn conv_patches conv_rows conv_space_to_depth conv_winograd",
        "conv_volumes",
        "conv_lowerings",
        "conv_choice",
        "conv_primitive",
        "layouts.rules",
        "layouts.steps",
        "layouts.break_chains layouts.folded_sums layouts.joined_parts layouts.joined_products layouts.nan_checks"
        " layouts.short_rows layouts.serialize_lapack layouts.sums_as_products layouts.tile_batches"
        " layouts.tile_gather_scatter",
        "layouts.program",
        "layouts.__init__",
        "__init__",
    ),
    "kernels": (
        "as_strided assertions attention_parts batch_norm_parts bitwise comparison complex_functions control_flow"
        " conversion convolution ctc distance dropout embedding fft flex_attention foreach matrices normalization"
        " optimizers philox polynomials ragged recurrent_parts reduction regions reparameterized views windows",
        "creation decomposition deformable_convolution fake_quantization float_functions im2col indexing"
        " joining ldl matmul padding pooling randomness resampling rnn scan sorting third_party_ops unary"
        " unfolding variance weight_norm",
        "activation arithmetic detection grid_sampler histogram linalg offsets position_sensitive_pooling scaled_matmul"
        " scatter segment_reduce softmax special unique",
        "attention bessel loss matrix_roots norms predicates",
        "sequence_attention",
        "__init__",
    ),
    "meta": (
        "reuse",
        "attention missing normalization overrides result_dtypes scalars vendors",
        "refusals",
        "__init__",
    ),
    "autograd": (
        "attention differentiability formulas function",
        "__init__",
    ),
    "ops": (
        "batched changing_numbers constant_operands default_dtypes described dynamic_slices function_names"
        " memory_layout named_device namespace overlap result_checks symbolic_sizes value_sizes vmap",
        "composite traced_fakes variants",
        "executor",
        "op_call",
        "companions",
        "derivative",
        "define",
        "override_parts override_targets user_ops",
        "called_functions constraint override_rules random_keys",
        "__init__",
    ),
    "device": (
        "guard interrupts placement second_derivatives streams",
        "autograd_engine",
        "torch_jax",
        "privateuse1",
        "autocast",
        "__init__",
    ),
    "tensor": (
        "checkpoint_shards mesh_methods module_scopes operand_values storage subclasses",
        "tensor",
        "in_place_views lazy_parameters moves",
        "__init__",
    ),
    "dispatch": (
        "in_place operands traced_control_flow",
        "list_steps",
        "adam_step functional fused_attention fused_norms higher_order other_layouts partitioned_products"
        " recurrent_layers sgd_step",
        "fused_products",
        "aliasing queries writes",
        "collectives compositions copies factories first_gradients scattered_rows",
        "handler_rules redirects",
        "register",
        "__init__",
    ),
    "hooks": (
        "accelerator constructors default_backend dtensor_draws foreach_types generators graph_cache"
        " higher_order make_fx partition_specs private_names process_groups schemas torchscript version_errors",
        "ledger",
        "compiled_optimizers cpu_dispatch export jax_arguments loop_residuals optimizer_lists override_blocks"
        " recomputed_inputs tensor_guards value_checks",
        "patches",
        "__init__",
    ),
    "backend": (
        "buckets.__init__ buckets.bucket_sizes buckets.padding_proof captured_overrides"
        " device_interface empty_gradients gradients_without_meta layout leaf_gradients lent_inputs nodes"
        " passes.__init__ small_gradients wrapped_inputs",
        "generated_call",
        "buckets.padded_tensors buckets.padding_programs buckets.padding_rules compile_log graph_text keep_whole"
        " saved_views subgraphs view_calls",
        "graph_info small_saved_tensors",
        "passes.concat_gradients passes.conjugate_numbers passes.counted_results passes.expanded_index_scatters"
        " passes.third_party_calls passes.out_of_place_views"
        " passes.new_values passes.output_offsets passes.recompute_gathers passes.recompute_norms"
        " passes.replaced_memory passes.values_before_writes passes.wrapped_results"
        " passes.filled_memory passes.partial_writes passes.random_results passes.view_relations passes.written_inputs"
        " passes.input_tokens passes.input_writes passes.kernel_results passes.loop_numbers passes.placed_gradients"
        " passes.device_strides passes.static_inputs passes.stored_factors passes.traced_ints"
        " passes.unseen_writes aliased_inputs passes.own_memory saved_tensors",
        "passes.data_dependent_splits passes.ordered_effects passes.output_views passes.rename_operators"
        " passes.supported_operators",
        "lowering pipeline serialized_graph",
        "buckets.masked_graph buckets.row_proof executable_cache graph_description nan_search",
        "graph_compilation",
        "executable",
        "buckets.masked_program",
        "buckets.bucketed_graph",
        "split_graph",
        "graph_cache",
        "capture",
        "__init__",
    ),
    "step": (
        "code_names gradient_hooks numbers places random_states torch_memory",
        "early_reads walk",
        "state_capture",
        "drawn_seeds holders running_averages",
        "arguments optimizer_state result_recipes stand_ins",
        "cpu_tensors microbatches replay tensor_changes",
        "accumulation",
        "trace",
        "lowered_step",
        "early_program rehearsal",
        "step_program",
        "compiled",
        "__init__",
    ),
    "torch_functions": (
        "linear_transpose modules recomputed_weights result_trees run_context torch_autograd",
        "leaks",
        "functions symbolic_dims",
        "primitive",
        "__init__",
    ),
    "interop": (),
    "operator_overrides": (),
    "checkpoint_policies": (),
    "layer_scan": (),
    "explanation": (),
    "__init__": (),
    "equinox": (),
    "lightning": (),
    "nnx": (),
    "exporting": (
        "loader open_sizes over_meshes trees",
        "artifact torch_programs",
        "training_steps",
        "programs",
        "__init__",
    ),
    "distributed": (
        "costs meshes packed_attention processes sequence tensors",
        "estimates styles",
        "module_plans",
        "__init__",
    ),
}
