"""torch's optimizers over lists, with programs of their own for the device's tensors: `Adam`, `AdamW`, `SGD`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..dispatch.adam_step import adam_step
from ..dispatch.sgd_step import sgd_step
from ..tensor.tensor import Tensor
from .ledger import Patch

_ADAM = "lr", "beta1", "beta2", "weight_decay", "eps"
_ADAM_FLAGS = "amsgrad", "maximize"
_NOT_ADAM = "has_complex", "capturable", "differentiable", "grad_scale", "found_inf"
_SGD = "lr", "weight_decay", "momentum", "dampening"
_SGD_FLAGS = ("maximize",)
_NOT_SGD = "has_sparse_grad", "nesterov"


def adam(torchs: Callable[..., None]) -> Callable[..., None]:
    """torch's step of Adam and AdamW over lists, but for what `adam_step` does."""

    @functools.wraps(torchs)
    def step(params: Any, grads: Any, means: Any, squares: Any, greatest: Any, steps: Any, **options: Any) -> None:
        if not _is_plain(params, options, _ADAM, _NOT_ADAM):
            return torchs(params, grads, means, squares, greatest, steps, **options)
        states = [means, squares, greatest] if options["amsgrad"] else [means, squares]
        given = {name: options[name] for name in (*_ADAM, *_ADAM_FLAGS)}
        if not adam_step(params, grads, states, steps, decoupled=options["decoupled_weight_decay"], **given):
            torchs(params, grads, means, squares, greatest, steps, **options)
        return None

    return step


def sgd(torchs: Callable[..., None]) -> Callable[..., None]:
    """torch's step of SGD over lists, but for what `sgd_step` does."""

    @functools.wraps(torchs)
    def step(params: Any, grads: Any, buffers: Any, grad_scale: Any, found_inf: Any, **options: Any) -> None:
        is_plain = grad_scale is found_inf is None and _is_plain(params, options, _SGD, _NOT_SGD)
        given = {name: options[name] for name in (*_SGD, *_SGD_FLAGS)}
        if not is_plain or not sgd_step(params, grads, buffers, **given):
            torchs(params, grads, buffers, grad_scale, found_inf, **options)

    return step


def _is_plain(params: Any, options: dict[str, Any], numbers: Iterable[str], torchs_own: Iterable[str]) -> bool:
    """True for an eager step of the device's tensors.

    Its options have to be numbers and flags, none of them one that asks for torch's own step.
    """
    if torch.compiler.is_compiling() or not params or type(params[0]) is not Tensor:
        return False
    if any(options[name] not in (None, False) for name in torchs_own):
        return False
    return all(type(options[name]) in (float, int) for name in numbers)


ROWS = [
    Patch(
        "torch.optim.adam:_multi_tensor_adam",
        adam,
        "a step of Adam or AdamW on the device is one program for all parameters, or a few for groups of them",
        "dispatch/test_list_steps",
        takes="params grads exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps grad_scale found_inf amsgrad has_complex"
        " beta1 beta2 lr weight_decay eps maximize capturable differentiable decoupled_weight_decay",
        loss="a step of Adam or AdamW is ten programs",
    ),
    Patch(
        "torch.optim.sgd:_multi_tensor_sgd",
        sgd,
        "a step of SGD on the device is one program for all parameters, or a few for groups of them",
        "dispatch/test_list_steps",
        takes="params grads momentum_buffer_list grad_scale found_inf weight_decay momentum lr dampening nesterov"
        " maximize has_sparse_grad",
        loss="a step of SGD is a program for each of its operators",
    ),
]
