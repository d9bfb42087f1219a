"""Calls of compiled programs within `torch.autograd.graph.saved_tensors_hooks`.

Those of `torch.utils.checkpoint` are there when it calls a function again in the backward pass. They stop it as soon as
they have all the tensors that the forward pass saved. By then, an eager function has written to its buffers, as batch
normalization does to its averages, and to its attributes. A compiled one would not have: AOTAutograd saves tensors
first. So the stop is ignored, and the function goes on to its end.

Functions of users get tensors of the device as they have them elsewhere, where torch saves carriers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import _StopRecomputationError  # private: nothing else tells that all has been saved

from jaten_ops.dispatch.operands import is_on_jax
from jaten_ops.tensor.tensor import Tensor

from .graph_info import GraphInfo


def hooked(captured: Callable[..., Any], graphs: Sequence[GraphInfo]) -> Callable[..., Any]:
    """A captured program that heeds hooks of saved tensors.

    Args:
        captured: the program.
        graphs: what is known of its graphs, but for backward ones.
    """
    if graphs and all(info.kind == "inference" for info in graphs):
        return captured
    top_hooks = torch._C._autograd._top_saved_tensors_default_hooks

    @functools.wraps(captured)
    def run(*args: Any) -> Any:
        hooks = top_hooks(False)
        if hooks is None:
            return captured(*args)
        with saved_tensors_hooks(*_adapted(*hooks)):
            return captured(*args)

    return run


def _adapted(pack: Callable[..., Any], unpack: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Hooks for a call of a compiled program, from those that are set."""
    has_all = False

    def adapted_pack(tensor: torch.Tensor) -> Any:
        nonlocal has_all
        given = Tensor(tensor) if is_on_jax(tensor) else tensor
        if has_all:
            return given
        try:
            return pack(given)
        except _StopRecomputationError:
            has_all = True
            return given

    def adapted_unpack(packed: Any) -> Any:
        tensor = unpack(packed)
        return tensor._carrier if isinstance(tensor, Tensor) else tensor

    return adapted_pack, adapted_unpack
