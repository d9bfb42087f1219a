"""Policies of activation checkpointing by the names that they have in JAX, for `torch.utils.checkpoint`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from .errors import UnsupportedInputError

_aten = torch.ops.aten
_WITHOUT_BATCH = frozenset({_aten.mm.default, _aten.addmm.default, _aten.mv.default, _aten.dot.default})
_DOTS = _WITHOUT_BATCH | {_aten.bmm.default, _aten.baddbmm.default}


def _everything(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE


def _nothing(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def _dots(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _DOTS else CheckpointPolicy.PREFER_RECOMPUTE


def _dots_without_batch(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _WITHOUT_BATCH else CheckpointPolicy.PREFER_RECOMPUTE


_POLICIES: dict[str, Callable[..., CheckpointPolicy]] = {
    "everything_saveable": _everything,
    "nothing_saveable": _nothing,
    "dots_saveable": _dots,
    "dots_with_no_batch_dims_saveable": _dots_without_batch,
}


def checkpoint_policy(name: str) -> Callable[[], Any]:
    """A policy for `torch.utils.checkpoint.checkpoint` by its name in `jax.checkpoint_policies`, for any dtypes.

    It says which results of operators are saved for the backward pass, in eager mode and under `torch.compile`; others
    are computed again. In `compile_step` XLA decides: on the CPU it merges what is computed twice, as it does in a
    program of `jax.checkpoint`.

    Args:
        name: "everything_saveable", "nothing_saveable", "dots_saveable" (products of matrices, and of batches of them)
            or "dots_with_no_batch_dims_saveable" (products of matrices, such as those of `Linear`).

    Returns:
        The argument `context_fn`, which needs `use_reentrant=False`.

    Raises:
        UnsupportedInputError: another name.

    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
        >>> policy = jaten_ops.checkpoint_policy("dots_saveable")
        >>> checkpoint(layer, x, use_reentrant=False, context_fn=policy).shape
        torch.Size([2, 4])
    """
    if name not in _POLICIES:
        raise UnsupportedInputError("checkpoint_policy", repr(name), " or ".join(map(repr, _POLICIES)))
    return functools.partial(create_selective_checkpoint_contexts, _POLICIES[name])
