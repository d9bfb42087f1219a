"""One direction of one recurrent layer, and its gradients: `jaten_nn::rnn_layer`, and ATen's LSTM layer.

Gates are in ATen's order: input, forget, cell, output; and reset, update, new.

The loops hold only what depends on the step before. The gradients of weights and of the input are products over all
steps at once: `jax.vjp` of a loop would add up the gradient of a weight step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..cpu.dot_reductions import contract, product_over_rows
from ..kernel_base.promotion import cast, compute_type


def lstm_step(gates: jax.Array, cx: jax.Array) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """New hidden state, new cell state, activated gates."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = lax.logistic(i), lax.logistic(f), lax.tanh(g), lax.logistic(o)
    cy = f * cx + i * g
    return o * lax.tanh(cy), cy, (i, f, g, o)


def _gru_step(gates: jax.Array, hx: jax.Array, cx: jax.Array) -> tuple[jax.Array, jax.Array]:
    r, z, n, hn = jnp.split(gates, 4, axis=-1)
    n = lax.tanh(n + lax.logistic(r) * hn)
    return (hx - n) * lax.logistic(z) + n, cx


def _gru_gates(of_input: jax.Array, of_state: jax.Array) -> jax.Array:
    (r, z, n), (hr, hz, hn) = jnp.split(of_input, 3, axis=-1), jnp.split(of_state, 3, axis=-1)
    return jnp.concatenate([r + hr, z + hz, n, hn], -1)


def _gru_gradients(gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    r, z, n, hn = jnp.split(gates, 4, axis=-1)
    return jnp.concatenate([r, z, n], -1), jnp.concatenate([r, z, hn], -1)


class _Cell(NamedTuple):
    """A kind of layer.

    Attributes:
        step: the new hidden and cell state, from the gates and the states before.
        gates: the gates, from the products of the input and of the state, each with its bias.
        gradients: the gradients of the two products, from that of the gates.
    """

    step: Callable[..., tuple[jax.Array, jax.Array]]
    gates: Callable[[jax.Array, jax.Array], jax.Array] = lax.add
    gradients: Callable[[jax.Array], tuple[jax.Array, jax.Array]] = lambda gates: (gates, gates)


_CELLS = {
    "lstm": _Cell(lambda gates, hx, cx: lstm_step(gates, cx)[:2]),
    "gru": _Cell(_gru_step, _gru_gates, _gru_gradients),
    "rnn_tanh": _Cell(lambda gates, hx, cx: (lax.tanh(gates), cx)),
    "rnn_relu": _Cell(lambda gates, hx, cx: (jax.nn.relu(gates), cx)),
}


def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    product = contract(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return product if bias is None else product + cast(bias, product.dtype)


def layer(input, hx, cx, w_ih, w_hh, b_ih, b_hh, cell: str, reverse: bool, train: bool = False):
    """All hidden states, the last one, and the last cell state of an LSTM; for `layer_gradients` all gates and cells.

    Args:
        input: (T, B, I).
        hx, cx: (B, H); cx is an LSTM's, else None.
        w_ih, w_hh: (G H, I) and (G H, H), for G gates; b_ih, b_hh: (G H,), or None.
        cell: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        reverse: from the last step to the first.
        train: False for gates and cells of size 0.
    """
    wide, kind = compute_type(input.dtype), _CELLS[cell]
    nothing = jnp.zeros((0,), wide)

    def step(state, of_input):
        hx, cx = state
        gates = kind.gates(of_input, _linear(cast(hx, input.dtype), w_hh, b_hh))
        hy, cy = kind.step(gates, hx, cx)
        out = cast(hy, input.dtype)
        return (cast(out, wide), cy), (out, gates if train else nothing, cx if train else nothing)

    start = cast(hx, wide), nothing if cx is None else cast(cx, wide)
    (hy, cy), (out, gates, cells) = lax.scan(step, start, _linear(input, w_ih, b_ih), reverse=reverse)
    if not train:
        gates = cells = nothing
    return out, cast(hy, hx.dtype), cast(cy, input.dtype if cx is None else cx.dtype), gates, cells


def layer_gradients(
    grads: Any, input: Any, hx: Any, cx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, cell: str, reverse: bool,
    out: Any, gates: Any = None, cells: Any = None
) -> list[jax.Array | None]:  # fmt: skip
    """The gradients of the seven tensors that `layer` takes; None for those that are absent.

    Args:
        grads: those of all hidden states, of the last one, of the last cell state, and in second derivatives of gates
            and cells; None for zeros.
        input, hx, cx, w_ih, w_hh, b_ih, b_hh, cell, reverse: as for `layer`.
        out, gates, cells: its results in training. Without gates and cells they are computed again.
    """
    wide, kind = compute_type(input.dtype), _CELLS[cell]
    before = jnp.concatenate([out[1:], hx[None]] if reverse else [hx[None], out[:-1]])[: len(out)]
    if gates is None:
        gates = kind.gates(_linear(input, w_ih, b_ih), _linear(before, w_hh, b_hh))
        cells = _cells(gates, cx, reverse) if cell == "lstm" else jnp.zeros((len(input), 0), wide)
    of_out, of_hy, of_cy, of_own_gates, of_own_cells = (*grads, None, None)[:5]

    def step(state, given):
        gates, hx, cx, of_out, of_own_gates, of_own_cell = given
        _, pull = jax.vjp(kind.step, gates, cast(hx, wide), cx)
        of_gates, of_hx, of_cx = pull((_plus(state[0], of_out), state[1]))
        of_gates = cast(_plus(of_gates, of_own_gates), input.dtype)
        of_hx += contract(kind.gradients(of_gates)[1], w_hh, (((1,), (0,)), ((), ())))
        return (of_hx, _plus(of_cx, of_own_cell)), of_gates

    start = (
        jnp.zeros(hx.shape, wide) if of_hy is None else cast(of_hy, wide),
        jnp.zeros(cells.shape[1:], wide) if of_cy is None or cx is None else cast(of_cy, wide),
    )
    given = gates, before, cells, of_out, of_own_gates, of_own_cells
    (of_hx, of_cx), of_gates = lax.scan(step, start, given, reverse=not reverse)
    of_input, of_state = map(_rows, kind.gradients(of_gates))
    of_rows = contract(of_input, w_ih, (((1,), (0,)), ((), ())))
    weights = product_over_rows(of_input, _rows(input)), product_over_rows(of_state, _rows(before))
    biases = [None if b is None else jnp.sum(cast(g, wide), 0) for b, g in ((b_ih, of_input), (b_hh, of_state))]
    found = of_rows.reshape(input.shape), of_hx, None if cx is None else of_cx, *weights, *biases
    operands = input, hx, cx, w_ih, w_hh, b_ih, b_hh
    return [None if g is None else cast(g, x.dtype) for g, x in zip(found, operands, strict=True)]


def _plus(x: jax.Array, other: jax.Array | None) -> jax.Array:
    return x if other is None else x + cast(other, x.dtype)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


def _cells(gates: jax.Array, cx: jax.Array, reverse: bool) -> jax.Array:
    """The cell states of an LSTM before each step."""

    def step(cx, gates):
        return lstm_step(gates, cx)[1], cx

    return lax.scan(step, cast(cx, gates.dtype), gates, reverse=reverse)[1]
