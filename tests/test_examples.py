"""Programs in examples/ whose parts are worth a test: overrides with kernels of one's own, a model trained in JAX."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import jaten_ops

from .harness.overridden import differentiated

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_override_left")


def _example(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _attention(x: torch.Tensor, kind: str) -> torch.Tensor:
    mask = torch.ones(32, 32, dtype=torch.bool, device=x.device).tril().expand(2, 1, 32, 32).clone()
    mask[1, :, 5] = False  # a query that sees no key
    options = {"causal": {"is_causal": True}, "mask": {"attn_mask": mask}}[kind]
    return F.scaled_dot_product_attention(x, 2 * x, x.cos(), **options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["mask", pytest.param("causal", marks=pytest.mark.exhaustive)])
def test_flash_attention(kind: str) -> None:
    example = _example("pallas_attention")
    x = torch.randn(2, 2, 32, 8)
    expected = differentiated(lambda x: _attention(x, kind), x)
    compiled = torch.compile(
        lambda x: _attention(x, kind), backend="jaten", options={"overrides": [example.flash_attention]}
    )
    torch.testing.assert_close(differentiated(compiled, x), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.exhaustive
def test_flash_attention_under_a_model_of_transformers(caplog: pytest.LogCaptureFixture) -> None:
    transformers = pytest.importorskip("transformers")
    example = _example("pallas_attention")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=32,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(32, (2, 32))
    found = []
    with caplog.at_level("INFO", "jaten_ops.overrides"):
        for options in (None, {"overrides": [example.flash_attention]}):
            model.zero_grad()
            loss = torch.compile(model, backend="jaten", options=options)(tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-4)
    assert [r.getMessage().partition("(")[0] for r in caplog.records] == ["scaled_dot_product_attention"]


@pytest.mark.exhaustive
def test_fused_cross_entropy_saves_the_memory_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    example = _example("fused_cross_entropy")
    sizes = {"TOKENS": 500, "WIDTH": 16, "VOCABULARY": 4096, "CHUNK": 64}  # the last chunk is not full
    for name, size in sizes.items():
        monkeypatch.setattr(example, name, size)
    losses, before = example.measured(3)
    with example.fused:
        its_losses, after = example.measured(3)
    assert its_losses == pytest.approx(losses, rel=1e-5) and losses == sorted(losses, reverse=True)
    logits = 4 * sizes["TOKENS"] * sizes["VOCABULARY"]
    assert before - after > logits > 4 * after


def test_fused_cross_entropy_leaves_tokens_out() -> None:
    example = _example("fused_cross_entropy")
    hidden, matrix, target = torch.randn(7, 8), torch.randn(16, 8), torch.tensor([1, 2, -100, 3, 15, -100, 0])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.linear_cross_entropy(x, matrix.to(x.device), target.to(x.device), ignore_index=-100)

    expected = differentiated(loss, hidden)
    with example.fused:
        torch.testing.assert_close(differentiated(loss, hidden.to("jax")), expected, atol=1e-6, rtol=1e-5)
        assert jaten_ops.Override is type(example.fused)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_kernel_set_is_registered_by_a_loop(platform: str) -> None:
    example = _example("kernel_set")
    namespace = f"example_set_{platform}"
    example.register(namespace, example.SET, platform)  # "tpu": the Pallas kernel, interpreted
    ops = getattr(torch.ops, namespace)
    layer = example.GatedLayer(8, 16, ops)
    x = torch.randn(3, 8)
    normalized = F.rms_norm(x, (8,), layer.weight, 1e-6)
    expected = x + layer.down(layer.up(normalized) * F.silu(layer.gate(normalized)))
    torch.testing.assert_close(layer(x), expected)
    torch.autograd.gradcheck(ops.gated, tuple(torch.randn(3, 4).double().requires_grad_() for _ in range(2)))
    losses = example.train(layer, 120)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.exhaustive
def test_a_model_of_transformers_trained_in_jax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("transformers", "optax", "matplotlib"):
        pytest.importorskip(module, reason="needs the extra `examples`")
    example = _example("huggingface_in_jax")
    monkeypatch.setattr(example, "BATCH", 2)
    one, two = example.main(8, str(tmp_path / "curves.png")).values()
    assert two == pytest.approx(one, rel=1e-4) and two[-1] < two[0]
    assert (tmp_path / "curves.png").stat().st_size > 1000
