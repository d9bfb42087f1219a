"""A case: a model written in torch and in JAX, its inputs, and the transfer of weights from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Weights = dict[str, jax.Array]

RATE, DECAY, BETA1, BETA2, EPSILON = 1e-3, 1e-2, 0.9, 0.999, 1e-8  # AdamW's


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        torch_model: makes the module.
        jax_model: `(weights, updates, *inputs) -> output`, the same model in JAX, or None. It trains if `updates` is
            a dictionary, to which it adds the buffers that change; for a stateful case it gets one always.
        inputs: makes the module's arguments.
        target: makes what the output is trained towards: classes, by cross entropy, or numbers, by the mean squared
            error. Without it there is no training job.
        images: tensors of four dimensions are NCHW in torch and NHWC in JAX.
        stateful: inference writes to buffers, too.
        overhead: there is next to nothing to compute, so that a call's time is what the call costs.
        dynamo: settings of `torch._dynamo.config` under which it is compiled.
    """

    name: str
    torch_model: Callable[[], nn.Module]
    jax_model: Callable[..., jax.Array] | None
    inputs: Callable[[], tuple[Tensor, ...]]
    target: Callable[[], Tensor] | None = None
    images: bool = False
    stateful: bool = False
    overhead: bool = False
    dynamo: tuple[tuple[str, object], ...] = ()

    @property
    def jobs(self) -> tuple[str, ...]:
        return ("inference", "training") if self.target else ("inference",)

    def make(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[nn.Module, list[Tensor], Tensor | None]:
        """The module, its inputs and the target, the same for the same seed."""
        torch.manual_seed(seed)
        module = self.torch_model().to(dtype)
        inputs = [_cast(x, dtype) for x in self.inputs()]
        return module, inputs, None if self.target is None else _cast(self.target(), dtype)

    def make_jax(
        self, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> tuple[Weights, Weights, list[jax.Array], jax.Array | None]:
        """Parameters, buffers, inputs and target as `make` gives them, in the layouts of the JAX model."""
        module, inputs, target = self.make(dtype, seed)
        parameters = {n: to_array(in_jax_layout(module, n, p.detach())) for n, p in module.named_parameters()}
        buffers = {n: to_array(b) for n, b in module.named_buffers() if b.is_floating_point()}
        return parameters, buffers, [self.to_jax(x) for x in inputs], None if target is None else self.to_jax(target)

    def to_jax(self, tensor: Tensor) -> jax.Array:
        return to_array(tensor.permute(0, 2, 3, 1) if self.images and tensor.dim() == 4 else tensor)

    def output_of_jax(self, output: jax.Array) -> jax.Array:
        """In torch's layout, to be compared."""
        return output.transpose(0, 3, 1, 2) if self.images and output.ndim == 4 else output


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def to_array(tensor: Tensor) -> jax.Array:
    """In memory of JAX's own; int64 becomes JAX's default integer."""
    if tensor.dtype == torch.bfloat16:
        return jnp.array(tensor.float().numpy(), jnp.bfloat16)
    return jnp.array(tensor.numpy())


def in_jax_layout(module: nn.Module, name: str, weight: Tensor) -> Tensor:
    """A parameter as a JAX user would keep it: features in before features out, channels last."""
    owner, _, kind = name.rpartition(".")
    layer = module.get_submodule(owner)
    if isinstance(layer, nn.Linear | nn.LSTM) and weight.dim() == 2:
        return weight.T
    if kind != "weight":
        return weight
    if isinstance(layer, nn.ConvTranspose2d):
        return weight.flip(2, 3).permute(2, 3, 0, 1)  # HWIO; lax.conv_transpose does not turn the kernel round
    if isinstance(layer, nn.Conv2d):
        return weight.permute(2, 3, 1, 0)  # HWIO
    if isinstance(layer, nn.Conv1d):
        return weight.permute(2, 1, 0)  # WIO
    return weight


def torch_loss(output: Tensor, target: Tensor) -> Tensor:
    if target.is_floating_point():
        return F.mse_loss(output, target)
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def jax_loss(output: jax.Array, target: jax.Array) -> jax.Array:
    if jnp.issubdtype(target.dtype, jnp.floating):
        return jnp.square(output - target).mean()
    logits = jax.nn.log_softmax(output.astype(jnp.float32))
    return -jnp.take_along_axis(logits, target[..., None], -1).mean()
