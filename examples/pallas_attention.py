"""Puts a Pallas flash attention, forward and backward, under an unmodified model of transformers, and trains it.

    python examples/pallas_attention.py            # needs transformers

The model calls `torch.nn.functional.scaled_dot_product_attention` and knows nothing of it. On a CPU Pallas interprets
its kernels, which shows that they are right, not that they are fast.

Source: FlashAttention-2 (Dao, 2023), https://arxiv.org/abs/2307.08691.
"""

import functools
import math

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl

import jaten_ops

BLOCK = 16  # rows of queries and of keys that one step of a kernel takes
LOWEST = -1e30  # the score of a key that a query must not see


def _scores(query, key, first_query, first_key, mask, scale, causal):
    """Scaled products of a block of queries and one of keys, (BLOCK, BLOCK)."""
    scores = scale * jnp.dot(query, key.T, preferred_element_type=jnp.float32)
    if causal:
        rows = first_query + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        columns = first_key + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        scores = jnp.where(rows >= columns, scores, LOWEST)
    return scores if mask is None else jnp.where(mask, scores, LOWEST)


def _forward(query_ref, key_ref, value_ref, *refs, scale, causal):
    """One block of queries against all keys that they see: the softmax is corrected as its maximum grows."""
    *masks, out_ref, logsumexp_ref = refs
    at = pl.program_id(1)
    query = query_ref[0]

    def step(i, state):
        out, highest, total = state
        where = pl.ds(i * BLOCK, BLOCK)
        mask = masks[0][0, :, where] if masks else None
        scores = _scores(query, key_ref[0, where], at * BLOCK, i * BLOCK, mask, scale, causal)
        new = jnp.maximum(highest, scores.max(1))
        weights, rest = jnp.exp(scores - new[:, None]), jnp.exp(highest - new)
        out = out * rest[:, None] + jnp.dot(weights, value_ref[0, where].astype(jnp.float32))
        return out, new, total * rest + weights.sum(1)

    empty = jnp.zeros(query.shape, jnp.float32), jnp.full(BLOCK, LOWEST), jnp.zeros(BLOCK)
    last = at + 1 if causal else key_ref.shape[1] // BLOCK
    out, highest, total = jax.lax.fori_loop(0, last, step, empty)
    sees = highest > LOWEST  # a query that sees no key gives zeros
    out_ref[0] = jnp.where(sees[:, None], out / total[:, None], 0).astype(out_ref.dtype)
    logsumexp_ref[0] = jnp.where(sees, highest + jnp.log(total), -LOWEST)


def _backward_query(query_ref, key_ref, value_ref, grad_ref, logsumexp_ref, dot_ref, *refs, scale, causal):
    """The gradient of one block of queries."""
    *masks, out_ref = refs
    at = pl.program_id(1)
    query, grad = query_ref[0], grad_ref[0]

    def step(i, found):
        where = pl.ds(i * BLOCK, BLOCK)
        key = key_ref[0, where]
        mask = masks[0][0, :, where] if masks else None
        scores = _scores(query, key, at * BLOCK, i * BLOCK, mask, scale, causal)
        weights = jnp.exp(scores - logsumexp_ref[0][:, None])
        of_weights = jnp.dot(grad, value_ref[0, where].T, preferred_element_type=jnp.float32)
        return found + scale * jnp.dot(weights * (of_weights - dot_ref[0][:, None]), key.astype(jnp.float32))

    last = at + 1 if causal else key_ref.shape[1] // BLOCK
    out_ref[0] = jax.lax.fori_loop(0, last, step, jnp.zeros(query.shape, jnp.float32)).astype(out_ref.dtype)


