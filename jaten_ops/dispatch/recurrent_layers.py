"""`nn.LSTM`, `nn.GRU` and `nn.RNN` on the device `jax`: an operator for each layer and direction.

ATen composes them from several operators for each time step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import rnn
from ..ops.user_ops import op
from ..registry.handlers import ABOVE_AUTOGRAD, Handler, handler
from ..tensor.operand_values import is_traced
from .operands import is_on_jax, with_constants

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

op(
    "jaten_nn::rnn_layer(Tensor input, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh,"
    " str cell, bool reverse) -> (Tensor, Tensor, Tensor)",
    differentiable=("input", "hx", "cx", "w_ih", "w_hh", "b_ih", "b_hh"),
)(rnn.layer)


def _suits(
    cell: str, input: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, directions: int
) -> bool:
    """True if the operator takes an input (T, B, I) and the rest; ATen's composition takes, or refuses, the others.

    It does not do so under autocast, which casts the parts, while a program is captured, or with a projection.
    """
    each, tensors = 4 if has_biases else 2, (input, *states, *params)
    if torch.is_autocast_enabled("jax") or any(not is_on_jax(x) or is_traced(x) for x in tensors):
        return False
    if input.dim() != 3 or not input.numel() or not input.is_floating_point() or states[0].dim() != 3:
        return False
    count, _, hidden = states[0].shape
    sizes: list[tuple[int, ...]] = [(count, input.shape[1], hidden)] * (2 if cell == "lstm" else 1)
    for i in range(count):
        gates, width = _GATES[cell] * hidden, input.shape[2] if i < directions else directions * hidden
        sizes += [(gates, width), (gates, hidden), (gates,), (gates,)][:each]
    return [x.shape for x in tensors[1:]] == sizes and all(x.dtype == input.dtype for x in tensors)


def _layers(
    cell: str, input: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], dropout: float, directions: int
) -> tuple[Tensor, ...]:
    """All layers for an input (T, B, I): the hidden states of the last one, and the final states of each."""
    count = states[0].shape[0]
    each = len(params) // count
    last: list[tuple[Tensor, Tensor]] = []
    for i in range(0, count, directions):
        if i and dropout:
            input = torch.dropout(input, dropout, True)
        found = []
        for k in range(i, i + directions):
            hx, cx = states[0][k], states[1][k] if cell == "lstm" else None
            weights = [*params[k * each : (k + 1) * each], None, None][:4]
            out, *final = torch.ops.jaten_nn.rnn_layer(input, hx, cx, *weights, cell, k > i)
            found.append(out)
            last.append((final[0], final[1]))
        input = found[0] if directions == 1 else torch.cat(found, -1)
    return (input, *[torch.stack([final[n] for final in last]) for n in range(len(states))])


def _implementation(cell: str) -> Handler:
    """The handler of `aten::{cell}.input`."""
    composition: Any = getattr(torch.ops.aten, cell).input
    key = torch._C.DispatchKey.CompositeImplicitAutograd

    def run(
        input: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool
    ) -> Any:  # fmt: skip
        input, hx, params = with_constants((input, hx, params))
        states, directions = hx if cell == "lstm" else [hx], 2 if bidirectional else 1
        steps = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
        whole = states and states[0].shape[:1] == (num_layers * directions,)
        if not whole or not _suits(cell, steps, states, params, has_biases, directions):
            settings = has_biases, num_layers, dropout, train, bidirectional, batch_first
            return composition._op_dk(key, input, hx, params, *settings)
        out, *last = _layers(cell, steps, states, params, dropout if train else 0.0, directions)
        return (out.transpose(0, 1) if batch_first else out, *last)

    return run


for _cell in _GATES:
    handler(f"aten::{_cell}.input", keys=(ABOVE_AUTOGRAD,))(_implementation(_cell))
