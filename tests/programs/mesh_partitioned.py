"""Operators whose work falls apart along the dimensions that are partitioned, and the collectives in their programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jax.sharding import PartitionSpec
from torch import Tensor

from jaten_ops import distributed

AXES = {"data": 2, "model": 4}
D, M, BOTH = "data", "model", ("data", "model")

# an operand: its shape, the axes of its dimensions, and for indices the number of their values
Operand = tuple[Sequence[int], Sequence[Any], int | None]
Row = tuple[Callable[..., Tensor], Sequence[Operand]]


def _floats(shape: Sequence[int], *axes: Any) -> Operand:
    return shape, axes, None


def _indices(shape: Sequence[int], below: int, *axes: Any) -> Operand:
    return shape, axes, below


def _image(n: int) -> Operand:
    return _floats((4, 8, *[8] * n), D, M)


_CHANNELS = _floats((8,), M)
_LAST = _floats((8, 8, 16), D, M)  # for operators along the last dimension
_MIDDLE = _floats((8, 16, 8), D, None, M)  # and along the second
_HEADS = _floats((4, 8, 16, 8), D, M)
_GRID = _floats((4, 5, 5, 2), D)


def _unpooled(n: int) -> Callable[[Tensor], Tensor]:
    pool, unpool = getattr(F, f"max_pool{n}d"), getattr(F, f"max_unpool{n}d")

    def run(x: Tensor) -> Tensor:
        result: Tensor = unpool(*pool(x, 2, return_indices=True), 2)
        return result

    return run


def _of_images(n: int) -> dict[str, Row]:
    """Operators of images with n dimensions, batch and channels partitioned."""
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[n]
    max_pool, lp_pool = getattr(F, f"max_pool{n}d"), getattr(F, f"lp_pool{n}d")
    adaptive_max_pool = getattr(F, f"adaptive_max_pool{n}d")
    avg_pool, adaptive_avg_pool = getattr(F, f"avg_pool{n}d"), getattr(F, f"adaptive_avg_pool{n}d")
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "max_pool": lambda x: max_pool(x, 3, 2, 1),
        "max_pool, indices": lambda x: max_pool(x, 2, return_indices=True)[0],
        "max_pool, dilation": lambda x: max_pool(x, 3, 2, 1, 2, ceil_mode=True),
        "max_pool, large windows": lambda x: max_pool(x, 5, 1, 2),
        "adaptive_max_pool": lambda x: adaptive_max_pool(x, 3),
        "max_unpool": _unpooled(n),
        "avg_pool": lambda x: avg_pool(x, 3, 2, 1),
        "adaptive_avg_pool": lambda x: adaptive_avg_pool(x, 3),
        "lp_pool": lambda x: lp_pool(x, 2, 2),
        "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        "nearest-exact": lambda x: F.interpolate(x, size=[11] * n, mode="nearest-exact"),
        "linear": lambda x: F.interpolate(x, scale_factor=2, mode=linear),
        "reflection": lambda x: F.pad(x, [1] * 2 * n, mode="reflect"),
        "replication": lambda x: F.pad(x, [1] * 2 * n, mode="replicate"),
        "circular": lambda x: F.pad(x, [1] * 2 * n, mode="circular"),
        "group_norm": lambda x: F.group_norm(x, 4),
    }
    if n > 1:
        fractional = getattr(F, f"fractional_max_pool{n}d")
        calls["fractional_max_pool"] = lambda x: fractional(x, 2, output_size=3)
    found: dict[str, Row] = {f"{name} {n}d": (call, [_image(n)]) for name, call in calls.items()}
    found[f"instance_norm {n}d"] = (
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        [_image(n), _CHANNELS, _CHANNELS],
    )
    found[f"batch_norm {n}d"] = (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [_image(n), _CHANNELS, _CHANNELS],
    )
    return found


def _multi_head_attention(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    zero = torch.zeros(8, device=x.device)
    found: Tensor = F.multi_head_attention_forward(
        x, x, x, 8, 4, weight, bias, None, None, False, 0.0, out, zero, need_weights=False
    )[0]
    return found.transpose(0, 1)


def _one(operand: Operand, **calls: Callable[[Tensor], Tensor]) -> dict[str, Row]:
    return {name: (call, [operand]) for name, call in calls.items()}


_SAMPLED: dict[str, Row] = {
    f"grid_sample {mode}": (
        lambda x, grid, mode=mode: F.grid_sample(x, grid, mode=mode, align_corners=False),
        [_image(2), _GRID],
    )
    for mode in ("bilinear", "nearest", "bicubic")
}
_OF_PIXELS: dict[str, Row] = {
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), [_image(2)]),
    "antialias": (lambda x: F.interpolate(x, size=[5, 5], mode="bilinear", antialias=True), [_image(2)]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [_floats((4, 16, 4, 4), D, M)]),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), [_image(2)]),
    "unfold": (lambda x: F.unfold(x, 3, padding=1, stride=2), [_image(2)]),
    "fold": (lambda x: F.fold(x, (8, 8), 3, padding=1), [_floats((4, 72, 64), D, M)]),
    "grid_sample 3d": (
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        [_image(3), _floats((4, 5, 5, 5, 3), D)],
    ),
}
_LOSSES: dict[str, Row] = {
    "cross_entropy": (F.cross_entropy, [_floats((8, 16), BOTH), _indices((8,), 16, BOTH)]),
    "cross_entropy 2d": (F.cross_entropy, [_floats((4, 16, 8, 8), D, None, M), _indices((4, 8, 8), 16, D, M)]),
    "cross_entropy 2d, each": (
        lambda x, t: F.cross_entropy(x, t, reduction="none", ignore_index=2, label_smoothing=0.1),
        [_floats((4, 16, 8, 8), D, None, M), _indices((4, 8, 8), 16, D, M)],
    ),
    "nll_loss": (F.nll_loss, [_floats((8, 16), BOTH), _indices((8,), 16, BOTH)]),
    "one_hot": (lambda x, i: x * F.one_hot(i, 16), [_LAST, _indices((8, 8), 16, D, M)]),
    "ctc_loss": (
        F.ctc_loss,
        [_floats((12, 8, 16), None, D), _indices((8, 5), 16, D), _indices((8,), 12, D), _indices((8,), 5, D)],
    ),
    "multi_margin_loss": (F.multi_margin_loss, [_floats((8, 16), BOTH), _indices((8,), 16, BOTH)]),
}
_BY_INDEX: dict[str, Row] = {
    "gather": (lambda x, i: x.gather(2, i), [_LAST, _indices((8, 8, 5), 16, D, M)]),
    "gather 1": (lambda x, i: x.gather(1, i), [_MIDDLE, _indices((8, 5, 8), 16, D, None, M)]),
    "scatter": (
        lambda x, i, s: x.scatter(2, i, s),
        [_LAST, _indices((8, 8, 5), 16, D, M), _floats((8, 8, 5), D, M)],
    ),
    "scatter_reduce": (
        lambda x, i, s: x.scatter_reduce(2, i, s, "amax"),
        [_LAST, _indices((8, 8, 5), 16, D, M), _floats((8, 8, 5), D, M)],
    ),
    "index_select": (lambda x, i: x.index_select(1, i), [_MIDDLE, _indices((5,), 16)]),
    "index": (lambda x, i: x[:, i], [_MIDDLE, _indices((5,), 16)]),
    "index_add": (lambda x, i, s: x.index_add(1, i, s), [_MIDDLE, _indices((5,), 16), _floats((8, 5, 8), D, None, M)]),
    "embedding": (lambda w, i: F.embedding(i, w), [_floats((16, 8), None, M), _indices((8, 4), 16, D)]),
    "unfold along": (lambda x: x.unfold(2, 4, 2), [_LAST]),
    "embedding_bag, weights": (
        lambda w, i, p: F.embedding_bag(i, w, mode="sum", per_sample_weights=p),
        [_floats((16, 8), None, M), _indices((8, 4), 16, D), _floats((8, 4), D)],
    ),
    "embedding_bag": (lambda w, i: F.embedding_bag(i, w), [_floats((16, 8), None, M), _indices((8, 4), 16, D)]),
    "embedding_bag, padding": (
        lambda w, i: F.embedding_bag(i, w, padding_idx=3),
        [_floats((16, 8), None, M), _indices((8, 4), 16, D)],
    ),
    "embedding_bag, offsets": (
        lambda w, i, o: F.embedding_bag(i, w, o, mode="sum"),
        [_floats((16, 8), None, M), _indices((32,), 16, D), _indices((8,), 1)],
    ),
}
_ALONG = _one(
    _LAST,
    topk=lambda x: x.topk(3, -1)[0],
    sort=lambda x: x.sort(-1)[0],
    cumsum=lambda x: x.cumsum(-1),
    cumprod=lambda x: x.cumprod(-1),
    logcumsumexp=lambda x: x.logcumsumexp(-1),
    cummax=lambda x: x.cummax(-1)[0],
    kthvalue=lambda x: x.kthvalue(3, -1)[0],
    median=lambda x: x.median(-1)[0],
    max=lambda x: x.max(-1)[0],
    var=lambda x: x.var(-1),
    softmax=lambda x: x.softmax(-1),
    logsumexp=lambda x: x.logsumexp(-1),
    prod=lambda x: x.prod(-1),
    flip=lambda x: x.flip(-1),
    roll=lambda x: x.roll(1, -1),
    layer_norm=lambda x: F.layer_norm(x, (16,)),
)
_PRODUCTS: dict[str, Row] = {
    "attention": (F.scaled_dot_product_attention, [_HEADS] * 3),
    "attention, causal": (lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), [_HEADS] * 3),
    "attention, groups": (
        lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=True),
        [_HEADS, *[_floats((4, 4, 16, 8), D, M)] * 2],
    ),
    "attention, dropout": (lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.1), [_HEADS] * 3),
    "matmul": (lambda a, b: a @ b.mT, [_HEADS] * 2),
    "matmul, broadcast": (lambda a, b: a @ b.mT, [_HEADS, _floats((8, 16, 8), M)]),
    "matmul, matrix": (lambda a, b: a @ b, [_HEADS, _floats((8, 8))]),
    "linear": (F.linear, [_HEADS, _floats((8, 8)), _floats((8,))]),
    "linear, sequence": (F.linear, [_floats((8, 8, 16), D, M), _floats((8, 16)), _floats((8,))]),
    "linear, batch second": (F.linear, [_floats((5, 8, 16), None, D), _floats((8, 16)), _floats((8,))]),
    "bilinear": (F.bilinear, [_floats((8, 6, 4), D), _floats((8, 6, 5), D), _floats((8, 4, 5)), _floats((8,))]),
    "bilinear, batch second": (
        F.bilinear,
        [_floats((6, 8, 4), None, BOTH), _floats((6, 8, 5), None, BOTH), _floats((8, 4, 5)), _floats((8,))],
    ),
    "multi_head_attention": (
        _multi_head_attention,
        [_floats((8, 6, 8), BOTH), _floats((24, 8)), _floats((24,)), _floats((8, 8))],
    ),
    "bmm": (torch.bmm, [_floats((8, 6, 6), BOTH)] * 2),
}

ROWS: dict[str, Row] = {
    **_of_images(1), **_of_images(2), **_of_images(3), **_OF_PIXELS, **_SAMPLED, **_LOSSES, **_BY_INDEX, **_ALONG,
    **_PRODUCTS,
}  # fmt: skip

POINTS = {"grid_sample bilinear": 4, "grid_sample bicubic": 16, "grid_sample 3d": 8}
"""The pixels that a point of a grid reads: there is a sum over the channels for each of them."""

BAGS = {"embedding_bag": 1, "embedding_bag, weights": 1, "embedding_bag, offsets": 1, "embedding_bag, padding": 2}
"""Results whose rows are sums over the batch's axis, and counts of theirs: only the offsets tell who has a bag."""


