"""Errors for arguments, mostly dtypes, that ATen's kernels refuse although its meta functions accept them.

Only its kernels know that `bitwise_and` does not support floats. So ATen itself is called, on the CPU, with
tensors of ones whose sizes are cut to 1: for an elementwise operator or a reduction these are valid arguments if and
only if the call's are, and the error is ATen's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from jaten_ops.schema import FUNCTIONAL, OpSpec

from . import scalars
from .reuse import aten_overload

# Kinds of numbers are refused, and mostly not widths: JAX has kernels where ATen lacks one for a width.
_SAME_KIND = {
    **dict.fromkeys((torch.float16, torch.bfloat16), torch.float32),
    **{getattr(torch, n): torch.float32 for n in dir(torch) if n.startswith("float8_")},
    **dict.fromkeys((torch.uint16, torch.uint32, torch.uint64), torch.int64),
}

# Neither tagged pointwise nor reduction, but sizes of 1 are as valid as any others.
_OTHERS = frozenset({
    "complex", "polar", "mse_loss", "huber_loss", "smooth_l1_loss", "soft_margin_loss", "_softmax", "_log_softmax",
    "_safe_softmax", "sort", "sort.stable", "median", "median.dim", "nanmedian", "nanmedian.dim", "mode", "cumsum",
    "cumprod", "cummax", "cummin", "logcumsumexp", "_logcumsumexp", "log_sigmoid_forward", "hardswish", "_prelu_kernel",
    "floor_divide", "floor_divide.Scalar", "rsub.Tensor", "addr", "dot", "vdot", "mv", "addmv", "mm", "addmm", "bmm",
    "baddbmm", "addbmm", "trace", "dist", "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "_linalg_eigh",
    "linalg_householder_product", "linalg_lu", "linalg_lu_factor_ex", "linalg_solve_triangular", "triangular_solve",
    "linalg_lstsq", "unique_consecutive", "_unique2", "bucketize.Tensor", "searchsorted.Tensor", "hash_tensor",
    "bincount", "_softmax_backward_data", "ormqr", "binary_cross_entropy", "_linalg_det", "_linalg_slogdet",
    "_linalg_solve_ex", "_linalg_svd",
})  # fmt: skip

# JAX has no kernels for these widths either: LAPACK's and FFTs are for single and double precision.
_OF_WIDTHS = frozenset({
    "complex", "polar", "cholesky", "linalg_cholesky_ex", "geqrf", "linalg_qr", "linalg_lu", "linalg_lu_factor_ex",
    "linalg_eig", "_linalg_eigh", "linalg_householder_product", "linalg_lstsq", "_linalg_solve_ex", "linalg_inv_ex",
    "_linalg_svd", "_linalg_det", "_linalg_slogdet", "_fft_r2c",
})  # fmt: skip

# Operators that have sizes among their arguments, and the kinds of self, or of the result without one, that their
# kernels on the CPU take: f floating, c complex, i integral, u uint8, b bool.
_KINDS = {
    "f": """_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d
        fractional_max_pool3d max_unpool2d max_unpool3d glu rrelu_with_noise_functional upsample_linear1d
        upsample_trilinear3d grid_sampler_2d grid_sampler_3d _ctc_loss _ctc_loss.Tensor nll_loss_forward
        nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward binary_cross_entropy_with_logits
        native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_functional
        _native_batch_norm_legit.no_stats _batch_norm_with_update_functional max_pool2d_with_indices_backward
        poisson""",
    "fc": "randn_like",
    "fu": """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bilinear2d upsample_bicubic2d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa""",
    "fi": "avg_pool2d avg_pool3d",
    "fiu": """max_pool2d_with_indices max_pool3d_with_indices kthvalue geometric convolution index_reduce histc
        arange arange.start arange.start_step range range.step randperm randperm.generator""",
    # windows of integers are refused elsewhere
    "fiub": """bernoulli.p bartlett_window bartlett_window.periodic blackman_window blackman_window.periodic
        hamming_window hamming_window.periodic hamming_window.periodic_alpha hamming_window.periodic_alpha_beta
        hann_window hann_window.periodic kaiser_window kaiser_window.periodic kaiser_window.beta""",
    "fciu": """linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor logspace
        logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor reflection_pad1d reflection_pad2d
        reflection_pad3d replication_pad1d replication_pad2d replication_pad3d linalg_cross _trilinear""",
    "fcb": "im2col col2im",
}
_TAKEN = {overload: kinds for kinds, overloads in _KINDS.items() for overload in overloads.split()}

ASKED: frozenset[str] = (
    _OTHERS
    | _OF_WIDTHS
    | {
        o
        for o, spec in FUNCTIONAL.items()
        if (spec.tags & {"pointwise", "reduction"} or o.startswith("_foreach_")) and not spec.random
    }
)
"""The overloads for which ATen is called."""


def refuse(spec: OpSpec, args: Any, kwargs: Any) -> None:
    """Raises ATen's error for arguments of these dtypes, dims and numbers; tensors may be on any device."""
    if spec.namespace != "jaten":
        return
    if spec.overload in _OF_ONE_DTYPE and _mixes_widths(args, kwargs):
        raise RuntimeError(f"{spec.name}: expected tensors of one dtype, got {args[0].dtype} and others")
    if spec.overload in ASKED:
        if "correction" in kwargs:  # with sizes of 1 nothing would be left, and ATen would warn
            kwargs = kwargs | {"correction": 0}
        same_kind = {} if spec.overload in _OF_WIDTHS or _mixes_widths(args, kwargs) else _SAME_KIND
        cut_args, kwargs = tree_map(lambda value: _cut(value, same_kind), (args, kwargs))
        if kwargs.get("sorter") is not None:  # indices of elements, of which there is one
            kwargs = kwargs | {"sorter": kwargs["sorter"] - 1}
        if spec.overload in scalars.OVERLOADS:  # as many numbers as there are tensors
            cut_args = [*cut_args[:3], torch.ones(args[3].shape, dtype=args[3].dtype)]
        _ask(spec, (cut_args, kwargs))
    elif spec.overload in _TAKEN:
        dtype = kwargs.get("dtype") or getattr(args[0], "dtype", torch.float32)
        if _kind(dtype) not in _TAKEN[spec.overload] and not _is_taken_empty(spec, args, kwargs):
            raise NotImplementedError(f"{spec.name} is not implemented for {dtype}, as on the CPU in ATen")
        if spec.overload.startswith("grid_sampler_"):
            _refuse_to_sample(spec, *args[:2])
        elif "_norm" in spec.overload:
            _refuse_to_normalize(spec, args, kwargs)


