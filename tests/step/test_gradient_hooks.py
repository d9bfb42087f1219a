"""Hooks of gradients are looked for only after one was added somewhere."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from jaten_ops.step.gradient_hooks import HooksOfTensors


def test_only_new_hooks_are_looked_for() -> None:
    tensors = [torch.ones(1, requires_grad=True) for _ in range(3)]
    tensors[0].register_hook(lambda g: g)
    hooks = HooksOfTensors(tensors)
    assert hooks.are_current()
    nn.Linear(1, 1).register_forward_hook(lambda *a: None)
    assert hooks._number != RemovableHandle.next_id
    assert hooks.are_current()
    assert hooks._number == RemovableHandle.next_id
    tensors[0].register_hook(lambda g: g * 2)  # into a table that the walk compares
    assert hooks.are_current()
    tensors[2].register_post_accumulate_grad_hook(lambda p: None)
    assert not hooks.are_current()
