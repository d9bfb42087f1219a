"""Torch modules as modules of Equinox. Needs equinox, of the extra `equinox`."""

from __future__ import annotations

from typing import Any

import jax
import torch

from .interop import function_of_arrays
from .torch_functions import arrays_of, of_module

try:
    import equinox
except ImportError as error:
    raise ImportError("jaten_ops.equinox needs equinox. Fix: pip install 'jaten-ops[equinox]'") from error


class TorchModule(equinox.Module):
    """A torch module as an `equinox.Module`, a pytree of its parameters and buffers.

    `equinox.filter_jit`, `filter_grad` and `nn.inference_mode` work, with the derivatives of `as_jax`; gradients of
    buffers, and of parameters that require none, are zero. The torch module itself is left as it is.

    Args:
        module: the torch module, whose parameters and buffers have dtypes that JAX has; on any device.

    Attributes:
        parameters: the array of each parameter that requires gradients, by its name in the torch module; a tied one has
            its first name.
        buffers: those of buffers, and of parameters that require no gradients.
        inference: False if it is called in training mode; at first as the torch module is.

    Raises:
        UnsupportedInputError: in a call, as `as_jax`.
        RuntimeError: a random operator is called without a key.

    Example:
        >>> model = jaten_ops.equinox.TorchModule(torch.nn.Linear(3, 2))
        >>> equinox.filter_grad(lambda model, x: model(x).sum())(model, jnp.ones((4, 3))).parameters["bias"]
        Array([4., 4.], dtype=float32)
    """

    parameters: dict[str, jax.Array]
    buffers: dict[str, jax.Array]
    inference: bool
    _module: torch.nn.Module = equinox.field(static=True)

    def __init__(self, module: torch.nn.Module) -> None:
        arrays = arrays_of(module)
        self.parameters, self.buffers = arrays.parameters, arrays.frozen | arrays.buffers
        self.inference = not module.training
        self._module = module

    def __call__(self, *args: Any, key: jax.Array | None = None, **kwargs: Any) -> Any:
        """The module's result for arrays of any shape and dtype, in any pytree; new values of buffers are dropped."""
        return self.updated(*args, key=key, **kwargs)[0]

    def updated(self, *args: Any, key: jax.Array | None = None, **kwargs: Any) -> tuple[Any, TorchModule]:
        """The module's result, and the module with its buffers after the call, such as running means."""
        call = function_of_arrays(of_module(self._module, True, not self.inference))
        result, found = call(self.state_dict(), *args, key=key, **kwargs)
        buffers = {name: found.get(name, array) for name, array in self.buffers.items()}
        return result, equinox.tree_at(lambda model: model.buffers, self, buffers)

    def trainable(self) -> TorchModule:
        """The module with True for each parameter and False elsewhere: for `equinox.partition`, or `optax.masked`."""
        none = jax.tree.map(lambda _: False, self)
        return equinox.tree_at(lambda model: model.parameters, none, dict.fromkeys(self.parameters, True))

    def state_dict(self) -> dict[str, jax.Array]:
        """The arrays by name: after `from_jax`, what `load_state_dict` of the torch module takes."""
        return self.parameters | self.buffers
