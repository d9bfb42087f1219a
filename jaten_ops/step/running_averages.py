"""Averages that modules keep by a count of their calls, in a traced step: the count is part of the program."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn

from .places import shadowed_attribute
from .state_capture import Capture

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_FORWARDS = tuple(norm.forward for norm in _NORMS)  # a class of a user's may have another


def traced_averages(module: nn.Module, capture: Capture) -> contextlib.AbstractContextManager[None]:
    """A context in which a module that averages over its calls reads no count of them."""
    if isinstance(module, AveragedModel):
        average = functools.partial(_average, capture, module, module.update_parameters)
        return shadowed_attribute(module, "update_parameters", average)
    if isinstance(module, _NORMS) and module.momentum is None and type(module).forward in _FORWARDS:
        return shadowed_attribute(module, "forward", functools.partial(_normalize, module, module.forward))
    return contextlib.nullcontext()


def _average(capture: Capture, averaged: AveragedModel, update: Callable[..., None], model: nn.Module) -> None:
    """`update_parameters`, which copies the first time and averages from then on, as a select in the program."""
    count = averaged.n_averaged.clone()
    by_default = averaged.avg_fn is None and averaged.multi_avg_fn is None
    # by default torch averages lists on accelerators, which takes floats alone, and tensor by tensor on the CPU
    each = shadowed_attribute(averaged, "avg_fn", get_swa_avg_fn()) if by_default else contextlib.nullcontext()
    # the reads of `n_averaged == 0` and `n_averaged > 0`
    with each, capture.answering(False, True):
        capture.reads_numbers += 1
        update(model)
        capture.reads_numbers -= 1
    if averaged.use_buffers:
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = [
            *zip(averaged.module.parameters(), model.parameters(), strict=False)
        ]
        pairs += zip(averaged.module.buffers(), model.buffers(), strict=False)
    else:
        pairs = [*zip(averaged.parameters(), model.parameters(), strict=False)]
    with torch.no_grad():
        for mine, its in pairs:
            mine.copy_(torch.where(count == 0, its.detach(), mine.detach()))


def _normalize(module: Any, forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Batch normalization whose statistics are means over all calls: torch's own gets their number as a float.

    It is run with a momentum of 1 and other statistics, which become those of the batch: what it has written to, it
    saves for the backward pass.
    """
    if not module.training or module.num_batches_tracked is None:
        return forward(x)
    kept = {name: module._buffers[name] for name in ("running_mean", "running_var")}
    batch = {name: torch.zeros_like(statistic) for name, statistic in kept.items()}
    try:
        module._buffers.update(batch)
        with shadowed_attribute(module, "momentum", 1.0):
            y = forward(x)
    finally:
        module._buffers.update(kept)
    with torch.no_grad():
        share = 1.0 / module.num_batches_tracked.double()
        for name, statistic in kept.items():
            statistic.copy_(share * batch[name] + (1 - share) * statistic)
    return y
