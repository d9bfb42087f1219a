"""jaten: every ATen operator as a `torch.library` custom op whose body is a JAX kernel.

    torch.compile(model, backend="jaten")    a model as XLA executables, forward and backward
    model.to("jax")                          parameters that hold jax.Arrays, on a device of torch
    torch.ops.jaten.<name>.<overload>        one operator, computed by XLA

compile_step       a whole training step as one executable
as_jax, call_jax   a torch function in a JAX program, a JAX function in a torch program
from_jax, to_jax   arrays as tensors, tensors as arrays
op, kernel         operators whose kernels you write in JAX; with `fake` and `gradient`
override           another kernel or gradient for an operator that exists
export             a program that runs without torch
explain            the executables of a compiled function
scan_layers, checkpoint_policy   compile time and memory of deep models
distributed        models over many devices, of one process or several
nnx, equinox       torch modules as modules of flax.nnx and of Equinox
lightning          the accelerator "jax" of Lightning's Trainer

`help` of a name has its arguments, errors and an example. `jaten_ops.stages` says which names are stable.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from . import hooks, supported_versions, torch_functions
from .checkpoint_policies import checkpoint_policy
from .device import autocast  # noqa: F401  # registers what the device does
from .dispatch import register  # noqa: F401  # register what the device does
from .errors import (
    DeviceSlotError,
    DuplicateRegistrationError,
    GradientRegistrationError,
    InvalidSchemaError,
    JatenError,
    KernelError,
    KernelResultError,
    MissingGradientError,
    MissingKernelError,
    MissingValuesError,
    OverrideTargetError,
    UnknownOpError,
    UnsupportedInputError,
    UnsupportedVersionError,
)
from .explanation import explain
from .interop import as_jax, call_jax, from_jax, to_jax
from .layer_scan import scan_layers
from .operator_overrides import Override, override
from .ops import constraint, random_keys  # noqa: F401  # register their operators
from .ops.user_ops import op
from .registry import fake, kernel
from .registry import gradient_of_users as gradient
from .step import compile_step
from .tensor.tensor import Tensor

__all__ = [
    "DeviceSlotError",
    "DuplicateRegistrationError",
    "GradientRegistrationError",
    "InvalidSchemaError",
    "JatenError",
    "KernelError",
    "KernelResultError",
    "MissingGradientError",
    "MissingKernelError",
    "MissingValuesError",
    "Override",
    "OverrideTargetError",
    "Tensor",
    "UnknownOpError",
    "UnsupportedInputError",
    "UnsupportedVersionError",
    "as_jax",
    "call_jax",
    "checkpoint_policy",
    "compile_step",
    "explain",
    "export",
    "fake",
    "from_jax",
    "gradient",
    "kernel",
    "op",
    "override",
    "scan_layers",
    "to_jax",
]

_LATE = {"export": "exporting"}
"""The modules of names that are imported when they are used, since they take a second of an import: torch.export."""

_MODULES = ("distributed", "equinox", "lightning", "nnx", "stages")
"""Public modules that are imported when they are used: they take time, or a library that need not be installed."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name == "__version__":
        return importlib.metadata.version("jaten-ops")
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"])


supported_versions.warn()
torch_functions.take_symbolic_dims_by(
    lambda *args: importlib.import_module(".torch_functions.symbolic_dims", __name__).call_open(*args)
)
hooks.install()
