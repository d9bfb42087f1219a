"""Weights that modules of torch compute anew in each call, and keep until the next: of those that JAX traces, too."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import torch
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def recompute(kept: Sequence[torch.Tensor]) -> None:
    """Has modules that keep such tensors compute them of their parameters, as their next call would."""
    with jax.ensure_compile_time_eval():  # JAX may trace around this
        for module in _modules_with(kept):
            if isinstance(module, torch.nn.RNNBase):
                module._init_flat_weights()
            for hook in module._forward_pre_hooks.values():
                if isinstance(hook, WeightNorm):
                    setattr(module, hook.name, hook.compute_weight(module))
                elif isinstance(hook, SpectralNorm):
                    setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))
                elif isinstance(hook, BasePruningMethod):
                    hook(module, None)


def _modules_with(tensors: Sequence[Any]) -> Iterator[torch.nn.Module]:
    """The modules that have some of the tensors as attributes, or in lists that are attributes."""
    holders: list[Any] = [h for t in tensors for h in gc.get_referrers(t) if h is not tensors]
    holders += [h for each in holders if isinstance(each, list) for h in gc.get_referrers(each)]
    found = {id(h): h for h in holders if isinstance(h, torch.nn.Module)}
    for attributes in holders:
        if isinstance(attributes, dict):
            owners = [o for o in gc.get_referrers(attributes) if isinstance(o, torch.nn.Module)]
            found.update((id(o), o) for o in owners if vars(o) is attributes)
    yield from found.values()
