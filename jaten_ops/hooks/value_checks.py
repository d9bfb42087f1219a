"""Functions of torch that check the values of their arguments, without the check where JAX traces a program."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from ..tensor.tensor import Tensor, has_values
from .ledger import Patch

Loss = Callable[..., torch.Tensor]


def _is_read(value: object) -> bool:
    """True if torch's function may ask for a value, as Dynamo lets it: no program that is traced has the answer."""
    if torch.compiler.is_dynamo_compiling() or not isinstance(value, Tensor):
        return True
    return has_values(value) and not torch.compiler.is_compiling()


def gaussian_nll_loss(original: Loss) -> Loss:
    @functools.wraps(original)
    def loss(
        input: torch.Tensor,
        target: torch.Tensor,
        var: torch.Tensor | float,
        full: bool = False,
        eps: float = 1e-6,
        reduction: str = "mean",
    ) -> torch.Tensor:
        if _is_read(var):
            return original(input, target, var, full, eps, reduction)
        assert isinstance(var, Tensor)
        return _gaussian_nll_loss(input, target, var, full, eps, reduction)

    return loss


def _gaussian_nll_loss(
    input: torch.Tensor, target: torch.Tensor, var: torch.Tensor, full: bool, eps: float, reduction: str
) -> torch.Tensor:
    """torch's function, but for the question whether a variance is negative."""
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.ndim != var.ndim or sum(v for i, v in zip(input.shape, var.shape, strict=True) if i != v) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    var = var.clone()
    with torch.no_grad():  # gradients are those of the variances that there were
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def detect_is_causal_mask(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def detect(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is not None or _is_read(mask):
            return original(mask, is_causal, size)
        return False  # it is taken as any other mask, with the same results

    return detect


ROWS = [
    Patch(
        "torch.nn.modules.transformer:_detect_is_causal_mask",
        detect_is_causal_mask,
        "torch.nn.Transformer in a step, or in a function of as_jax, does not read whether a mask is causal",
        "hooks/test_value_checks",
        takes="mask is_causal size",
        loss="torch.nn.Transformer with a mask raises an error in a step and in a function of as_jax",
    ),
    Patch(
        "torch.nn.functional:gaussian_nll_loss",
        gaussian_nll_loss,
        "GaussianNLLLoss in a step, or in a function of as_jax, does not read whether a variance is negative",
        "hooks/test_value_checks",
        takes="input target var full eps reduction",
        loss="GaussianNLLLoss raises an error in a step and in a function of as_jax",
    ),
]
