"""`nn.LSTM`, `nn.GRU` and `nn.RNN` on the device `jax`: an operator for each layer and direction.

ATen composes them from several operators for each time step. In forward mode the layers and cells are composed by
torch's functions in Python, since ATen's composition has fused cells on a device, which have no forward mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import autograd
from ..kernels import recurrent_parts as parts
from ..ops.namespace import operator_of
from ..ops.user_ops import op
from ..registry import gradient
from ..registry.handlers import ABOVE_AUTOGRAD, Handler, handler
from ..tensor.operand_values import is_traced
from .operands import is_on_jax, with_constants

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_IMPLICIT, _AUTOGRAD = torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.AutogradFunctionality

_TENSORS = ("input", "hx", "cx", "w_ih", "w_hh", "b_ih", "b_hh")
_RESULTS = ("out", "hy", "cy", "gates", "cells")
_OPERANDS = (
    "Tensor input, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, str cell, bool reverse"
)

op(
    f"jaten_nn::rnn_layer({_OPERANDS}, bool train) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    differentiable=_TENSORS,
)(parts.layer)


@op(
    f"jaten_nn::rnn_layer_backward({', '.join(f'Tensor? of_{r}' for r in _RESULTS)}, {_OPERANDS}, Tensor out,"
    " Tensor? gates, Tensor? cells) -> (Tensor, Tensor, Tensor?, Tensor, Tensor, Tensor?, Tensor?)",
    differentiable=(*(f"of_{r}" for r in _RESULTS), *_TENSORS, "out", "gates", "cells"),
)
def _layer_backward(
    of_out: Any, of_hy: Any, of_cy: Any, of_gates: Any, of_cells: Any, input: Any, hx: Any, cx: Any, w_ih: Any,
    w_hh: Any, b_ih: Any, b_hh: Any, cell: str, reverse: bool, out: Any, gates: Any, cells: Any
) -> Any:  # fmt: skip
    grads, operands = (of_out, of_hy, of_cy, of_gates, of_cells), (input, hx, cx, w_ih, w_hh, b_ih, b_hh)
    return tuple(parts.layer_gradients(grads, *operands, cell, reverse, out, gates, cells))


@gradient("jaten_nn::rnn_layer")
def gradient_of_rnn_layer(grads: Any, args: Any, results: Any) -> dict[str, Any]:
    """From the gates of the forward pass: `jax.vjp` of the kernel would compute them again."""
    *operands, train = args
    out, _, _, gates, cells = results
    if not train:
        gates = cells = grads[3] = grads[4] = None
    found = torch.ops.jaten_nn.rnn_layer_backward(*grads, *operands, out, gates, cells)
    return dict(zip(_TENSORS, found, strict=True))


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
    train = autograd.is_recorded([input, *states, *params])
    last: list[tuple[Tensor, Tensor]] = []
    for i in range(0, count, directions):
        if i and dropout:
            input = torch.dropout(input, dropout, True)
        found = []
        for k in range(i, i + directions):
            hx, cx = states[0][k], states[1][k] if cell == "lstm" else None
            weights = [*params[k * each : (k + 1) * each], None, None][:4]
            out, hy, cy, *_ = torch.ops.jaten_nn.rnn_layer(input, hx, cx, *weights, cell, k > i, train)
            found.append(out)
            last.append((hy, cy))
        input = found[0] if directions == 1 else torch.cat(found, -1)
    return (input, *[torch.stack([final[n] for final in last]) for n in range(len(states))])


def _has_tangent(operand: Any) -> bool:
    """True for a traced tensor, or a sequence of some, in forward mode: a graph of Dynamo's enters no level."""
    if isinstance(operand, (list, tuple)):
        return any(map(_has_tangent, operand))
    if not isinstance(operand, Tensor) or not is_traced(operand):
        return False
    tangent = torch._VF._unpack_dual(operand, level=0)[1]  # type: ignore[operator]  # its stubs have no functions
    return tangent is not None


def _composition(operator: Any) -> Handler:
    """An operator's composition of others, which has derivatives in forward mode where it is asked for."""

    def run(*args: Any) -> Any:
        is_below_autograd = torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD)
        if not is_below_autograd and (forward_ad._current_level >= 0 or any(map(_has_tangent, args))):
            in_python = _CELLS.get(operator) or operator.py_kernels[_IMPLICIT]
            return in_python(*with_constants(args))
        return operator._op_dk(_IMPLICIT, *args)

    return run


def _implementation(cell: str) -> Handler:
    """The handler of `aten::{cell}.input`."""
    composition = _composition(operator_of(f"{cell}.input", "aten"))

    def run(
        input: Tensor, hx: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool
    ) -> Any:  # fmt: skip
        input, hx, params = with_constants((input, hx, params))
        states, directions = hx if cell == "lstm" else [hx], 2 if bidirectional else 1
        steps = input.transpose(0, 1) if batch_first and input.dim() == 3 else input
        whole = states and states[0].shape[:1] == (num_layers * directions,)
        if not whole or not _suits(cell, steps, states, params, has_biases, directions):
            return composition(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        out, *last = _layers(cell, steps, states, params, dropout if train else 0.0, directions)
        return (out.transpose(0, 1) if batch_first else out, *last)

    return run


def _gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    of_input = torch.nn.functional.linear(input, w_ih, b_ih).chunk(3, 1)
    of_state = torch.nn.functional.linear(hx, w_hh, b_hh).chunk(3, 1)
    reset, update = [torch.sigmoid(x + h) for x, h in zip(of_input[:2], of_state[:2], strict=True)]
    new = torch.tanh(of_input[2] + reset * of_state[2])
    return new + update * (hx - new)


def _lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    of_input, of_state = torch.nn.functional.linear(input, w_ih, b_ih), torch.nn.functional.linear(hx[0], w_hh, b_hh)
    i, f, g, o = (of_input + of_state).chunk(4, 1)
    cx = torch.sigmoid(f) * hx[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cx), cx


_CELLS: dict[Any, Handler] = {torch.ops.aten.gru_cell.default: _gru_cell, torch.ops.aten.lstm_cell.default: _lstm_cell}

for _cell in _GATES:
    handler(f"aten::{_cell}.input", keys=(ABOVE_AUTOGRAD,))(_implementation(_cell))
for _overload in ("lstm.data", "gru.data", "lstm_cell", "gru_cell"):
    handler(f"aten::{_overload}", keys=(ABOVE_AUTOGRAD,))(_composition(operator_of(_overload, "aten")))
