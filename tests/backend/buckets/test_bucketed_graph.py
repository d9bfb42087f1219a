"""Sizes of jaten's choice: what is compiled, and that nothing of what is added is seen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from jaten_ops.backend import compile_log
from jaten_ops.backend.buckets import padded_tensors


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    monkeypatch.setattr(padded_tensors, "FILL", float("nan"))
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


def _compiles() -> int:
    return counters["jaten"]["compiles"]


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> Any:
    """A step of a decoder, whose cache grows by what is new."""
    keys, values = torch.cat([keys, query[:, :, -1:]], 2), torch.cat([values, query[:, :, -1:] * 2], 2)
    found = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return found, keys, values


@pytest.mark.sampled(2)
@pytest.mark.parametrize("masked", [False, True])
def test_a_cache_that_grows_compiles_three_times(masked: bool) -> None:
    compiled = torch.compile(_attend, backend="jaten")
    keys, values = torch.randn(2, 2, 4, 3, 8).unbind(0)
    expected = keys, values
    with torch.no_grad():
        for step in range(12):
            query = torch.randn(2, 4, 1, 8)
            mask = (torch.arange(step + 4) >= torch.tensor([0, 2])[:, None])[:, None, None] if masked else None
            found, keys, values = compiled(query, keys, values, mask)
            want, *expected = _attend(query, *expected, mask)
            torch.testing.assert_close((found, keys, values), (want, *expected), check_stride=True)
    assert _compiles() == 3  # Dynamo's first program, the second one as it is, and rounded


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"buckets": "auto"}, {"buckets": "off"}])
def test_the_third_size_is_rounded_and_told_of(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(lambda x: x.softmax(0), backend="jaten", options=options)
    with caplog.at_level(logging.INFO, "jaten_ops"):
        for count in (3, 5, 9, 5, 3, 17):
            x = torch.randn(count, 4)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), x.softmax(0))
    told = [r for r in caplog.records if r.name == compile_log.__name__ and "are rounded" in r.getMessage()]
    assert (_compiles(), len(told)) == ((4, 0) if options.get("buckets") == "off" else (3, 1))


CHOSEN: dict[str, Callable[..., torch.Tensor]] = {
    "mask": lambda x: (x[x[:, 0] > 0] @ x.T).softmax(0).cumsum(0)[-1],
    "nonzero": lambda x: torch.zeros(9).index_add(0, (x > 0).nonzero()[:, 0], x[x > 0]),
    "loss": lambda x: (x @ x.T)[x[:, 0] > 0].square().mean(),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("name", CHOSEN)
def test_counts_of_what_is_chosen_do_not_compile_each(name: str, captured: bool) -> None:
    program, seen = CHOSEN[name], []
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=captured):
        compiled = torch.compile(lambda x: program(x), backend="jaten")
        for count in (2, 3, 5, 4, 8, 6, 7, 2):
            x = torch.randn(9, 4).abs() * (2 * (torch.arange(9) < count)[:, None] - 1)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), program(x))
            seen.append(_compiles())
    assert seen[-1] == seen[3]


# Graphs whose sizes, or numbers, once went wrong: a size that is 0 in the larger program, numbers that nothing uses
SIZES: dict[str, Callable[..., Any]] = {
    "chunks": lambda x: torch.stack([c.sum(1) * i for i, c in enumerate(x.chunk(2, 1))]),
    "side by side": lambda x: torch.cat([x, x[1:], x[:-1]]),
    "diagonal": lambda x: (x @ x.T).diagonal(),
    "sums so far": lambda x: x.cumsum(0),
    "norm": lambda x: nn.functional.batch_norm(x, None, None, training=True),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SIZES)
def test_gradients_with_sizes_that_are_rounded(name: str) -> None:
    compiled = torch.compile(lambda x: SIZES[name](x), backend="jaten", dynamic=True)
    for count in (9, 4, 6, 5, 7):
        x = torch.randn(count, count, requires_grad=True)
        got, expected = compiled(x), SIZES[name](x)
        torch.testing.assert_close(got, expected)
        weight = torch.randn_like(expected)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, weight)[0] for y in (got, expected)))


def _printed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.ops.aten._print("a line")
    return x + 1, x[1:]


def test_a_program_that_prints_is_rounded() -> None:
    compiled = torch.compile(_printed, backend="jaten", dynamic=True)
    for size in range(3, 8):
        x = torch.arange(float(size))
        torch.testing.assert_close(compiled(x), (x + 1, x[1:]))
    assert _compiles() == 2


def _doubled(x: torch.Tensor, start: int) -> None:
    x[start : start + 1] *= 2


EXACT: dict[str, Callable[..., Any]] = {
    "a part that is written": lambda x: _doubled(x, 1),
    "convolution": lambda x: nn.functional.conv1d(x[:, None], torch.ones(1, 1, 2)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EXACT)
def test_what_cannot_be_rounded_is_exact_and_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    programs = [
        torch.compile(lambda x: EXACT[name](x), backend="jaten", dynamic=True, options={"buckets": how})
        for how in ("auto", "off")
    ]
    with caplog.at_level(logging.INFO, "jaten_ops"):
        for count in (3, 5, 8, 13):
            results = []
            for program in programs:
                torch.manual_seed(0)
                x = torch.ones(count, 4)
                results.append((program(x), x))
            torch.testing.assert_close(*results, rtol=0, atol=0)
    told = [r for r in caplog.records if "compiles for each size" in r.getMessage()]
    assert (len(told), _compiles()) == (1, 8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("how", [{}, {"num_beams": 2}, {"cache_implementation": "static"}])
def test_generate_compiles_at_most_four_times(kind: str, how: dict[str, Any]) -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    model: Any = (
        LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, **sizes))
        if kind == "llama"
        else GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2))
    ).eval()
    given = torch.randint(3, 64, (2, 5))
    padded = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **how}
    expected = model.generate(given, attention_mask=padded, **options)
    model.forward = torch.compile(model.forward, backend="jaten")
    assert torch.equal(model.generate(given, attention_mask=padded, **options), expected)
    assert _compiles() <= 4


def test_many_calls_make_the_sizes_tighter(caplog: pytest.LogCaptureFixture) -> None:
    """The backward takes what the forward has saved as it is, in the larger memory, which no one else sees."""
    w = torch.randn(16, 16, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sin() @ w).softmax(0)

    compiled = torch.compile(fn, backend="jaten", dynamic=True)
    with caplog.at_level("INFO", "jaten_ops"):
        for call in range(80):
            x, y = (torch.randn(300 + (call * 37) % 200, 16).div(8).requires_grad_() for _ in range(2))
            y.data.copy_(x.data)
            got, expected = compiled(x), fn(y)
            torch.testing.assert_close(got, expected)
            assert got.untyped_storage().nbytes() == got.numel() * got.itemsize
            grads = [torch.autograd.grad(z.square().sum(), (v, w)) for z, v in ((got, x), (expected, y))]
            torch.testing.assert_close(*grads)
            assert grads[0][0].untyped_storage().nbytes() == x.numel() * x.itemsize
    told = [r.getMessage() for r in caplog.records if "after many calls" in r.getMessage()]
    assert len(told) == 2 and all("up to 512" in text for text in told)
    assert _compiles() == 2 * 4  # two sizes as they are, rounded, and tighter


def _scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.mul_(2) * y).softmax(0)


def _with_ones(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:, 0] = 1
    return x.mean(0) + y.max(0).values


@pytest.mark.parametrize("fn", [_scaled, _with_ones, lambda x, y: (x @ y.T).softmax(0).sum(0)])
def test_inputs_in_front_of_other_memory(fn: Callable[..., torch.Tensor]) -> None:
    """The rest of the memory is read as what is added would be, and is left as it is."""
    compiled = torch.compile(fn, backend="jaten", dynamic=True)
    for n in (5, 9, 14, 23, 31, 17, 40):
        memory, y = torch.full((1024, 4), float("nan")), torch.randn(n, 4)
        memory[:n] = torch.randn(n, 4)
        expected = memory.clone()
        torch.testing.assert_close(compiled(memory[:n], y), fn(expected[:n], y))
        torch.testing.assert_close(memory, expected, equal_nan=True)
