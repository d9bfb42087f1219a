"""Models of transformers as JAX functions, beside plain torch: transformed, and generating with a static cache."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import jaten_ops

from .harness.crossings import crossed

transformers = pytest.importorskip("transformers", reason="needs transformers, of the extra `test`")

_WORDS, _TOKENS = 31, torch.arange(1, 17).reshape(2, 8) % 31
_NO_TOKENS = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
Inputs = dict[str, torch.Tensor]


def _bert() -> tuple[nn.Module, Inputs]:
    config = transformers.BertConfig(
        vocab_size=_WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8,
    )  # fmt: skip
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    labels = torch.tensor([0, 1])
    model = transformers.BertForSequenceClassification(config)
    return model, {"input_ids": _TOKENS, "attention_mask": mask, "labels": labels}


def _gpt2() -> tuple[nn.Module, Inputs]:
    config = transformers.GPT2Config(
        vocab_size=_WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=16, initializer_range=0.5, **_NO_TOKENS
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": _TOKENS, "labels": _TOKENS}


def _llama() -> tuple[nn.Module, Inputs]:
    config = transformers.LlamaConfig(
        vocab_size=_WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, max_position_embeddings=16, initializer_range=0.5, **_NO_TOKENS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": _TOKENS, "labels": _TOKENS}


def _vit() -> tuple[nn.Module, Inputs]:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    images = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8).sin()
    return transformers.ViTForImageClassification(config), {"pixel_values": images, "labels": torch.tensor([0, 1])}


def _whisper() -> tuple[nn.Module, Inputs]:
    config = transformers.WhisperConfig(
        vocab_size=_WORDS, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=8,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    sounds = torch.linspace(-1, 1, 2 * 8 * 16).reshape(2, 8, 16).cos()
    return transformers.WhisperForConditionalGeneration(config), {"input_features": sounds, "labels": _TOKENS}


def _t5() -> tuple[nn.Module, Inputs]:
    config = transformers.T5Config(
        vocab_size=_WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": _TOKENS, "labels": _TOKENS.flip(0)}


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "bert": _bert, "gpt2": _gpt2, "llama": _llama, "vit": _vit, "whisper": _whisper, "t5": _t5,
}  # fmt: skip


@cache
def _made(name: str) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def _values(name: str) -> Any:
    model, inputs = _made(name)
    with torch.no_grad():
        out = model(**inputs)
    return {"loss": out.loss, "logits": out.logits}


def _gradients(name: str, *examples: slice) -> Any:
    """The gradients for the whole batch, or for each of some parts of it, stacked."""
    model, inputs = _made(name)
    found = []
    for part in examples or (slice(None),):
        model.zero_grad()
        model(**{k: v[part] for k, v in inputs.items()}).loss.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad})
    return found[0] if not examples else {n: torch.stack([f[n] for f in found]) for n in found[0]}


def _loss(function: Any) -> Callable[..., Any]:
    return lambda parameters, inputs: function(parameters, **inputs).loss


def _jit(function: Any, parameters: Any, inputs: Any) -> Any:
    out = jax.jit(lambda p, i: function(p, **i))(parameters, inputs)
    return {"loss": out.loss, "logits": out.logits}


def _of_each_example(function: Any, parameters: Any, inputs: Any) -> Any:
    single = jax.tree.map(lambda a: a[:, None], inputs)
    return jax.jit(jax.vmap(jax.grad(_loss(function)), (None, 0)))(parameters, single)


def _of_an_ensemble(function: Any, parameters: Any, inputs: Any) -> Any:
    two = jax.tree.map(lambda a: jnp.stack([a, a]), parameters)
    found = jax.jit(jax.vmap(jax.grad(_loss(function)), (0, None)))(two, inputs)
    return jax.tree.map(lambda a: a[1], found)


# in JAX, and in torch
WAYS: dict[str, tuple[Callable[..., Any], Callable[[str], Any]]] = {
    "jit": (_jit, _values),
    "grad": (lambda f, p, i: jax.jit(jax.grad(_loss(f)))(p, i), _gradients),
    "of each example": (_of_each_example, lambda name: _gradients(name, slice(0, 1), slice(1, 2))),
    "of an ensemble": (_of_an_ensemble, _gradients),
    "checkpoint": (lambda f, p, i: jax.jit(jax.grad(jax.checkpoint(_loss(f))))(p, i), _gradients),
}


def _is_of_a_past_defect(name: str, way: str) -> bool:
    """True where the model shifts its labels by a write, in a batch."""
    return (name, way) == ("t5", "of each example")


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "way"), crossed(MODELS, WAYS, always=_is_of_a_past_defect))
def test_transformed(name: str, way: str) -> None:
    run, reference = WAYS[way]
    model, inputs = _made(name)
    moved = copy.deepcopy(model).to("jax")
    parameters = jaten_ops.to_jax({n: p for n, p in moved.named_parameters() if p.requires_grad})
    arrays = jaten_ops.to_jax({n: t.to("jax") for n, t in inputs.items()})
    got, expected = run(jaten_ops.as_jax(moved), parameters, arrays), reference(name)
    assert got.keys() == expected.keys()
    for part, value in expected.items():
        np.testing.assert_allclose(got[part], value, rtol=1e-3, atol=1e-5, err_msg=part)


@pytest.mark.exhaustive
def test_torchs_checkpoints_in_a_model() -> None:
    model, inputs = _made("llama")
    moved = copy.deepcopy(model).to("jax").train()
    moved.gradient_checkpointing_enable()
    function = _loss(jaten_ops.as_jax(moved))
    arrays = jaten_ops.to_jax({n: t.to("jax") for n, t in inputs.items()})
    gradient = jax.jit(jax.grad(function)).lower(jaten_ops.to_jax(dict(moved.named_parameters())), arrays)
    assert gradient.as_text().count("optimization_barrier") == 2  # the layers
    found = gradient.compile()(jaten_ops.to_jax(dict(moved.named_parameters())), arrays)
    for name, value in _gradients("llama").items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-5)


# Generation


class _Next(nn.Module):
    """The most probable next token, and the cache that is then filled; the first call makes the cache."""

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        self.model, self.length = model, length

    def forward(self, tokens: torch.Tensor, cache: Any = None) -> Any:
        cache = cache or transformers.StaticCache(self.model.config, max_cache_len=self.length)
        logits = self.model(tokens, past_key_values=cache, use_cache=True).logits
        return logits[:, -1:].argmax(-1).int(), cache


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.exhaustive)])
def test_generation_in_a_loop(name: str) -> None:
    model, _ = _made(name)
    prompt, count = _TOKENS[:, :4], 8
    expected = model.generate(prompt, max_new_tokens=count, do_sample=False)[:, 4:]
    assert len(expected.unique()) > 1
    module = _Next(copy.deepcopy(model), 4 + count).to("jax")
    following = jaten_ops.as_jax(module)

    @jax.jit
    def generate(parameters: Any, prompt: Any) -> Any:
        token, cache = following(parameters, prompt)
        start = 1, token, cache, jnp.zeros((len(prompt), count), token.dtype).at[:, :1].set(token)

        def step(state: Any) -> Any:
            number, token, cache, tokens = state
            token, cache = following(parameters, token, cache)
            return number + 1, token, cache, jax.lax.dynamic_update_slice(tokens, token, (0, number))

        return jax.lax.while_loop(lambda state: state[0] < count, step, start)[-1]

    found = generate(jaten_ops.to_jax(dict(module.named_parameters())), prompt.numpy())
    np.testing.assert_array_equal(found, expected)


def test_labels_of_32_bits_are_explained() -> None:
    model, inputs = _made("vit")
    function = jaten_ops.as_jax(copy.deepcopy(model).to("jax"))
    with pytest.raises(RuntimeError, match="Long") as error:
        function({}, inputs["pixel_values"].numpy(), labels=np.array([0, 1]))
    assert "Fix: to_jax(tensor.to('jax')) keeps" in "".join(error.value.__notes__)
