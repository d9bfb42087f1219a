"""Recurrent layers and cells. Gates are in ATen's order: input, forget, cell, output; and reset, update, new."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaten_ops.registry import kernel

from ..arrays.observers import known_values
from ..kernel_base.promotion import cast, compute_type
from .recurrent_parts import layer, layer_gradients, lstm_step

_LSTM_MODE = 2


# aten::mkldnn_rnn_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx_,
#     Tensor cx_, bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases,
#     bool bidirectional, bool batch_first, bool train) -> (Tensor, Tensor, Tensor, Tensor)
@kernel("mkldnn_rnn_layer")
def mkldnn_rnn_layer(
    input, weight0, weight1, weight2, weight3, hx_, cx_, reverse, batch_sizes, mode, hidden_size, num_layers,
    has_biases, bidirectional, batch_first, train
):  # fmt: skip
    """One direction of one LSTM layer: input (T, B, I), states (B, H) or (1, B, H), weights of input and of state.

    The workspace has the gates and the cell states, (T, B, 5 H), whatever `train` says: in graphs it is always False.
    """
    if mode != _LSTM_MODE:
        raise RuntimeError(f"mkldnn_rnn_layer: only LSTM (mode {_LSTM_MODE}) is supported, got mode {mode}")
    biases = (weight2, weight3) if has_biases else (None, None)
    states = (x.reshape(input.shape[1], hidden_size) for x in (hx_, cx_))
    out, hy, cy, *saved = layer(input, *states, weight0, weight1, *biases, "lstm", reverse, train=True)
    return out, hy.reshape(hx_.shape), cy.reshape(cx_.shape), jnp.concatenate(saved, -1)


# aten::mkldnn_rnn_layer_backward(Tensor input, Tensor weight1, Tensor weight2, Tensor weight3, Tensor weight4,
#     Tensor hx_, Tensor cx_tmp, Tensor output, Tensor hy_, Tensor cy_, Tensor? grad_output, Tensor? grad_hy,
#     Tensor? grad_cy, bool reverse, int mode, int hidden_size, int num_layers, bool has_biases, bool train,
#     bool bidirectional, int[] batch_sizes, bool batch_first, Tensor workspace) -> (Tensor, Tensor, Tensor, Tensor,
#     Tensor, Tensor, Tensor)
@kernel("mkldnn_rnn_layer_backward")
def mkldnn_rnn_layer_backward(
    input, weight1, weight2, weight3, weight4, hx_, cx_tmp, output, hy_, cy_, grad_output, grad_hy, grad_cy, reverse,
    mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first, workspace
):  # fmt: skip
    hx, cx = (x.reshape(input.shape[1], hidden_size) for x in (hx_, cx_tmp))
    biases = (weight3, weight4) if has_biases else (None, None)
    grads = grad_output, *(None if g is None else g.reshape(hx.shape) for g in (grad_hy, grad_cy))
    saved = jnp.split(workspace, [4 * hidden_size], -1) if workspace.size else (None, None)  # a user may have none
    found = layer_gradients(grads, input, hx, cx, weight1, weight2, *biases, "lstm", reverse, output, *saved)
    of_input, of_hx, of_cx, *of_weights = found
    if not has_biases:
        of_weights[2:] = jnp.zeros_like(weight3), jnp.zeros_like(weight4)
    return of_input, *of_weights, of_hx.reshape(hx_.shape), of_cx.reshape(cx_tmp.shape)


# Fused cells: gates of the input and of the state come in as products, without bias


def _sum_gates(like: jax.Array, *terms: jax.Array | None) -> jax.Array:
    return sum(cast(t, compute_type(like.dtype)) for t in terms if t is not None)


# aten::_thnn_fused_lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? input_bias=None,
#     Tensor? hidden_bias=None) -> (Tensor, Tensor, Tensor)
@kernel("_thnn_fused_lstm_cell")
def thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    gates = _sum_gates(cx, input_gates, hidden_gates, input_bias, hidden_bias)
    hy, cy, activated = lstm_step(gates, cast(cx, gates.dtype))
    return cast(hy, cx.dtype), cast(cy, cx.dtype), cast(jnp.concatenate(activated, -1), cx.dtype)


# aten::_thnn_fused_lstm_cell_backward_impl(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor cy, Tensor workspace,
#     bool has_bias) -> (Tensor, Tensor, Tensor)
@kernel("_thnn_fused_lstm_cell_backward_impl")
def thnn_fused_lstm_cell_backward_impl(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    if grad_hy is None and grad_cy is None:  # autograd calls this also when no result has a gradient
        return None, None, None
    wide = compute_type(cx.dtype)
    i, f, g, o = jnp.split(cast(workspace, wide), 4, axis=-1)
    tanh = jnp.tanh(cast(cy, wide))
    dh = jnp.zeros(cy.shape, wide) if grad_hy is None else cast(grad_hy, wide)
    dc = dh * o * (1 - tanh * tanh)
    dc = dc if grad_cy is None else dc + cast(grad_cy, wide)
    parts = [
        dc * g * (1 - i) * i,
        dc * cast(cx, wide) * (1 - f) * f,
        dc * i * (1 - g * g),
        dh * tanh * (1 - o) * o,
    ]
    gates = jnp.concatenate(parts, -1)
    bias = cast(jnp.sum(gates, 0), cx.dtype) if has_bias else None
    return cast(gates, cx.dtype), cast(dc * f, cx.dtype), bias


# aten::_thnn_fused_gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? input_bias=None,
#     Tensor? hidden_bias=None) -> (Tensor, Tensor)
@kernel("_thnn_fused_gru_cell")
def thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    ir, iz, i_new = jnp.split(_sum_gates(hx, input_gates, input_bias), 3, axis=-1)
    hr, hz, h_new = jnp.split(_sum_gates(hx, hidden_gates, hidden_bias), 3, axis=-1)
    reset, update = lax.logistic(ir + hr), lax.logistic(iz + hz)
    new = lax.tanh(i_new + reset * h_new)
    wide = cast(hx, new.dtype)
    workspace = lax.stop_gradient(jnp.concatenate([reset, update, new, wide, h_new], -1))
    return cast(new + update * (wide - new), hx.dtype), cast(workspace, hx.dtype)


# aten::_thnn_fused_gru_cell_backward(Tensor grad_hy, Tensor workspace, bool has_bias) -> (Tensor, Tensor, Tensor,
#     Tensor, Tensor)
@kernel("_thnn_fused_gru_cell_backward")
def thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias):
    dtype, wide = grad_hy.dtype, compute_type(grad_hy.dtype)
    reset, update, new, hx, h_new = jnp.split(cast(workspace, wide), 5, axis=-1)
    grad = cast(grad_hy, wide)
    d_update = grad * (hx - new) * (1 - update) * update
    d_new = grad * (1 - update) * (1 - new * new)
    d_reset = d_new * h_new * (1 - reset) * reset
    of_input = jnp.concatenate([d_reset, d_update, d_new], -1)
    of_hidden = jnp.concatenate([d_reset, d_update, d_new * reset], -1)
    biases = [cast(jnp.sum(g, 0), dtype) if has_bias else None for g in (of_input, of_hidden)]
    return cast(of_input, dtype), cast(of_hidden, dtype), cast(grad * update, dtype), *biases


# aten::_pack_padded_sequence(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)
@kernel("_pack_padded_sequence", eager=True)
def pack_padded_sequence(input, lengths, batch_first):
    """The steps of all sequences that are not padding, the first steps first, and how many there are at each step."""
    lengths = known_values(lengths)
    if lengths.size and lengths[-1] <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element that is <= 0")
    if (np.diff(lengths) > 0).any():
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence to sidestep this requirement."
        )
    steps = jnp.swapaxes(input, 0, 1) if batch_first else input
    present = np.arange(lengths[0])[:, None] < lengths
    return steps[np.nonzero(present)], jnp.asarray(present.sum(1), np.int64)