_LOOKS_AT_SIZES = (
    "adaptive_",
    "fractional_",
    "max_unpool",
    "upsample_",
    "max_pool",
    "avg_pool",
    "linspace",
    "logspace",
)


def _is_taken_empty(spec: OpSpec, args: Any, kwargs: Any) -> bool:
    """True if ATen looks at no element, and thus not at the dtype; raises its error where it looks at sizes first."""
    looks = spec.overload.removeprefix("_").startswith(_LOOKS_AT_SIZES) or "_window" in spec.overload
    if not looks or "backward" in spec.overload:
        return False
    try:
        _ask(spec, tree_map(_without_memory, (args, {k: v for k, v in kwargs.items() if k != "device"})))
    except NotImplementedError:
        return False
    return True


_OF_ONE_DTYPE = frozenset({"linalg_cross", "_cdist_forward", "huber_loss_backward"})
_MIXED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _mixes_widths(args: Any, kwargs: Any) -> bool:
    """True if tensors have several of these types, as which of them kernels take together depends on the widths."""
    return len({v.dtype for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)}.intersection(_MIXED)) > 1


def _refuse_to_normalize(spec: OpSpec, args: Any, kwargs: Any) -> None:
    """Raises for parameters and statistics of another dtype than the input's, but for float32 with half precision."""
    dtype, *others = [v.dtype for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    if set(others) not in (set(), {dtype}, {wide}):
        raise RuntimeError(f"{spec.name}: mixed dtype (CPU): expected parameters of {wide}, got {others}")


def _refuse_to_sample(spec: OpSpec, input: torch.Tensor, grid: torch.Tensor) -> None:
    if input.dtype != grid.dtype:
        raise RuntimeError(f"{spec.name}: expected a grid of the input's dtype, {input.dtype}, got {grid.dtype}")
    if 0 in input.shape[2:]:
        raise RuntimeError(f"{spec.name}: expected an input that is not empty in space, got {list(input.shape)}")


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point or dtype.is_complex:
        return "c" if dtype.is_complex else "f"
    return {torch.bool: "b", torch.uint8: "u"}.get(dtype, "i")


def reword(spec: OpSpec, args: Any, kwargs: Any) -> None:
    """Raises the error of ATen's kernel for a call that its meta function has refused, perhaps with another class.

    Only for public operators: others rely on their callers, and could crash.
    """
    public = not (spec.overload.startswith(("_", "native_")) or "backward" in spec.overload)
    if public and spec.namespace == "jaten":
        random_state = torch.get_rng_state() if spec.random else None
        try:
            on_cpu = {k: v for k, v in kwargs.items() if k != "device"}
            _ask(spec, tree_map(_without_memory, (args, on_cpu)))
        finally:
            if random_state is not None:
                torch.set_rng_state(random_state)


def _ask(spec: OpSpec, arguments: Any) -> None:
    op = aten_overload(spec.overload)
    if op is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op(*arguments[0], **arguments[1])


def _cut(value: Any, same_kind: Mapping[torch.dtype, torch.dtype]) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ones([min(n, 1) for n in value.shape], dtype=same_kind.get(value.dtype, value.dtype))
    return same_kind.get(value, value) if isinstance(value, torch.dtype) else value


def _without_memory(value: Any) -> Any:
    return torch.zeros((), dtype=value.dtype).expand(value.shape) if isinstance(value, torch.Tensor) else value
