"""Attention of sequences, against each sequence's own softmax in double precision. ATen has no CPU kernels for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten

OPS = torch.ops.jaten
LENGTHS_Q, LENGTHS_K = [3, 0, 5], [4, 2, 3]
SIZE = 4


def _tensor(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _ends(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)


def _reference(query: Any, key: Any, value: Any, mask: Any = None, bias: Any = 0.0, scale: float = 0.5) -> Any:
    """One sequence: (length, heads, size). Rows that see nothing are 0; so is their logsumexp."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = torch.einsum("ihe,jhe->hij", query, key) * scale + bias
    mask = torch.ones(scores.shape[1:], dtype=torch.bool) if mask is None else mask
    scores = scores.masked_fill(~mask, -1e30)
    empty = ~mask.any(-1)
    weights = torch.softmax(scores, -1).masked_fill(empty[:, None], 0)
    return torch.einsum("hij,jhe->ihe", weights, value), torch.logsumexp(scores, -1).masked_fill(empty, 0)


def _band(length: int, size: int, shift: int, left: int | None, right: int | None) -> torch.Tensor:
    distance = torch.arange(length)[:, None] + shift - torch.arange(size)
    mask = torch.ones(length, size, dtype=torch.bool)
    mask = mask if left is None else mask & (distance <= left)
    return mask if right is None else mask & (distance >= -right)


