"""Calls that `torch.utils.checkpoint` makes again in the backward pass, of programs that write to inputs.

It stops such a call as soon as it has the tensors that the forward pass saved. By then, eager functions have written to
their buffers, as batch normalization does to its averages. AOTAutograd would not have: it saves tensors first. So the
stop waits until the program has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from .graph_info import GraphInfo

_RECOMPUTES = "_recomputation_hook.__init__.<locals>.pack_hook"
"""The function by which `torch.utils.checkpoint` gets each tensor that is saved in such a call."""


def completed(captured: Callable[..., Any], graphs: Sequence[GraphInfo]) -> Callable[..., Any]:
    """A captured program that writes to its inputs in calls that are made again, too.

    Args:
        captured: the program.
        graphs: what is known of its graphs, but for backward ones.
    """
    if graphs and all(info.written is not None and not info.written for info in graphs):
        return captured
    top_hooks = torch._C._autograd._top_saved_tensors_default_hooks

    def run(*args: Any) -> Any:
        hooks = top_hooks(False)
        if hooks is None or getattr(hooks[0], "__qualname__", None) != _RECOMPUTES:
            return captured(*args)
        saved: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        with saved_tensors_hooks(keep, _unchanged):
            results = captured(*args)
        for tensor in saved:
            hooks[0](tensor)
        return results

    return torch._dynamo.disable(run, reason="it is compiled")


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
