"""torch's `Adam` and `AdamW` over lists, with the step of the device's tensors as one program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..dispatch.adam_step import adam_step
from ..tensor.tensor import Tensor

_NUMBERS = "lr", "beta1", "beta2", "weight_decay", "eps"
_FLAGS = "amsgrad", "maximize"
_TORCHS_OWN = "has_complex", "capturable", "differentiable", "grad_scale", "found_inf"


def as_one_program(torchs: Callable[..., None]) -> Callable[..., None]:
    """torch's step over lists, but for what `adam_step` does."""

    @functools.wraps(torchs)
    def step(params: Any, grads: Any, means: Any, squares: Any, greatest: Any, steps: Any, **options: Any) -> None:
        if torch.compiler.is_compiling() or not params or type(params[0]) is not Tensor or not _is_plain(options):
            return torchs(params, grads, means, squares, greatest, steps, **options)
        states = [means, squares, greatest] if options["amsgrad"] else [means, squares]
        given = {name: options[name] for name in (*_NUMBERS, *_FLAGS)}
        if not adam_step(params, grads, states, steps, decoupled=options["decoupled_weight_decay"], **given):
            torchs(params, grads, means, squares, greatest, steps, **options)
        return None

    return step


def _is_plain(options: dict[str, Any]) -> bool:
    """True if the options are numbers and flags, none of them one that asks for torch's own step."""
    if any(options[name] not in (None, False) for name in _TORCHS_OWN):
        return False
    return all(type(options[name]) in (float, int) for name in _NUMBERS)
