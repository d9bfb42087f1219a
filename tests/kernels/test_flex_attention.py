"""`flex_attention`: in compiled programs, and on the device `jax`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_leaves

import jaten_ops
from jaten_ops.kernels import flex_attention as kernels

from ..harness.crossings import crossed
from ..harness.paths import CLOSE, PATHS, compile_whole, randn, run

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _attention_case(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v, *_: flex_attention(q, k, v, **options)


def _biased(q, k, v, bias):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j + 15])


def _scaled_by_head(q, k, v, factor):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s / 4) * factor[h])


def _causal(q, k, v):
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i > 4), None, None, 16, 16, device=q.device)
    return flex_attention(q, k, v, block_mask=mask, return_lse=True)


def _of_documents(q, k, v):
    number = torch.arange(16, device=q.device) // 5
    mask = create_block_mask(lambda b, h, i, j: number[i] == number[j], 2, None, 16, 16, device=q.device)
    return flex_attention(q, k, v, block_mask=mask)


def _grouped(q, k, v):
    return flex_attention(q, k[:, :1], v[:, :1, :, :4], enable_gqa=True, return_lse=True, scale=0.3)


def _dense(q, k, v, scale=None, change=lambda s: s, kept=None):
    """The definition, written out: attention, and the logarithm of the sum of exponentials."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = change(q @ k.transpose(-2, -1) * (scale or 1 / math.sqrt(q.shape[-1])))
    if kept is None:
        return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)
    some = kept.any(-1)
    filled = torch.where(some[:, None], scores.masked_fill(~kept, -math.inf), 0.0)  # no NaN in gradients
    weights = torch.where(some[:, None], torch.softmax(filled, -1), 0.0)
    return weights @ v, torch.where(some, filled.logsumexp(-1), -math.inf)


_I, _J = torch.arange(16)[:, None], torch.arange(16)
_TENSORS = (randn(2, 2, 16, 8), randn(2, 2, 16, 8), randn(2, 2, 16, 8))

# function, what it means, inputs
ATTENTION: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "plain": (_attention_case(), lambda q, k, v: _dense(q, k, v)[:1], _TENSORS),
    "bias": (_biased, lambda q, k, v, b: _dense(q, k, v, change=lambda s: s + b[:, _I - _J + 15])[:1],
             (*_TENSORS, randn(2, 31))),
    "scaled by head": (_scaled_by_head,
                       lambda q, k, v, f: _dense(q, k, v, change=lambda s: torch.tanh(s / 4) * f[:, None, None])[:1],
                       (*_TENSORS, randn(2))),
    "causal, rows without keys": (_causal, lambda q, k, v: _dense(q, k, v, kept=(_I >= _J) & (_I > 4)), _TENSORS),
    "documents": (_of_documents, lambda q, k, v: _dense(q, k, v, kept=_I // 5 == _J // 5)[:1], _TENSORS),
    "grouped heads": (_grouped, lambda q, k, v: _dense(q, k[:, :1], v[:, :1, :, :4], 0.3), _TENSORS),
}  # fmt: skip


def _finite(fn: Callable[..., Any]) -> Callable[..., Any]:
    """With a number for the logarithm of a sum of nothing, which has no gradient to compare."""
    return lambda *args: [torch.where(r == -math.inf, -100, r) for r in tree_leaves(fn(*args))]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("name", "path"), crossed(ATTENTION, PATHS, always=lambda name, path: path == "compiled on the device")
)
def test_attention(name: str, path: str) -> None:
    fn, meant, args = ATTENTION[name]
    compiles, device = PATHS[path]
    trains = device == "jax"  # torch refuses gradients on the CPU
    got = run(_finite(compile_whole(fn) if compiles else fn), args, trains, device)
    torch.testing.assert_close(got, run(_finite(meant), args, trains), **CLOSE)


@pytest.mark.exhaustive
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["causal, rows without keys", "bias"])
def test_attention_for_some_queries_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_SCORES", 2 * 2 * 16 * 5)
    fn, meant, args = ATTENTION[name]
    got = run(_finite(compile_whole(fn)), args, True, "jax")
    torch.testing.assert_close(got, run(_finite(meant), args, True), **CLOSE)


@pytest.mark.exhaustive
def test_gradients_of_what_a_score_mod_captures() -> None:
    def run(score_mod: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.to("jax") for t in _TENSORS)
        x = x.to("jax").requires_grad_()
        compile_whole(lambda q, k, v, x: flex_attention(q, k, v, score_mod=score_mod(x)))(
            q, k, v, x
        ).sin().sum().backward()
        return x.grad.cpu()

    one = torch.tensor(0.7, requires_grad=True)
    _dense(*_TENSORS, change=lambda s: s * one)[0].sin().sum().backward()
    torch.testing.assert_close(run(lambda x: lambda s, b, h, i, j: s * x, one.detach()), one.grad)
    for score_mod in (
        lambda x: lambda s, b, h, i, j: s * x[h, j] * x.mean(),
        lambda x: lambda s, b, h, i, j: s + x[h][j],
    ):
        with pytest.raises(jaten_ops.JatenError, match="index"):
            run(score_mod, randn(2, 16))


@pytest.mark.exhaustive
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_attention_in_other_dtypes(dtype: torch.dtype) -> None:
    args = tuple(x.to(dtype) for x in _TENSORS)
    exact = run(ATTENTION["documents"][1], tuple(x.double() for x in args), True)
    got = run(compile_whole(_of_documents), args, True, "jax")
    # the saved logarithms are in single precision; of bfloat16 some roundings, against an exact result
    tolerance = 1e-6 if dtype == torch.float64 else 5e-2
    torch.testing.assert_close([g.double() for g in got], exact, rtol=tolerance, atol=tolerance)


@pytest.mark.exhaustive
def test_attention_of_sizes_that_change() -> None:
    compiled = compile_whole(_attention_case(score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1), dynamic=True)
    for length in (8, 12):
        q = randn(2, 2, length, 8)
        expected = flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)
        torch.testing.assert_close(compiled(q, q, q), expected, **CLOSE)