def _placed(operand: Operand, mesh: Any) -> Tensor:
    shape, axes, below = operand
    tensor = torch.randn(*shape) if below is None else torch.randint(below, shape)
    placed: Tensor = distributed.distribute_tensor(tensor, mesh, PartitionSpec(*axes)).detach()
    return placed.requires_grad_(below is None)


def _sums(operand: Operand) -> int:
    """The bytes on a device of an operand's gradient, once for each axis of the mesh over which it is a sum."""
    shape, axes, below = operand
    over = [name for entry in axes for name in (entry if isinstance(entry, tuple) else (entry,)) if name]
    size = 4 * (len(AXES) - len(over)) if below is None else 0
    for n in shape:
        size *= n
    for name in over:
        size //= AXES[name]
    return size


def moved(name: str) -> dict[str, Any]:
    """The collectives of an operator and its gradient: all kinds but sums, and the bytes of the sums.

    Returns:
        `kinds`, those collectives; `sums`, the bytes of all-reduces; and `allowed`, those of the gradients that are
        sums over the mesh, with some for losses, statistics and checks of indices.
    """
    torch.manual_seed(0)
    call, operands = ROWS[name]
    mesh = distributed.make_mesh(**AXES)
    tensors = [_placed(operand, mesh) for operand in operands]

    def both(*tensors: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(call(*tensors).square().sum(), [t for t in tensors if t.requires_grad])

    found = distributed.collectives(both, *tensors)
    sums = found.pop("all-reduce")
    return {
        "kinds": {kind: list(traffic) for kind, traffic in found.items() if traffic.number},
        "sums": sums.bytes,
        "allowed": 64 + 64 * BAGS.get(name, 0) + POINTS.get(name, 1) * sum(map(_sums, operands)),
    }