def _backward_key(query_ref, key_ref, value_ref, grad_ref, logsumexp_ref, dot_ref, *refs, scale, causal):
    """The gradients of one block of keys and of values."""
    *masks, out_ref, value_out_ref = refs
    at = pl.program_id(1)
    key, value = key_ref[0], value_ref[0].astype(jnp.float32)

    def step(i, found):
        where = pl.ds(i * BLOCK, BLOCK)
        query, grad = query_ref[0, where], grad_ref[0, where].astype(jnp.float32)
        mask = masks[0][0, where, :] if masks else None
        scores = _scores(query, key, i * BLOCK, at * BLOCK, mask, scale, causal)
        weights = jnp.exp(scores - logsumexp_ref[0, where][:, None])
        of_scores = scale * weights * (jnp.dot(grad, value.T) - dot_ref[0, where][:, None])
        return found[0] + jnp.dot(of_scores.T, query.astype(jnp.float32)), found[1] + jnp.dot(weights.T, grad)

    zeros = jnp.zeros(key.shape, jnp.float32)
    first = at if causal else 0
    of_key, of_value = jax.lax.fori_loop(first, query_ref.shape[1] // BLOCK, step, (zeros, zeros))
    out_ref[0], value_out_ref[0] = of_key.astype(out_ref.dtype), of_value.astype(out_ref.dtype)


def _call(kernel, operands, blocks, mask, results, **options):
    """Runs a kernel for each head and each block of its length.

    Args:
        kernel: takes references to operands, the mask if there is one, and results.
        operands: arrays (heads, length, size) or (heads, length).
        blocks: for each operand, whether the kernel takes a block of it or all of its length.
        mask: None, or (batch, length, length), of which a kernel takes a block of what it takes a block of.
        results: their shapes and dtypes; a block of each is written.
        options: of the kernel.
    """

    def spec(shape, in_blocks):
        block = (1, BLOCK if in_blocks else shape[1], *shape[2:])
        rest = (0,) * (len(shape) - 2)
        return pl.BlockSpec(block, lambda head, i: (head, i if in_blocks else 0, *rest))

    heads, length = results[0].shape[:2]
    specs = [spec(a.shape, whether) for a, whether in zip(operands, blocks, strict=True)]
    if mask is not None:
        each, rows = heads // mask.shape[0], blocks[0]
        block = (1, BLOCK, length) if rows else (1, length, BLOCK)
        specs.append(pl.BlockSpec(block, lambda head, i: (head // each, i, 0) if rows else (head // each, 0, i)))
        operands = [*operands, mask]
    return pl.pallas_call(
        functools.partial(kernel, **options),
        grid=(heads, length // BLOCK),
        in_specs=specs,
        out_specs=[spec(r.shape, True) for r in results],
        out_shape=results,
        interpret=jax.default_backend() == "cpu",
    )(*operands)


def _heads(x):
    return x.reshape(-1, *x.shape[-2:])


def attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa):
    """Attention of (batch, heads, length, size), and the logsumexp of its scores, which the backward pass needs."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    operands = [_heads(x) for x in (query, key, value)]
    mask = None if attn_mask is None else attn_mask[:, 0]
    results = [
        jax.ShapeDtypeStruct(operands[0].shape, query.dtype),
        jax.ShapeDtypeStruct(operands[0].shape[:2], jnp.float32),
    ]
    out, logsumexp = _call(_forward, operands, (True, False, False), mask, results, scale=scale, causal=is_causal)
    return out.reshape(query.shape), logsumexp


def attention_gradient(grads, args, results):
    """The gradients of the query, the key and the value."""
    query, key, value, mask, _, causal, scale, _ = args
    mask = None if mask is None else mask[:, 0]
    (grad, *_), (out, logsumexp) = grads, results
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    dot = jnp.sum(_heads(grad).astype(jnp.float32) * _heads(out), -1)
    operands = [*map(_heads, (query, key, value, grad)), logsumexp, dot]
    like = jax.ShapeDtypeStruct(operands[0].shape, query.dtype)
    rows, columns = (True, False, False, True, True, True), (False, True, True, False, False, False)
    (of_query,) = _call(_backward_query, operands, rows, mask, [like], scale=scale, causal=causal)
    of_key, of_value = _call(_backward_key, operands, columns, mask, [like, like], scale=scale, causal=causal)
    return {
        "query": of_query.reshape(query.shape),
        "key": of_key.reshape(key.shape),
        "value": of_value.reshape(key.shape),
    }


def suits(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa):
    """True for self-attention over whole blocks, with a mask for all heads or none; all else stays ATen's."""
    if query.ndim != 4 or not query.shape == key.shape == value.shape or query.shape[2] % BLOCK:
        return False
    masks = (query.shape[0], 1, query.shape[2], query.shape[2])
    return attn_mask is None or (attn_mask.dtype is torch.bool and attn_mask.shape == masks)


flash_attention = jaten_ops.override(
    "scaled_dot_product_attention",
    kernel=attention,
    gradient=attention_gradient,
    when=suits,
    static=["scale"],
    residuals=1,
)


def main():
    """Compares a training step with that without the override."""
    import transformers  # noqa: PLC0415  # only the comparison needs it

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=256,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    compiled = torch.compile(model, backend="jaten")
    tokens = torch.randint(256, (2, 64))

    def gradients():
        model.zero_grad()
        loss = compiled(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        return loss.item(), [p.grad.clone() for p in model.parameters()]

    loss, expected = gradients()
    with flash_attention:  # compiles anew
        own_loss, found = gradients()
    difference = max((a - b).abs().max().item() for a, b in zip(expected, found, strict=True))
    print(f"loss {loss:.6f}, with the Pallas kernels {own_loss:.6f}; gradients differ by {difference:.1e} at most")

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with flash_attention:
        for step in range(20):
            loss, _ = gradients()
            optimizer.step()
            if step % 5 == 4:
                print(f"step {step + 1}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
