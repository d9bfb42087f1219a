"""Batches, sequences and sets of indices that are empty: values, shapes and gradients are ATen's on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaten_ops  # noqa: F401  # the device jax

from ..harness.crossings import crossed
from ..harness.paths import CLOSE, PATHS, compile_whole, randn, run

Call = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _of(module: nn.Module, *shapes: tuple[int, ...]) -> Call:
    return module, tuple(randn(*shape) for shape in shapes)


def _index(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


MODULES: dict[str, Call] = {
    "linear": _of(nn.Linear(4, 3), (2, 0, 4)),
    "bilinear": _of(nn.Bilinear(3, 4, 2), (0, 3), (0, 4)),
    "conv1d": _of(nn.Conv1d(2, 4, 3), (0, 2, 8)),
    "conv2d": _of(nn.Conv2d(2, 4, 3, groups=2, padding=1, stride=2), (0, 2, 8, 8)),
    "conv3d": _of(nn.Conv3d(2, 4, 3), (0, 2, 6, 6, 6)),
    "conv_transpose2d": _of(nn.ConvTranspose2d(2, 4, 3, stride=2), (0, 2, 8, 8)),
    "batch_norm": _of(nn.BatchNorm2d(2).eval(), (0, 2, 4, 4)),
    "group_norm": _of(nn.GroupNorm(2, 4), (0, 4, 3, 3)),
    "group_norm of no pixels": _of(nn.GroupNorm(2, 4), (2, 4, 0)),
    "group_norm of nothing": _of(nn.GroupNorm(2, 4), (0, 4, 0, 3)),
    "layer_norm": _of(nn.LayerNorm(4), (0, 4)),
    "instance_norm": _of(nn.InstanceNorm2d(2), (0, 2, 4, 4)),
    "max_pool2d": _of(nn.MaxPool2d(2), (0, 2, 8, 8)),
    "avg_pool3d": _of(nn.AvgPool3d(2), (0, 2, 4, 4, 4)),
    "adaptive_max_pool2d": _of(nn.AdaptiveMaxPool2d(2), (0, 2, 8, 8)),
    "adaptive_avg_pool1d": _of(nn.AdaptiveAvgPool1d(2), (0, 2, 8)),
    "fractional_max_pool2d": _of(nn.FractionalMaxPool2d(2, output_size=3), (0, 2, 8, 8)),
    "encoder": _of(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (0, 3, 8)),
    "attention": _of(nn.MultiheadAttention(8, 2, batch_first=True), (2, 0, 8), (2, 3, 8), (2, 3, 8)),
    "lstm": _of(nn.LSTM(4, 3, batch_first=True), (0, 5, 4)),
    "gru": _of(nn.GRU(4, 3, batch_first=True), (0, 5, 4)),
    "nearest": _of(nn.Upsample(scale_factor=2), (0, 2, 4, 4)),
    "nearest of volumes": _of(nn.Upsample(scale_factor=2, mode="nearest-exact"), (0, 2, 4, 4, 4)),
    "bicubic": _of(nn.Upsample(scale_factor=2, mode="bicubic"), (0, 2, 4, 4)),
    "unfold": _of(nn.Unfold(2), (0, 2, 4, 4)),
    "fold": _of(nn.Fold((4, 4), 2), (0, 8, 9)),
    "reflection": _of(nn.ReflectionPad2d(1), (0, 2, 4, 4)),
}

FUNCTIONS: dict[str, Call] = {
    "embedding": (lambda w, i: F.embedding(i, w), (randn(5, 3), _index(0))),
    "embedding by frequency": (
        lambda w, i: F.embedding(i, w, padding_idx=1, scale_grad_by_freq=True),
        (randn(5, 3), _index(2, 0)),
    ),
    "bags": (lambda w, i, o: F.embedding_bag(i, w, o), (randn(5, 3), _index(0), _index(2))),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (randn(2, 2, 0, 4),)),
    "grouped attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (randn(0, 4, 3, 4), randn(0, 2, 3, 4)),
    ),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (randn(0, 2, 4, 4), randn(0, 3, 3, 2))),
    "max_unpool2d": (lambda x, i: F.max_unpool2d(x, i, 2), (randn(0, 2, 3, 3), _index(0, 2, 3, 3))),
    "cross_entropy": (F.cross_entropy, (randn(0, 4), _index(0))),
    "mse_loss": (F.mse_loss, (randn(0, 4), randn(0, 4))),
    "smooth_l1_loss": (F.smooth_l1_loss, (randn(0, 4), randn(0, 4))),
    "huber_loss": (F.huber_loss, (randn(0, 4), randn(0, 4))),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, torch.ones_like(x)), (randn(0, 4),)),
    "cdist": (torch.cdist, (randn(0, 2, 3), randn(0, 4, 3))),
    "product over nothing": (torch.matmul, (randn(2, 0), randn(0, 3))),
    "gather": (lambda x, i: x.gather(1, i), (randn(3, 4), _index(3, 0))),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), (randn(3, 4), _index(3, 0), randn(3, 0))),
    "index_put": (lambda x, i, v: x.index_put((i,), v), (randn(3, 4), _index(0), randn(0, 4))),
    "sort": (lambda x: x.sort(1)[0], (randn(4, 0),)),
    "topk": (lambda x: x.topk(2, 1)[0], (randn(0, 4),)),
    "cumprod": (lambda x: x.cumprod(1), (randn(4, 0),)),
    "median": (lambda x: x.median(1)[0], (randn(0, 4),)),
    "logsumexp": (lambda x: x.logsumexp(1), (randn(0, 4),)),
    "inverse": (torch.linalg.inv, (randn(0, 3, 3),)),
    "singular values": (torch.linalg.svdvals, (randn(2, 0, 3),)),
    "eigenvalues": (torch.linalg.eigvalsh, (randn(0, 0),)),
    "averages of integers": (lambda x: F.adaptive_avg_pool1d(x, 2), (torch.zeros(0, 2, 8, dtype=torch.int32),)),
    "averages of bools": (lambda x: F.adaptive_avg_pool2d(x, 2), (torch.zeros(2, 0, 8, 8, dtype=torch.bool),)),
    "no averages of integers": (lambda x: F.adaptive_avg_pool1d(x, 0), (torch.zeros(2, 2, 8, dtype=torch.int64),)),
    "max_unpool2d of integers": (lambda x: F.max_unpool2d(x, x.long(), 2), (torch.zeros(0, 2, 3, 3).int(),)),
    "complex window of one": (lambda x: torch.hann_window(1, dtype=x.dtype, device=x.device), (_index(1).cfloat(),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), (randn(0, 4),)),
}

CALLS = {**{f"nn {name}": call for name, call in MODULES.items()}, **FUNCTIONS}
# torch's own fakes take a number for a bool, before a backend is asked
UNCAPTURED = {"nn nearest", "nn nearest of volumes"}


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("name", "path"), crossed(CALLS, PATHS))
def test_values_and_gradients(name: str, path: str, fresh_dynamo: None) -> None:
    compiled, device = PATHS[path]
    if compiled and name in UNCAPTURED:
        pytest.skip("torch captures no such program")
    call, args = CALLS[name]
    trains = all(a.is_floating_point() for a in args)
    there = copy.deepcopy(call).to(device) if isinstance(call, nn.Module) else call
    with torch._dynamo.config.patch(allow_rnn=True):
        got = run(compile_whole(there) if compiled else there, args, trains, device)
    torch.testing.assert_close(got, run(call, args, trains), equal_nan=True, **CLOSE)
