"""Single overloads that PyTorch's samples do not reach, compared with ATen on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from tests.harness.recorded import op_of_aten

X = torch.linspace(-2, 2.5, 12).view(3, 4)
Y = torch.linspace(0.25, 3, 12).view(3, 4)
INTS = torch.arange(-6, 6).view(3, 4)
COMPLEX = torch.complex(X, Y)
SQUARE = X[:, :3] + 3 * torch.eye(3)
IMAGE = torch.linspace(-1, 1, 72).view(1, 2, 6, 6).square()
CHANNELS = torch.linspace(-1, 2, 24).view(2, 3, 4)
PARAMETER = torch.tensor([0.5, 1.0, 2.0])
ROWS = torch.tensor([2, 0, 2])
GRID = torch.linspace(-0.9, 0.9, 32).view(1, 4, 4, 2)
WINDOW = (9,)

CALLS: dict[str, tuple[Any, ...]] = {
    "_add_relu.Scalar": (X, 0.5),
    "_add_relu.Tensor": (X, Y),
    "_addmm_activation": (X[0], X, X.T.contiguous() @ X),
    "_aminmax": (X,),
    "_aminmax.dim": (X, 1, True),
    "_cholesky_solve_helper": (X[:, :2], torch.linalg.cholesky(SQUARE @ SQUARE.T), False),
    "_compute_linear_combination": (X, torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])),
    "_conj_copy": (COMPLEX,),
    "_embedding_bag_forward_only": (X, ROWS, torch.tensor([0, 2])),
    "_grid_sampler_2d_cpu_fallback": (IMAGE, GRID, 0, 0, False),
    "_int_mm": (INTS.to(torch.int8), INTS.T.contiguous().to(torch.int8)),
    "_is_all_true": (X > -3,),
    "_is_any_true": (X > 3,),
    "_lazy_clone": (X,),
    "_linalg_eigvals": (torch.diag(PARAMETER) + torch.triu(SQUARE, 1),),
    "_logcumsumexp": (X, 1),
    "_masked_softmax": (CHANNELS[None], CHANNELS[None] > 1, 3, 2),
    "_native_batch_norm_legit_no_training": (CHANNELS, PARAMETER, -PARAMETER, PARAMETER, PARAMETER, 0.1, 1e-5),
    "_neg_view_copy": (X,),
    "_new_zeros_with_same_feature_meta": (X, Y),
    "_reshape_alias": (X, [4, 3], [3, 1]),
    "_reshape_alias_copy": (X, [4, 3], [3, 1]),
    "_reshape_copy": (X, [4, -1]),
    "_stack": ([X, Y], 1),
    "_unsafe_index.Tensor": (X, [None, ROWS]),
    "_unsafe_index_put": (X, [ROWS], Y[0], True),
    "_upsample_bicubic2d_aa": (IMAGE, [4, 9], False, None, None),
    "_upsample_bicubic2d_aa_backward": (IMAGE, [6, 6], [1, 2, 9, 4], False, None, None),
    "_upsample_lanczos2d_aa": (IMAGE, [4, 9], False, None, None),
    "_upsample_lanczos2d_aa_backward": (IMAGE, [6, 6], [1, 2, 9, 4], False, None, None),
    "_weight_norm_interface": (X, Y[:, :1].contiguous()),
    "_weight_norm_interface_backward": (Y, X, Y[:, :1].contiguous(), X.norm(dim=1, keepdim=True), 0),
    "affine_grid_generator": (torch.tensor([[[1.0, 0.5, 0.0], [0.0, 2.0, -1.0]]]), [1, 1, 3, 4], True),
    "bartlett_window": WINDOW,
    "bartlett_window.periodic": (9, False),
    "batch_norm_update_stats": (CHANNELS, PARAMETER, PARAMETER, 0.1),
    "blackman_window": WINDOW,
    "blackman_window.periodic": (9, False),
    "bucketize.Scalar": (0.6, PARAMETER),
    "clamp_max": (X, 0.5),
    "detach_copy": (X,),
    "div.Scalar_mode": (X, 0.3),
    "embedding_renorm": (X, ROWS, 1.0, 2.0),
    "fill.Tensor": (X, torch.tensor(3)),
    "floor_divide.Scalar": (INTS, -4),
    "fmod.Scalar": (X, -0.75),
    "glu_backward_jvp": (torch.ops.aten.glu_backward(X[:, :2], Y, 1), X[:, :2], Y, Y[:, 2:], -X, 1),
    "glu_jvp": (torch.nn.functional.glu(X), X, Y, 1),
    "hamming_window": WINDOW,
    "hamming_window.periodic": (9, False),
    "hamming_window.periodic_alpha": (9, True, 0.6),
    "hamming_window.periodic_alpha_beta": (9, True, 0.6, 0.3),
    "hann_window": WINDOW,
    "hann_window.periodic": (9, False),
    "kaiser_window": WINDOW,
    "kaiser_window.beta": (9, False, 6.0),
    "kaiser_window.periodic": (9, False),
    "lift": (X,),
    "lift_fresh_copy": (X,),
    "linalg__powsum": (X, 3.0, [1]),
    "native_channel_shuffle": (IMAGE, 2),
    "norm.Scalar": (X, 3),
    "norm.ScalarOpt_dim_dtype": (X, 3, [0], True),
    "norm.ScalarOpt_dtype": (X, 1),
    "range": (1, 5),
    "range.step": (1, 5, 0.5),
    "remainder.Scalar_Tensor": (-2.5, Y),
    "scatter.reduce": (X, 0, ROWS[:, None], Y),
    "scatter.value_reduce": (X, 0, ROWS[:, None], 3.0),
    "special_xlog1py.other_scalar": (X, 0.5),
    "special_xlog1py.self_scalar": (0.5, Y),
    "special_zeta.other_scalar": (Y + 1, 1.5),
    "special_zeta.self_scalar": (2.5, Y),
    "split_copy.Tensor": (X, 3, 1),
    "squeeze_copy.dims": (X[:, None], [0, 1]),
    "unsafe_split_with_sizes": (X, [1, 3], 1),
    "view.dtype": (X, torch.int32),
    "view_as_complex_copy": (torch.view_as_real(COMPLEX),),
    "view_as_real_copy": (COMPLEX,),
    "view_copy.dtype": (X, torch.int32),
    "xlogy.Scalar_Other": (X, 0.5),
    "xlogy.Scalar_Self": (0.5, Y),
    "zero": (X,),
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "div.Scalar_mode": {"rounding_mode": "floor"},
    "norm.ScalarOpt_dim_dtype": {"dtype": torch.float64},
    "norm.ScalarOpt_dtype": {"dtype": torch.float64},
    "scatter.reduce": {"reduce": "add"},
    "scatter.value_reduce": {"reduce": "multiply"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_values(name: str) -> None:
    packet, _, suffix = name.partition(".")
    op = getattr(getattr(torch.ops.jaten, packet), suffix or "default")
    args, keywords = CALLS[name], KEYWORDS.get(name, {})
    got, expected = tree_leaves(op(*args, **keywords)), tree_leaves(op_of_aten(name)(*args, **keywords))
    assert len(got) == len(expected) > 0
    for mine, its in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, its, equal_nan=True)
