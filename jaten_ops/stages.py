"""The stage of each public name: how much of it may change in the next release."""

from __future__ import annotations

STABLE = "stable"
"""A change that breaks programs comes only with a new minor version (0.2, 0.3), and CHANGELOG.md says what to write
instead."""

EXPERIMENTAL = "experimental"
"""Tested like everything else, but arguments and results may change with any release."""

STAGES: dict[str, str] = {
    "jaten_ops.Tensor": STABLE,
    "jaten_ops.as_jax": STABLE,
    "jaten_ops.call_jax": STABLE,
    "jaten_ops.compile_step": STABLE,
    "jaten_ops.explain": STABLE,
    "jaten_ops.fake": STABLE,
    "jaten_ops.from_jax": STABLE,
    "jaten_ops.gradient": STABLE,
    "jaten_ops.kernel": STABLE,
    "jaten_ops.op": STABLE,
    "jaten_ops.to_jax": STABLE,
    "jaten_ops.Override": EXPERIMENTAL,
    "jaten_ops.checkpoint_policy": EXPERIMENTAL,
    "jaten_ops.export": EXPERIMENTAL,
    "jaten_ops.override": EXPERIMENTAL,
    "jaten_ops.scan_layers": EXPERIMENTAL,
    # modules that need another library
    "jaten_ops.equinox.TorchModule": EXPERIMENTAL,
    "jaten_ops.lightning.JaxAccelerator": EXPERIMENTAL,
    "jaten_ops.nnx.TorchModule": EXPERIMENTAL,
    # exceptions: their classes and base classes, not the words of their messages
    "jaten_ops.DeviceSlotError": STABLE,
    "jaten_ops.DuplicateRegistrationError": STABLE,
    "jaten_ops.GradientRegistrationError": STABLE,
    "jaten_ops.InvalidSchemaError": STABLE,
    "jaten_ops.JatenError": STABLE,
    "jaten_ops.KernelError": STABLE,
    "jaten_ops.KernelResultError": STABLE,
    "jaten_ops.MissingGradientError": STABLE,
    "jaten_ops.MissingKernelError": STABLE,
    "jaten_ops.MissingValuesError": EXPERIMENTAL,
    "jaten_ops.OverrideTargetError": EXPERIMENTAL,
    "jaten_ops.UnknownOpError": STABLE,
    "jaten_ops.UnsupportedInputError": STABLE,
    "jaten_ops.UnsupportedVersionError": STABLE,
    # the backend of torch.compile, and its options
    "jaten_ops.backend.jaten": STABLE,
    "options['autotune']": EXPERIMENTAL,
    "options['buckets']": EXPERIMENTAL,
    "options['overrides']": EXPERIMENTAL,
    # many devices
    "jaten_ops.distributed.Estimate": EXPERIMENTAL,
    "jaten_ops.distributed.Traffic": EXPERIMENTAL,
    "jaten_ops.distributed.collectives": EXPERIMENTAL,
    "jaten_ops.distributed.constrain": EXPERIMENTAL,
    "jaten_ops.distributed.context_parallel_attention": EXPERIMENTAL,
    "jaten_ops.distributed.distribute_batch": EXPERIMENTAL,
    "jaten_ops.distributed.distribute_tensor": EXPERIMENTAL,
    "jaten_ops.distributed.estimate": EXPERIMENTAL,
    "jaten_ops.distributed.fully_shard": EXPERIMENTAL,
    "jaten_ops.distributed.initialize": EXPERIMENTAL,
    "jaten_ops.distributed.make_mesh": EXPERIMENTAL,
    "jaten_ops.distributed.parallelize_module": EXPERIMENTAL,
}
"""The stage of each public name, by its dotted name."""