def _compare(call: Any, reference: Any, inputs: list[torch.Tensor]) -> None:
    """Outputs, logsumexp and gradients; the call in float32, the reference in double."""
    results = []
    for fn, dtype in ((call, torch.float32), (reference, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        out, logsumexp = fn(*leaves)
        grad = _tensor(*out.shape, seed=9).to(dtype)
        gradients = torch.autograd.grad(out, leaves, grad, allow_unused=True)
        results.append([x.float() for x in (out, logsumexp, *gradients)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


WINDOWS = [(False, None, None), (True, None, None), (False, 2, 1), (True, 1, -1)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("causal", "left", "right"), WINDOWS)
def test_flash_dense(causal: bool, left: int | None, right: int | None) -> None:
    """The last query stands where the last key does, and two heads share a key where it is causal."""
    heads_k = 1 if causal else 2
    inputs = [_tensor(2, 3, 2, SIZE, seed=0), *(_tensor(2, 5, heads_k, SIZE, seed=s) for s in (1, 2))]
    limits = [None if w is None or w < 0 else w for w in (left, right)]
    mask = _band(3, 5, 2, limits[0], 0 if causal else limits[1])

    def call(query: Any, key: Any, value: Any) -> Any:
        return OPS._flash_attention_forward(
            query, key, value, None, None, 3, 5, 0.0, causal, False, scale=0.5, window_size_left=left,
            window_size_right=right,
        )[:2]  # fmt: skip

    def reference(*tensors: Any) -> Any:
        pairs = [_reference(*sample, mask) for sample in zip(*tensors, strict=True)]
        return tuple(torch.stack(x) for x in zip(*pairs, strict=True))

    _compare(call, reference, inputs)


def _packed_inputs() -> list[torch.Tensor]:
    return [_tensor(sum(n), 2, SIZE, seed=s) for s, n in enumerate((LENGTHS_Q, LENGTHS_K, LENGTHS_K))]


def _per_sequence(tensors: Any, mask: Any) -> list[Any]:
    parts = [x.split(n) for x, n in zip(tensors, (LENGTHS_Q, LENGTHS_K, LENGTHS_K), strict=True)]
    return [_reference(*sample, mask(sample[0].shape[0], sample[1].shape[0])) for sample in zip(*parts, strict=True)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("causal", "left", "right"), WINDOWS)
def test_flash_of_lengths(causal: bool, left: int | None, right: int | None) -> None:
    limits = [None if w is None or w < 0 else w for w in (left, right)]

    def call(query: Any, key: Any, value: Any) -> Any:
        return OPS._flash_attention_forward(
            query, key, value, _ends(LENGTHS_Q), _ends(LENGTHS_K), 5, 4, 0.0, causal, False, scale=0.5,
            window_size_left=left, window_size_right=right,
        )[:2]  # fmt: skip

    def reference(*tensors: Any) -> Any:
        pairs = _per_sequence(tensors, lambda n, m: _band(n, m, m - n, limits[0], 0 if causal else limits[1]))
        return torch.cat([out for out, _ in pairs]), torch.cat([lse for _, lse in pairs], 1)

    _compare(call, reference, _packed_inputs())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("mask_type", "window"), [(0, None), (1, None), (2, None), (1, 2), (2, 1)])
def test_efficient_of_lengths(mask_type: int, window: int | None) -> None:
    left, right = None if window is None else window - 1, 0 if mask_type else None
    longest = None if mask_type == 1 else 4  # None: no more than there are keys in all

    def call(query: Any, key: Any, value: Any) -> Any:
        out, logsumexp, _, _, longest_q, longest_k = OPS._efficient_attention_forward(
            query[None], key[None], value[None], None, _ends(LENGTHS_Q), _ends(LENGTHS_K), 5, longest, 0.0, mask_type,
            True, scale=0.5, window_size=window,
        )  # fmt: skip
        assert (longest_q, longest_k) == (5, longest or sum(LENGTHS_K))
        assert logsumexp.shape == (3, 2, 32)
        return out[0], torch.cat([logsumexp[i, :, :n] for i, n in enumerate(LENGTHS_Q)], 1)

    def reference(*tensors: Any) -> Any:
        pairs = _per_sequence(tensors, lambda n, m: _band(n, m, m - n if mask_type == 2 else 0, left, right))
        return torch.cat([out for out, _ in pairs]), torch.cat([lse for _, lse in pairs], 1)

    _compare(call, reference, _packed_inputs())


@pytest.mark.parametrize("shape", [(2, 2, 3, 5), (1, 2, 3, 5), (2, 1, 1, 5)])
def test_efficient_with_bias(shape: tuple[int, ...]) -> None:
    inputs = [_tensor(2, n, 2, SIZE, seed=s) for s, n in enumerate((3, 5, 5))] + [_tensor(*shape, seed=5)]

    def call(query: Any, key: Any, value: Any, bias: Any) -> Any:
        results = OPS._efficient_attention_forward(
            query, key, value, bias, None, None, None, None, 0.0, 1, True, scale=0.5
        )
        return results[0], results[1][..., :3]

    def reference(query: Any, key: Any, value: Any, bias: Any) -> Any:
        biases = bias.expand(2, 2, 3, 5)
        mask = _band(3, 5, 0, None, 0)
        pairs = [_reference(query[i], key[i], value[i], mask, biases[i]) for i in range(2)]
        return tuple(torch.stack(x) for x in zip(*pairs, strict=True))

    _compare(call, reference, inputs)


def test_flash_with_slopes_and_lengths_in_use() -> None:
    query, key, value = (_tensor(2, n, 2, SIZE, seed=s) for s, n in enumerate((3, 5, 5)))
    slopes, used = torch.tensor([0.5, 0.25]), torch.tensor([5, 3], dtype=torch.int32)
    out = OPS._flash_attention_forward(
        query.float(), key.float(), value.float(), None, None, 3, 5, 0.0, True, False, scale=0.5,
        alibi_slopes=slopes, seqused_k=used,
    )[0]  # fmt: skip
    for i, n in enumerate(used.tolist()):
        distance = torch.arange(3)[:, None] + n - 3 - torch.arange(n)
        bias = -slopes.double()[:, None, None] * distance.abs()
        expected, _ = _reference(query[i], key[i, :n], value[i, :n], _band(3, n, n - 3, None, 0), bias)
        torch.testing.assert_close(out[i], expected.float())


def test_flash_of_pages() -> None:
    query, pages, values = (
        _tensor(2, 3, 2, SIZE, seed=0),
        _tensor(6, 2, 2, SIZE, seed=1),
        _tensor(6, 2, 2, SIZE, seed=2),
    )
    table, used = torch.tensor([[4, 1], [0, 5]], dtype=torch.int32), torch.tensor([4, 3], dtype=torch.int32)
    out = OPS._flash_attention_forward(
        query.float(), pages.float(), values.float(), None, None, 3, 4, 0.0, False, False, scale=0.5, seqused_k=used,
        block_table=table,
    )[0]  # fmt: skip
    for i, n in enumerate(used.tolist()):
        key, value = (x[table[i]].reshape(4, 2, SIZE)[:n] for x in (pages, values))
        torch.testing.assert_close(out[i], _reference(query[i], key, value)[0].float())


def test_flash_of_float8() -> None:
    """The scales are one for each sequence and head of the keys, which two heads of the query share."""
    tensors = [
        _tensor(2, n, h, SIZE, seed=s).to(torch.float8_e4m3fn) for s, (n, h) in enumerate(((3, 4), (5, 2), (5, 2)))
    ]
    scales = [2.0 ** torch.arange(-2.0, 2.0).reshape(2, 2) * (s + 1) for s in range(3)]
    out = OPS._flash_attention_forward.quantized(
        *tensors, None, None, 3, 5, 0.0, False, False, *scales, scale=0.5
    )[0]  # fmt: skip
    for i in range(2):
        wide = [
            x[i].double() * s[i].repeat_interleave(x.shape[2] // 2)[:, None]
            for x, s in zip(tensors, scales, strict=True)
        ]
        torch.testing.assert_close(out[i], _reference(*wide)[0].bfloat16())
    swapped = [x.float().transpose(1, 2).to(x.dtype) for x in tensors]
    again = OPS._scaled_dot_product_flash_attention.quantized(*swapped, *scales, scale=0.5)[0]
    torch.testing.assert_close(again.transpose(1, 2), out)
    packed = OPS._flash_attention_forward.quantized(
        *(x.flatten(0, 1) for x in tensors), _ends([3, 3]), _ends([5, 5]), 3, 5, 0.0, False, False, *scales, scale=0.5
    )[0]  # fmt: skip
    torch.testing.assert_close(packed.reshape(out.shape), out)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("efficient", [True, False])
def test_dropout_is_the_same_in_the_backward(efficient: bool) -> None:
    """The output is linear in the values, so its gradient is the dropped weights, which the forward shows."""
    query, key = (_tensor(1, n, 1, SIZE, seed=s).float() for s, n in enumerate((3, 4)))
    value = torch.eye(4).reshape(1, 4, 1, 4).requires_grad_()
    torch.manual_seed(0)
    if efficient:
        out = OPS._efficient_attention_forward(query, key, value, None, None, None, None, None, 0.5, 0, True)[0]
    else:
        out = OPS._flash_attention_forward(query, key, value, None, None, 3, 4, 0.5, False, False)[0]
    weights = out.detach()[0, :, 0]
    assert 0 < (weights == 0).sum() < weights.numel()
    grad = _tensor(*out.shape, seed=3).float()
    (of_value,) = torch.autograd.grad(out, value, grad)
    torch.testing.assert_close(of_value[0, :, 0], weights.T @ grad[0, :, 0])


def test_what_has_no_gradient_says_so() -> None:
    query, key, value = (_tensor(1, 3, 1, SIZE, seed=s).float().requires_grad_() for s in range(3))
    out = OPS._flash_attention_forward(
        query, key, value, None, None, 3, 3, 0.0, False, False, alibi_slopes=torch.ones(1)
    )[0]
    with pytest.raises(RuntimeError, match="no gradient with alibi_slopes"):
        out.sum().backward()


CHOICES = [
    ((1, 2, 4, 8), (1, 2, 4, 8), {}),
    ((1, 2, 4, 8), (1, 2, 4, 8), {"dropout_p": 0.1}),
    ((1, 2, 4, 8), (1, 2, 5, 8), {"attn_mask": torch.ones(4, 5, dtype=torch.bool)}),
    ((1, 2, 4, 8), (1, 2, 5, 8), {"attn_mask": torch.ones(1, 2, 1, 5)}),
    ((1, 2, 4, 8), (1, 2, 5, 8), {"attn_mask": torch.ones(3, 1, 4, 5)}),
    ((1, 2, 4, 8), (1, 2, 5, 8), {"attn_mask": torch.ones(2, 4, 5)}),
    ((2, 4, 8), (2, 4, 8), {}),
    ((2, 4, 8), (2, 5, 8), {"attn_mask": torch.ones(2, 1, 5)}),
    ((2, 4, 8), (2, 5, 8), {"attn_mask": torch.ones(3, 4, 5)}),
    ((2, 4, 8), (1, 2, 4, 8), {}),
    ((4, 8), (4, 8), {}),
    ((1, 4, 4, 8), (1, 1, 4, 8), {}),
    ((1, 4, 4, 8), (1, 2, 4, 8), {}),
    ((1, 4, 4, 8), (1, 2, 4, 8), {"enable_gqa": True}),
    ((1, 2, 0, 8), (1, 2, 4, 8), {}),
]


@pytest.mark.parametrize(("query", "key", "kwargs"), CHOICES)
def test_choice_is_that_of_the_cpu(query: Any, key: Any, kwargs: Any) -> None:
    tensors = [torch.ones(query), torch.ones(key), torch.ones(key)]
    assert OPS._fused_sdp_choice(*tensors, **kwargs) == torch.ops.aten._fused_sdp_choice(*tensors, **kwargs)
