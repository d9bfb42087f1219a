"""Calls that ATen refuses, each beside one that it takes: a table for `test_errors`.

A row is an overload, a call that works and the arguments in which the wrong one differs. In `BY_VALUES` only the
values of tensors and numbers differ, so a compiled graph finds out at run time; in `BY_SHAPES` sizes, dims or dtypes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from jaten_ops.schema import FIRST, FUNCTIONAL

nan, inf = math.nan, math.inf


@dataclass(frozen=True)
class Wrong:
    """A call of an overload that works, and what makes it wrong: other values, by position or name."""

    overload: str
    right: tuple[Any, ...]
    wrong: dict[int | str, Any]
    keywords: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        def short(v: Any) -> str:
            if isinstance(v, torch.Tensor):
                return str(v.tolist()) if v.numel() < 5 else f"{v.dtype}{list(v.shape)}".removeprefix("torch.")
            return "[" + ", ".join(map(short, v)) + "]" if isinstance(v, list) else str(v)

        return f"{self.overload}-" + ",".join(f"{k}={short(v)}" for k, v in self.wrong.items())

    def wrong_args(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = tuple(self.wrong.get(i, v) for i, v in enumerate(self.right))
        return args, self.keywords | {k: v for k, v in self.wrong.items() if isinstance(k, str)}


def t(*values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


x = torch.arange(12.0).reshape(3, 4)
i = torch.arange(12).reshape(3, 4)
v = torch.ones(3)
row = t(0, 2)
spd = torch.eye(3) * 2
key = t(1, 2, dtype=torch.uint64)
singular = torch.ones(3, 3)
logits = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)


def _rows(overload: str, right: tuple[Any, ...], *wrongs: dict[int | str, Any], **keywords: Any) -> list[Wrong]:
    if overload in FIRST and overload not in FUNCTIONAL:  # other releases of torch have it
        return []
    return [Wrong(overload, right, w, keywords) for w in wrongs]


BY_VALUES: list[Wrong] = [
    # an index out of range
    *_rows("index_select", (x, 0, row), {2: t(0, 3)}, {2: t(0, -1)}),
    *_rows("gather", (x, 1, t([0, 3])), {2: t([0, 4])}, {2: t([0, -1])}),
    *_rows("scatter.src", (x, 1, t([0, 3]), x), {2: t([0, 4])}, {2: t([0, -1])}),
    *_rows("scatter.value", (x, 1, t([0, 3]), 2.0), {2: t([0, 4])}, {2: t([0, -1])}),
    *_rows("scatter_add", (x, 1, t([0, 3]), x), {2: t([0, 4])}, {2: t([0, -1])}),
    *_rows("scatter.reduce", (x, 1, t([0, 3]), x), {2: t([0, 4])}, reduce="add"),
    *_rows("scatter_reduce.two", (x, 1, t([0, 3]), x, "amax"), {2: t([0, 4])}, {2: t([0, -1])}),
    *_rows("index.Tensor", (x, [row]), {1: [t(0, 3)]}, {1: [t(0, -4)]}),
    *_rows("index_put", (x, [row], t(1.0)), {1: [t(0, 3)]}, {1: [t(0, -4)]}),
    *_rows("take", (x, row), {1: t(0, 12)}, {1: t(0, -13)}),
    *_rows("put", (x, row, t(1.0, 2.0)), {1: t(0, 12)}, {1: t(0, -13)}),
    *_rows("index_add", (x, 0, row, x[:2]), {2: t(0, 3)}, {2: t(0, -1)}),
    *_rows("index_copy", (x, 0, row, x[:2]), {2: t(0, 3)}, {2: t(0, -1)}),
    *_rows("index_fill.int_Scalar", (x, 0, row, 1.0), {2: t(0, 3)}, {2: t(0, -4)}),
    *_rows("index_reduce", (x, 0, row, x[:2], "amax"), {2: t(0, 3)}, {2: t(0, -1)}),
    *_rows("embedding", (x, row), {1: t(0, 3)}, {1: t(0, -1)}),
    *_rows("_embedding_bag", (x, row, t(0, 1)), {1: t(0, 3)}, {1: t(0, -1)}, {2: t(1, 1)}, {2: t(0, 3)}),
    *_rows("nll_loss_forward", (x, t(0, 1, 3), None, 1, -100), {1: t(0, 1, 4)}, {1: t(0, 1, -1)}),
    *_rows("nll_loss2d_forward", (x[None, :, None], t([[0, 1, 2, 0]]), None, 1, -100), {1: t([[0, 1, 3, 0]])}),
    *_rows("multi_margin_loss", (x, t(0, 1, 3)), {1: t(0, 1, 4)}, {1: t(0, 1, -1)}),
    *_rows("multilabel_margin_loss_forward", (v[None], t([0, -1, 1]), 1), {1: t([0, 3, 1])}, {1: t([0, -2, 1])}),
    *_rows("one_hot", (row, 3), {0: t(0, 3)}, {0: t(0, -1)}),
    *_rows("cross_entropy_loss", (x, t(0, 1, 3)), {1: t(0, 1, 4)}),
    *_rows("max_unpool2d", (x[None, None, :1], t([[[0, 1, 2, 3]]]), [2, 4]), {1: t([[[0, 1, 2, 8]]])}),
    *_rows("lu_unpack", (spd, t(1, 2, 3, dtype=torch.int32)), {1: t(1, 2, 4, dtype=torch.int32)}),
    *_rows("searchsorted.Tensor", (v, v), {"sorter": t(0, 1, 3)}, sorter=t(0, 1, 2)),
    *_rows("_ctc_loss.Tensor", (logits, t([1, 2], [3, 1]), t(5, 5), t(2, 2)), {2: t(5, 6)}, {3: t(2, -1)}),
    *_rows("masked_scatter", (v, t(True, False, True), t(1.0, 2.0)), {1: t(True, True, True)}),
    *_rows("segment_reduce", (v, "sum"), {"lengths": t(1, 3)}, {"lengths": t(4, -1)}, lengths=t(1, 2)),
    # integer division
    *_rows("div.Tensor_mode", (i, i + 1), {1: i}, rounding_mode="trunc"),
    *_rows("div.Tensor_mode", (i, i + 1), {1: i}, rounding_mode="floor"),
    *_rows("floor_divide", (i, i + 1), {1: i}),
    *_rows("remainder.Tensor", (i, i + 1), {1: i}),
    *_rows("remainder.Scalar", (i, 2), {1: 0}),
    *_rows("fmod.Tensor", (i, i + 1), {1: i}),
    *_rows("fmod.Scalar", (i, 2), {1: 0}),
    *_rows("div.Scalar_mode", (i, 2), {1: 0}, rounding_mode="floor"),
    # linear algebra
    *_rows("linalg_cholesky_ex", (spd,), {0: -spd}, check_errors=True),
    *_rows("linalg_cholesky", (spd,), {0: -spd}),
    *_rows("cholesky", (spd,), {0: -spd}),
    *_rows("linalg_inv", (spd,), {0: singular}),
    *_rows("linalg_inv_ex", (spd,), {0: singular}, check_errors=True),
    *_rows("linalg_solve", (spd, v), {0: singular}),
    *_rows("_linalg_solve_ex", (spd, v), {0: singular}, check_errors=True),
    *_rows("linalg_lu_factor_ex", (spd,), {0: singular * 0}, check_errors=True),
    *_rows("linalg_eig", (spd,), {0: spd * nan}),
    *_rows("_linalg_svd", (spd,), {0: spd * nan}),
    *_rows("linalg_matrix_power", (spd, -1), {0: singular}),
    # probabilities and random numbers
    *_rows("multinomial", (v, 2, True), {0: t(1.0, -1, 1)}, {0: t(1, nan, 1)}, {0: t(1, inf, 1)}, {0: v * 0}),
    *_rows("multinomial", (v, 2), {0: t(1.0, -1, 1)}, {0: t(1, nan, 1)}, {0: t(1, inf, 1)}, {0: v * 0}),
    *_rows("bernoulli", (v,), {0: v * 2}, {0: -v}, {0: v * nan}),
    *_rows("bernoulli.p", (v, 0.5), {1: 1.5}, {1: -0.5}, {1: nan}),
    *_rows("bernoulli.Tensor", (v, v), {1: v * 2}, {1: v * nan}),
    *_rows("poisson", (v,), {0: -v}),
    *_rows("normal.Tensor_float", (v, 1.0), {1: -1.0}),
    *_rows("normal.Tensor_Tensor", (v, v), {1: -v}),
    *_rows("normal.float_Tensor", (0.0, v), {1: -v}),
    *_rows("normal_functional", (v, 0.0, 1.0), {2: -1.0}),
    *_rows("uniform", (v, 0.0, 1.0), {1: 2.0}, {2: inf}),
    *_rows("exponential", (v, 1.0), {1: -1.0}, {1: 0.0}),
    *_rows("geometric", (v, 0.5), {1: 0.0}, {1: 1.5}),
    *_rows("cauchy", (v, 0.0, 1.0), {2: -1.0}),
    *_rows("log_normal", (v, 1.0, 2.0), {2: -1.0}, {2: 0.0}),
    *_rows("native_dropout", (v, 0.5, True), {1: 1.5}, {1: -0.5}),
    # losses, histograms and others
    *_rows("binary_cross_entropy", (v, v), {0: v * 2}, {0: -v}, {1: v * 2}),
    *_rows("histc", (v, 3, 0.0, 2.0), {2: 3.0}, {3: inf}, {2: nan}),
    *_rows("histc", (v, 3), {0: v * inf}, {0: v * nan}),
    *_rows("histogram.bin_ct", (v, 3), {0: v * inf}, {"range": [2.0, 1.0]}, {"range": [0.0, nan]}),
    *_rows("bincount", (row,), {0: t(0, -1)}),
    *_rows("repeat_interleave.Tensor", (row,), {0: t(0, -1)}),
    *_rows("repeat_interleave.self_Tensor", (t(1.0, 2.0), row), {1: t(0, -1)}),
    *_rows("smooth_l1_loss", (v, v, 1, 1.0), {3: -1.0}),
    *_rows("huber_loss", (v, v, 1, 1.0), {3: -1.0}, {3: 0.0}),
    *_rows("softshrink", (v, 0.5), {1: -0.5}),
    *_rows("pow.Tensor_Scalar", (i, 2), {1: -2}),
]

BY_SHAPES: list[Wrong] = [
    # reductions of nothing that have no identity
    *_rows("max", (x,), {0: x[:0]}),
    *_rows("min", (x,), {0: x[:0]}),
    *_rows("max.dim", (x, 0), {0: x[:0]}),
    *_rows("argmax", (x,), {0: x[:0]}),
    *_rows("argmin", (x, 0), {0: x[:0]}),
    *_rows("amax", (x, [0]), {0: x[:0]}),
    *_rows("amin", (x,), {0: x[:0]}),
    *_rows("aminmax", (x,), {0: x[:0]}),
    *_rows("aminmax", (x,), {0: x[:0], "dim": 0}),
    *_rows("median.dim", (x, 0), {0: x[:0]}),
    *_rows("mode", (x, 0), {0: x[:0]}),
    *_rows("kthvalue", (x, 1, 0), {0: x[:0]}, {1: 4}, {1: 0}),
    *_rows("topk", (x, 1, 0), {1: 4}, {1: -1}, {2: 2}),
    *_rows("cummax", (x, 0), {1: 2}),
    *_rows("linalg_vector_norm", (x, inf), {0: x[:0]}),
    *_rows("logsumexp", (x, [0]), {1: [2]}, {0: x.to(torch.complex64), 1: [-3]}),
    # dims out of range, or twice
    *_rows("sum.dim_IntList", (x, [0]), {1: [2]}, {1: [0, 0]}, {1: [0, -2]}),
    *_rows("mean.dim", (x, [0]), {1: [2]}, {0: i}),
    *_rows("var.correction", (x, [0]), {1: [-3]}, {0: i}),
    *_rows("std.correction", (x, [0]), {1: [-3]}, {0: i}),
    *_rows("all.dim", (x, 0), {1: 2}),
    *_rows("any.dims", (x, [0]), {1: [0, 0]}),
    *_rows("prod.dim_int", (x, 0), {1: 2}),
    *_rows("cumsum", (x, 0), {1: 2}),
    *_rows("_softmax", (x, 0, False), {1: 2}, {0: i}),
    *_rows("_log_softmax", (x, 0, False), {1: -3}, {0: i}),
    *_rows("sort", (x, 0), {1: 2}),
    *_rows("flip", (x, [0]), {1: [2]}, {1: [0, 0]}),
    *_rows("roll", (x, [1], [0]), {2: [2]}, {1: [1, 2]}),
    *_rows("permute", (x, [1, 0]), {1: [0, 0]}, {1: [0]}, {1: [0, 2]}),
    *_rows("transpose.int", (x, 0, 1), {1: 2}),
    *_rows("squeeze.dim", (x, 0), {1: 2}),
    *_rows("unsqueeze", (x, 0), {1: 3}),
    *_rows("select.int", (x, 0, 1), {1: 2}, {2: 3}, {2: -4}),
    *_rows("slice.Tensor", (x, 0, 1, 2), {1: 2}),
    *_rows("slice.Tensor", (x, 0, 0, 2, 1), {4: 0}, {4: -1}),
    *_rows("unbind.int", (x, 0), {1: 2}),
    *_rows("diagonal", (x, 0, 0, 1), {2: 1}, {2: 2}),
    *_rows("unfold", (x, 0, 2, 1), {2: 4}, {3: 0}, {2: -1}),
    *_rows("gather", (x, 1, t([0, 3])), {1: 2}, {2: t(0, 3)}, {2: t([0.0, 1.0])}, {2: torch.zeros(4, 4).long()}),
    *_rows("scatter.src", (x, 1, t([0, 3]), x), {1: 2}, {3: i}, {2: torch.zeros(4, 4).long()}),
    *_rows("index_select", (x, 0, row), {1: 2}, {2: t([0, 1])}, {2: t(0.0)}),
    *_rows("index_add", (x, 0, row, x[:2]), {3: x}, {3: i[:2]}, {1: 2}),
    *_rows("index.Tensor", (x, [row]), {1: [row, row, row]}, {1: [t(0.0)]}, {1: [row, t(0, 1, 2)]}, {1: [t(True)]}),
    # sizes that do not fit
    *_rows("view", (x, [4, 3]), {1: [5, 3]}, {1: [-1, 5]}, {1: [-1, -1]}, {1: [-2, 6]}),
    *_rows("_unsafe_view", (x, [4, 3]), {1: [5, 3]}, {1: [-1, 5]}),
    *_rows("expand", (v, [2, 3]), {1: [2, 4]}, {1: [-1, 3]}, {1: []}),
    *_rows("repeat", (x, [2, 1]), {1: [2]}, {1: [-1, 2]}),
    *_rows("split.Tensor", (x, 2, 0), {1: -1}, {2: 2}),
    *_rows("split_with_sizes", (x, [1, 2]), {1: [1, 3]}, {1: [-1, 4]}),
    *_rows("cat", ([x, x],), {0: [x, v]}, {0: [x, x[:, :2]]}, {0: []}, {0: [t(1.0)[0]]}),
    *_rows("stack", ([x, x],), {0: [x, v]}, {0: []}),
    *_rows("add.Tensor", (x, x), {1: v}, {1: x[:2]}),
    *_rows("where.self", (x > 1, x, x), {1: v}, {0: x}),
    *_rows("mm", (spd, spd), {0: x}, {0: v}, {0: spd.double()}, {0: spd[None]}),
    *_rows("bmm", (spd[None], spd[None]), {0: spd}, {0: x[None]}, {0: spd[None].expand(2, 3, 3)}),
    *_rows("addmm", (v, spd, spd), {1: spd.double()}, {0: t(1.0, 2.0)}, {2: x.t()}, {0: v.double()}, {1: i[:, :3]}),
    *_rows("baddbmm", (v, spd[None], spd[None]), {1: spd}, {0: t(1.0, 2.0)}),
    *_rows("mv", (spd, v), {1: t(1.0)}, {1: spd}),
    *_rows("dot", (v, v), {1: t(1.0)}, {1: spd}, {1: v.double()}),
    *_rows("addmv", (v, spd, v), {2: t(1.0)}, {1: v}),
    *_rows("addr", (spd, v, v), {1: x}, {0: x}),
    *_rows("linalg_cross", (v, v), {1: t(1.0, 2.0)}, {0: t(1.0, 2.0), 1: t(1.0, 2.0)}),
    *_rows("linalg_cholesky_ex", (spd,), {0: x}, {0: v}, {0: i[:, :3]}),
    *_rows("linalg_inv_ex", (spd,), {0: x}, {0: v}, {0: i[:, :3]}),
    *_rows("_linalg_solve_ex", (spd, v), {0: x}, {1: t(1.0, 2.0)}, {1: v.double()}),
    *_rows("_linalg_svd", (spd,), {0: v}, {0: i}),
    *_rows("linalg_polar", (spd,), {0: v}, {0: i}, {0: x}, {0: spd.half()}),
    *_rows("linalg_matrix_sqrth", (spd,), {0: v}, {0: i[:, :3]}, {0: x}, {0: spd.half()}),
    *_rows(
        "_philox_randint",
        (row.int(), key, None, None),
        {0: v},
        {1: row},
        {1: key[:1]},
        {2: 1, 3: 1},
        {2: 0, 3: 2**28 + 1},
    ),
    *_rows("_philox_key_fold_in.Tensor", (key, key[0]), {0: row}, {0: key[:1]}, {1: row[0]}, {1: key}),
    *_rows("linalg_qr", (spd, "reduced"), {0: v}, {1: "other"}),
    *_rows("linalg_eig", (spd,), {0: x}, {0: i[:, :3]}),
    *_rows("_linalg_det", (spd,), {0: x}),
    *_rows("linalg_solve_triangular", (spd, spd), {0: x}, {1: v}, upper=True),
    *_rows("linalg_matrix_exp", (spd,), {0: x}, {0: i[:, :3]}),
    *_rows("triu", (x,), {0: v}),
    *_rows("zeros", ([2],), {0: [-2]}),
    *_rows("full", ([2], 1.0), {0: [-2]}),
    *_rows("empty.memory_format", ([2],), {0: [-2]}),
    *_rows("new_zeros", (x, [2]), {1: [-2]}),
    *_rows("arange.start_step", (0, 4, 1), {2: 0}, {2: -1}, {1: nan}, {1: inf}),
    *_rows("linspace", (0.0, 1.0, 3), {2: -1}),
    *_rows("logspace", (0.0, 1.0, 3), {2: -1}),
    *_rows("eye", (2,), {0: -1}),
    *_rows("randint", (4, [2]), {0: 0}),
    *_rows("randperm", (3,), {0: -1}),
    *_rows("rand", ([2],), {0: [-2]}),
    *_rows("tril_indices", (2, 3), {0: -1}),
    *_rows("histc", (v, 3), {1: 0}, {1: -1}),
    *_rows("histogram.bin_ct", (v, 3), {1: 0}),
    *_rows("bincount", (row, None, 0), {0: t([0])}, {0: t(0.5)}, {1: t(1.0)}),
    *_rows("multinomial", (v, 2), {1: 4}, {1: 0}, {0: x[None]}, {0: row}, {0: v[:1].expand(2**24 + 1)}),
    *_rows("nll_loss_forward", (x, t(0, 1, 3), None, 1, -100), {1: row}, {1: v}, {2: v}, {0: x[None]}),
    *_rows("embedding", (x, row), {1: t(0.0)}),
    *_rows(
        "_ctc_loss",
        (logits, t([1, 2], [3, 1]), [5, 5], [2, 2], 0),
        {2: [5, 6]},
        {2: [5]},
        {3: [2, -1]},
        {4: 5},
        {3: [2, 3]},
    ),
    *_rows("searchsorted.Tensor", (v, v), {"side": "other"}, {0: x[:2]}),
    *_rows("constant_pad_nd", (x, [1, 1]), {1: [1]}, {1: [-5, 0]}, {1: [1] * 6}),
    *_rows("reflection_pad1d", (x, [1, 1]), {1: [4, 1]}, {0: v[None, None, None]}, {1: [1]}),
    *_rows("replication_pad1d", (x, [1, 1]), {1: [-3, -3]}),
    *_rows(
        "max_pool2d_with_indices",
        (x[None], [2, 2], [1, 1], [1, 1]),
        {1: [5, 7]},
        {1: [0, 0]},
        {3: [2, 2]},
        {2: [-1, 1]},
        {0: v},
    ),
    *_rows("avg_pool2d", (x[None], [2, 2], [1, 1], [1, 1]), {1: [5, 7]}, {1: [0, 0]}, {3: [2, 2]}),
    *_rows("_adaptive_avg_pool2d", (x[None], [2, 2]), {1: [-1, 2]}, {0: v}, {1: [2]}),
    *_rows("upsample_nearest2d", (x[None, None], [2, 2]), {1: [0, 2]}, {0: x}),
    *_rows("pixel_shuffle", (torch.ones(1, 4, 2, 2), 2), {1: 3}, {1: -1}, {0: v}),
    *_rows(
        "convolution",
        (torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        {1: torch.ones(2, 3, 3, 3)},
        {1: torch.ones(2, 2, 5, 5)},
        {3: [0, 1]},
        {4: [-1, 0]},
        {8: 2},
        {2: v},
        {1: torch.ones(2, 2, 3, 3).double()},
        {8: 0},
    ),
    *_rows("native_layer_norm", (x, [4], None, None, 1e-5), {1: [3]}, {2: v}, {1: []}),
    *_rows("native_group_norm", (x[None], None, None, 1, 3, 4, 3, 1e-5), {6: 2}),
    *_rows("_fft_r2c", (x, [1], 0, True), {0: x.to(torch.complex64)}),
    *_rows("_cdist_forward", (x, x, 2.0, None), {1: spd}, {2: -1.0}),
    *_rows("masked_select", (x, x > 1), {1: x}, {1: v > 1}),
    *_rows("masked_fill.Scalar", (x, x > 1, 1.0), {1: x}, {1: v > 1}),
    *_rows("lerp.Tensor", (x, x, x), {2: v}, {1: i}),
    # dtypes
    *_rows("mean", (x,), {0: i}),
    *_rows("bitwise_and.Tensor", (i, i), {0: x}, {1: x}),
    *_rows("bitwise_or.Tensor", (i, i), {0: x}),
    *_rows("bitwise_xor.Tensor", (i, i), {0: x}),
    *_rows("bitwise_not", (i,), {0: x}),
    *_rows("bitwise_left_shift.Tensor", (i, i), {0: x}),
    *_rows("gcd", (i, i), {0: x}),
    *_rows("lcm", (i, i), {0: x}),
    *_rows("neg", (x,), {0: x > 1}),
    *_rows("sub.Tensor", (x, x), {0: x > 1, 1: x > 1}),
    *_rows("rsub.Tensor", (x, x), {0: x > 1, 1: x > 1}),
    *_rows("add.Tensor", (i, i), {"alpha": 0.5}),
    *_rows("add.Tensor", (x > 1, x > 1), {"alpha": 0.5}),
    *_rows("sign", (x,), {0: x.to(torch.complex64)}),
    *_rows("floor", (x,), {0: x.to(torch.complex64)}),
    *_rows("lt.Tensor", (x, x), {0: x.to(torch.complex64)}),
    *_rows("maximum", (x, x), {0: x.to(torch.complex64)}),
    *_rows("max", (x,), {0: x.to(torch.complex64)}),
    *_rows("sort", (x,), {0: x.to(torch.complex64)}),
    *_rows("clamp", (x, 1.0), {0: x.to(torch.complex64)}, {1: None}),
    *_rows("remainder.Tensor", (x, x), {0: x.to(torch.complex64)}),
    *_rows("fmod.Tensor", (x, x), {0: x.to(torch.complex64)}),
    *_rows("atan2", (x, x), {0: x.to(torch.complex64)}),
    *_rows("hypot", (x, x), {0: i, 1: i}, {0: x.to(torch.complex64)}),
    *_rows("nextafter", (x, x), {0: i, 1: i}),
    *_rows("lerp.Scalar", (x, x, 0.5), {0: i, 1: i}),
    *_rows("frexp.Tensor", (x,), {0: i}),
    *_rows("complex", (x, x), {0: i}, {1: x.double()}),
    *_rows("polar", (x, x), {0: i}, {1: x.double()}),
    *_rows("view_as_complex", (x.reshape(6, 2),), {0: x}, {0: i.reshape(6, 2)}),
    *_rows("view_as_real", (x.to(torch.complex64),), {0: x}),
    *_rows("view.dtype", (x, torch.int32), {1: torch.complex128, 0: x[:, :3]}),
    *_rows("relu", (x,), {0: x > 1}, {0: x.to(torch.complex64)}),
    *_rows("gelu", (x,), {0: i}),
    *_rows("elu", (x,), {0: i}),
    *_rows("hardtanh", (x,), {0: x > 1}),
    *_rows("leaky_relu", (x,), {0: i}),
    *_rows("softplus", (x,), {0: i}),
    *_rows("mse_loss", (x, x), {0: i, 1: i}, {1: v[:2]}),
    *_rows("trace", (spd,), {0: v}),
    *_rows("nansum", (x,), {0: x.to(torch.complex64)}),
    *_rows("nanmedian", (x,), {0: x.to(torch.complex64)}),
    *_rows("erf", (x,), {0: x.to(torch.complex64)}),
    *_rows("digamma", (x,), {0: x.to(torch.complex64)}),
    *_rows("lgamma", (x,), {0: x.to(torch.complex64)}),
    *_rows("polygamma", (1, x), {0: -1}),
    *_rows("bernoulli", (v,), {0: row}),
    *_rows("uniform", (v,), {0: row}),
    *_rows("normal_functional", (v,), {0: row}),
    *_rows("poisson", (v,), {0: row}),
]
