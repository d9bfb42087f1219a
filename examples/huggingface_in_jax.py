"""Trains a Llama of transformers with optax under plain `jax.jit`, beside the same training in PyTorch; then it writes.

    python examples/huggingface_in_jax.py                    # a minute or two on 2 cores
    python examples/huggingface_in_jax.py --plot curves.png  # with both loss curves as a picture

The model is PyTorch's code, unchanged. `jaten_ops.as_jax` makes it a JAX function of a dict of parameters, which optax
updates as any other pytree. It learns the help texts of Python, character by character. At the end it writes in one JAX
program: a `lax.while_loop` that carries the model's static cache.
"""

import argparse
import copy
import time
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import optax
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import jaten_ops

WINDOW = 64  # characters that the model sees at once
BATCH = 16
RATE, DECAY = 2e-3, 0.01
PROMPT = "The for statement is used to "


class Text:
    """The help texts as indices of characters, and batches of windows at random places."""

    def __init__(self) -> None:
        text = "\n\n".join(topics.values())
        self.characters = sorted(set(text))
        self.indices = torch.tensor([self.characters.index(c) for c in text])

    def batches(self, steps: int) -> list[torch.Tensor]:
        places = torch.Generator().manual_seed(0)
        starts = torch.randint(len(self.indices) - WINDOW, (steps, BATCH, 1), generator=places)
        return list(self.indices[starts + torch.arange(WINDOW)])

    def encode(self, text: str) -> torch.Tensor:
        return torch.tensor([[self.characters.index(c) for c in text]])

    def decode(self, indices: list[int]) -> str:
        return "".join(self.characters[i] for i in indices)


def build(vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def train_in_torch(model: nn.Module, batches: list[torch.Tensor]) -> list[float]:
    """The losses of PyTorch's own training, with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    losses = []
    for tokens in batches:
        loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_in_jax(model: nn.Module, batches: list[torch.Tensor]) -> tuple[list[float], dict[str, jax.Array]]:
    """The losses of the same training in JAX, and the trained parameters."""
    function = jaten_ops.as_jax(model)
    optimizer = optax.adamw(RATE, weight_decay=DECAY)

    @jax.jit
    def step(parameters, state, tokens):
        def loss(parameters):
            return function(parameters, tokens, labels=tokens, use_cache=False).loss

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    parameters = jaten_ops.to_jax(dict(model.named_parameters()))
    state, losses = optimizer.init(parameters), []
    for tokens in batches:
        # by to_jax the tokens keep their 64 bits, which PyTorch asks of labels
        parameters, state, loss = step(parameters, state, jaten_ops.to_jax(tokens.to("jax")))
        losses.append(loss)
    return [float(loss) for loss in losses], parameters


class Continuation(nn.Module):
    """The most probable next character, and the cache that is then filled; the first call makes the cache."""

    def __init__(self, model: LlamaForCausalLM, length: int) -> None:
        super().__init__()
        self.model, self.length = model, length

    def forward(self, tokens, cache=None):
        cache = cache or StaticCache(self.model.config, max_cache_len=self.length)
        logits = self.model(tokens, past_key_values=cache, use_cache=True).logits
        return logits[:, -1:].argmax(-1).int(), cache


def write(model: LlamaForCausalLM, parameters: dict[str, jax.Array], prompt: torch.Tensor, count: int) -> list[int]:
    """Characters that follow a prompt, (1, length), made in one program."""
    following = jaten_ops.as_jax(Continuation(model, prompt.shape[1] + count).eval())

    @jax.jit
    def generate(parameters, prompt):
        token, cache = following(parameters, prompt)
        written = jnp.zeros((1, count), token.dtype).at[:, :1].set(token)

        def step(state):
            number, token, cache, written = state
            token, cache = following(parameters, token, cache)
            return number + 1, token, cache, jax.lax.dynamic_update_slice(written, token, (0, number))

        return jax.lax.while_loop(lambda state: state[0] < count, step, (1, token, cache, written))[-1]

    inside = {f"model.{name}": array for name, array in parameters.items()}
    return generate(inside, prompt.numpy())[0].tolist()


def plot(curves: dict[str, list[float]], file: str) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415  # only for --plot

    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        plt.plot(losses, style, label=name)
    plt.xlabel("step")
    plt.ylabel("loss")
    plt.legend()
    plt.savefig(file)


def main(steps: int, plot_file: str | None = None) -> dict[str, list[float]]:
    text = Text()
    plain, batches = build(len(text.characters)), text.batches(steps)
    model = copy.deepcopy(plain).to("jax")

    begun = time.perf_counter()
    in_torch = train_in_torch(plain, batches)
    print(f"PyTorch:        {steps} steps in {time.perf_counter() - begun:.1f} s, loss {in_torch[-1]:.4f}")
    begun = time.perf_counter()
    in_jax, parameters = train_in_jax(model, batches)
    print(f"JAX with optax: {steps} steps in {time.perf_counter() - begun:.1f} s, loss {in_jax[-1]:.4f}")
    differences = [abs(a - b) for a, b in zip(in_torch, in_jax, strict=True)]
    # each step multiplies what rounding makes different
    print(
        f"The curves differ by {max(differences[:50]):.0e} at most in 50 steps, and by {max(differences):.0e} in all."
    )

    begun = time.perf_counter()
    written = write(model, parameters, text.encode(PROMPT), 60)
    print(f"Written in {time.perf_counter() - begun:.1f} s: {PROMPT}{text.decode(written)!r}")
    curves = {"PyTorch": in_torch, "JAX with optax": in_jax}
    if plot_file is not None:
        plot(curves, plot_file)
    return curves


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plot", metavar="FILE", help="write the loss curves as a picture")
    options = parser.parse_args()
    main(options.steps, options.plot)
