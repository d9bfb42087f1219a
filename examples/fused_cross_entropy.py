"""Replaces `linear_cross_entropy` by one that never makes the logits, and shows the memory that a training step saves.

    python examples/fused_cross_entropy.py

The loss of a language model takes the logits of all tokens, (tokens, vocabulary), several times the memory of all else.
Here they are made for a chunk of the tokens at a time, in the forward pass for the loss, and again in the backward pass
for the gradients.

Source: Cut Your Losses in Large-Vocabulary Language Models (Wijmans et al., 2024), https://arxiv.org/abs/2411.09009.
"""

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

import jaten_ops

CHUNK = 256  # tokens whose logits are there at a time
TOKENS, WIDTH, VOCABULARY = 2048, 128, 16384


def _chunks(x, fill=0):
    """The rows of an array, CHUNK at a time, with rows of `fill` after the last."""
    missing = -len(x) % CHUNK
    padded = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
    return padded.reshape(-1, CHUNK, *x.shape[1:])


def _settings(args):
    hidden, weight, target, _, _, _, ignored, _ = args
    ignored = -100 if ignored is None else ignored
    return hidden, weight, target, ignored, jnp.maximum(jnp.sum(target != ignored), 1)


def loss(input, linear_weight, target, *, linear_bias, weight, reduction, ignore_index, label_smoothing):
    """The mean cross entropy of (tokens, width) with (vocabulary, width), and the logsumexp of each token's logits."""
    args = input, linear_weight, target, linear_bias, weight, reduction, ignore_index, label_smoothing
    hidden, matrix, target, ignored, count = _settings(args)

    def of_chunk(total, chunk):
        rows, classes = chunk
        logits = jnp.dot(rows, matrix.T, preferred_element_type=jnp.float32)
        logsumexp = jax.nn.logsumexp(logits, 1)
        picked = jnp.take_along_axis(logits, jnp.maximum(classes, 0)[:, None], 1)[:, 0]
        return total + jnp.sum(jnp.where(classes != ignored, logsumexp - picked, 0)), logsumexp

    chunks = _chunks(hidden), _chunks(target, ignored)
    total, logsumexp = jax.lax.scan(of_chunk, jnp.zeros((), jnp.float32), chunks)
    return (total / count).astype(hidden.dtype), logsumexp


def loss_gradient(grads, args, results):
    """The gradients of the hidden states and of the matrix, with the logits made again."""
    hidden, matrix, target, ignored, count = _settings(args)
    scale = grads[0].astype(jnp.float32) / count

    def of_chunk(of_matrix, chunk):
        rows, classes, logsumexp = chunk
        logits = jnp.dot(rows, matrix.T, preferred_element_type=jnp.float32)
        wrong = jnp.exp(logits - logsumexp[:, None]) - jax.nn.one_hot(classes, len(matrix))
        wrong = jnp.where((classes != ignored)[:, None], scale * wrong, 0).astype(rows.dtype)
        return of_matrix + jnp.dot(wrong.T, rows, preferred_element_type=jnp.float32), jnp.dot(wrong, matrix)

    chunks = _chunks(hidden), _chunks(target, ignored), results[1]
    of_matrix, of_hidden = jax.lax.scan(of_chunk, jnp.zeros(matrix.shape, jnp.float32), chunks)
    of_hidden = of_hidden.reshape(-1, hidden.shape[1])[: len(hidden)]
    return {"input": of_hidden, "linear_weight": of_matrix.astype(matrix.dtype)}


def suits(input, linear_weight, target, *, linear_bias, weight, reduction, ignore_index, label_smoothing):
    """True for a mean over tokens with a class each."""
    plain = linear_bias is None and weight is None and reduction == "mean" and label_smoothing == 0
    return plain and input.ndim == 2 and linear_weight.ndim == 2 and not target.is_floating_point()


fused = jaten_ops.override("linear_cross_entropy", kernel=loss, gradient=loss_gradient, when=suits, residuals=1)


def training_step(seed=0):
    """A step that trains an embedding and a head by their loss, with a batch for it, on the device `jax`."""
    torch.manual_seed(seed)
    embedding, head = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    model = torch.nn.ModuleList([embedding, head]).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(tokens, targets):
        found = F.linear_cross_entropy(embedding(tokens), head.weight, targets)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found

    return jaten_ops.compile_step(step), torch.randint(VOCABULARY, (2, TOKENS), device="jax")


def measured(steps=4):
    """The losses of some steps, and the bytes that XLA's executable of a step takes for temporary values."""
    step, batch = training_step()
    losses = [step(*batch).item() for _ in range(steps)]
    return losses, step.executable_for(*batch).memory_analysis().temp_size_in_bytes


def main():
    """Compares some steps, and the memory of one, with and without the override."""
    expected, before = measured()
    with fused:
        found, after = measured()
    print("losses        ", " ".join(f"{x:.5f}" for x in expected))
    print("with the fused", " ".join(f"{x:.5f}" for x in found))
    print(f"temporary memory of the executable: {before / 2**20:.1f} MiB, with the fused {after / 2**20:.1f} MiB")
    print(f"the logits of all tokens are {TOKENS * VOCABULARY * 4 / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
