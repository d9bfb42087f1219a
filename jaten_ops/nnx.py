"""Torch modules as modules of `flax.nnx`. Needs flax, of the extra `nnx`."""

from __future__ import annotations

from typing import Any

import jax
import torch

from .interop import function_of_arrays
from .torch_functions import arrays_of, of_module

try:
    from flax import nnx
except ImportError as error:
    raise ImportError("jaten_ops.nnx needs flax. Fix: pip install 'jaten-ops[nnx]'") from error


class Buffer(nnx.Variable[jax.Array]):
    """A buffer of a torch module, such as a running mean, or a parameter that requires no gradients."""


class TorchModule(nnx.Module):
    """A torch module as an `nnx.Module`.

    `nnx.grad`, `nnx.jit` and `nnx.Optimizer` see its parameters, with the derivatives of `as_jax`. A call writes the
    new values of buffers to the variables. The torch module itself is left as it is.

    Args:
        module: the torch module, whose parameters and buffers have dtypes that JAX has; on any device.
        rngs: the keys of random operators, such as dropout in training, from the default stream.

    Attributes:
        parameters: an `nnx.Param` for each parameter that requires gradients, by its name in the torch module; a tied
            one has its first name.
        buffers: a `Buffer` for each buffer, and for each parameter that requires no gradients.
        deterministic: False if it is called in training mode; at first as the torch module is. `train()` and `eval()`,
            also of a module around it, set it.

    Raises:
        UnsupportedInputError: in a call, as `as_jax`.
        RuntimeError: a random operator is called, and there are no `rngs`.

    Example:
        >>> model = jaten_ops.nnx.TorchModule(torch.nn.Linear(3, 2))
        >>> nnx.grad(lambda model, x: model(x).sum())(model, jnp.ones((4, 3)))["parameters"]["bias"][...]
        Array([4., 4.], dtype=float32)
    """

    def __init__(self, module: torch.nn.Module, rngs: nnx.Rngs | None = None) -> None:
        arrays = arrays_of(module)
        self.parameters = nnx.Dict({name: nnx.Param(a) for name, a in arrays.parameters.items()})
        self.buffers = nnx.Dict({name: Buffer(a) for name, a in (arrays.frozen | arrays.buffers).items()})
        self.rngs = rngs
        self.deterministic = not module.training
        self._module = nnx.static(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result for arrays of any shape and dtype, in any pytree."""
        call = function_of_arrays(of_module(self._module, True, not self.deterministic))
        key = None if self.rngs is None else self.rngs()
        result, buffers = call(self.state_dict(), *args, key=key, **kwargs)
        for name, array in buffers.items():
            if name in self.buffers:
                self.buffers[name][...] = array
        return result

    def state_dict(self) -> dict[str, jax.Array]:
        """The arrays by name: after `from_jax`, what `load_state_dict` of the torch module takes."""
        return {name: variable[...] for part in (self.parameters, self.buffers) for name, variable in part.items()}
