"""`_foreach_*`: for each element of the lists, the kernel of the elementwise op of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaten_ops.registry import KERNELS, kernel
from jaten_ops.schema import FUNCTIONAL, OpSpec

# from the suffix of a foreach overload to that of the overload that it repeats
_SUFFIXES = {"": "", "List": ".Tensor", "Tensor": ".Tensor", "Scalar": ".Scalar", "ScalarList": ".Scalar"}

_EXCEPTIONS = {
    "clamp_max.Scalar": "clamp_max",
    "clamp_max.ScalarList": "clamp_max",
    "clamp_min.Scalar": "clamp_min",
    "clamp_min.ScalarList": "clamp_min",
    "norm.Scalar": "linalg_vector_norm",
    "pow.List": "pow.Tensor_Tensor",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.ScalarAndTensor": "pow.Scalar",
    "pow.ScalarList": "pow.Tensor_Scalar",
    "powsum.Scalar": "linalg__powsum",
}
_ONE_OVERLOAD = ("addcdiv", "addcmul", "maximum", "minimum")


def _repeated(spec: OpSpec) -> str:
    """The overload that a foreach overload repeats."""
    name = spec.overload.removeprefix("_foreach_")
    packet, _, suffix = name.partition(".")
    if name in _EXCEPTIONS:
        return _EXCEPTIONS[name]
    return packet if packet in _ONE_OVERLOAD else packet + _SUFFIXES[suffix]


def _element(spec: OpSpec) -> Callable[..., Any]:
    """The function for one element of each list, and the arguments that are not lists."""
    repeated = _repeated(spec)

    # looked up at the call, since the modules of kernels may be imported in any order
    if spec.packet in ("_foreach_addcdiv", "_foreach_addcmul"):
        return lambda self, tensor1, tensor2, value: KERNELS[repeated].fn(self, tensor1, tensor2, value=value)
    if repeated.startswith("linalg_"):
        return lambda self, ord, dtype: KERNELS[repeated].fn(self, ord, None, False, dtype=dtype)
    return lambda *args, **kwargs: KERNELS[repeated].fn(*args, **kwargs)


def _foreach(spec: OpSpec) -> Callable[..., Any]:
    element = _element(spec)
    # in addcdiv.Tensor and addcmul.Tensor, `scalars` is a tensor with a number for each element
    listed = [a.type.endswith("[]") or a.name == "scalars" for a in spec.arguments]
    first = listed.index(True)

    def foreach(*args, **kwargs):
        return [
            element(*(a[i] if many else a for a, many in zip(args, listed, strict=False)), **kwargs)
            for i in range(len(args[first]))
        ]

    return foreach


# aten::{_foreach_abs, _foreach_acos, _foreach_asin, _foreach_atan, _foreach_ceil, _foreach_cos, _foreach_cosh,
#     _foreach_erf, _foreach_erfc, _foreach_exp, _foreach_expm1, _foreach_floor, _foreach_frac, _foreach_lgamma,
#     _foreach_log, _foreach_log10, _foreach_log1p, _foreach_log2, _foreach_max, _foreach_neg, _foreach_reciprocal,
#     _foreach_round, _foreach_rsqrt, _foreach_sigmoid, _foreach_sign, _foreach_sin, _foreach_sinh, _foreach_sqrt,
#     _foreach_tan, _foreach_tanh, _foreach_trunc}(Tensor[] self) -> Tensor[]
# aten::{_foreach_add, _foreach_sub}.List(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]
# aten::{_foreach_add, _foreach_clamp_max, _foreach_clamp_min, _foreach_div, _foreach_maximum, _foreach_minimum,
#     _foreach_mul, _foreach_sub}.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]
# aten::{_foreach_add, _foreach_clamp_max, _foreach_clamp_min, _foreach_div, _foreach_maximum, _foreach_minimum,
#     _foreach_mul, _foreach_sub}.ScalarList(Tensor[] self, Scalar[] scalars) -> Tensor[]
# aten::_foreach_add.Tensor(Tensor[] self, Tensor other, *, Scalar alpha=1) -> Tensor[]
# aten::{_foreach_addcdiv, _foreach_addcmul}.Scalar(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2,
#     Scalar value=1) -> Tensor[]
# aten::{_foreach_addcdiv, _foreach_addcmul}.ScalarList(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2,
#     Scalar[] scalars) -> Tensor[]
# aten::{_foreach_addcdiv, _foreach_addcmul}.Tensor(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2,
#     Tensor scalars) -> Tensor[]
# aten::{_foreach_clamp_max, _foreach_clamp_min, _foreach_div, _foreach_maximum, _foreach_minimum,
#     _foreach_mul}.List(Tensor[] self, Tensor[] other) -> Tensor[]
# aten::_foreach_clone(Tensor[] self, *, MemoryFormat? memory_format=None) -> Tensor[]
# aten::_foreach_copy(Tensor[] self, Tensor[] src, bool non_blocking=False) -> Tensor[] self_out
# aten::{_foreach_div, _foreach_mul}.Tensor(Tensor[] self, Tensor other) -> Tensor[]
# aten::_foreach_lerp.List(Tensor[] self, Tensor[] tensors1, Tensor[] weights) -> Tensor[]
# aten::_foreach_lerp.Scalar(Tensor[] self, Tensor[] tensors1, Scalar weight) -> Tensor[]
# aten::_foreach_lerp.ScalarList(Tensor[] self, Tensor[] tensors1, Scalar[] weight) -> Tensor[]
# aten::_foreach_mm(Tensor[] self, Tensor[] mat2) -> Tensor[]
# aten::{_foreach_norm, _foreach_powsum}.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]
# aten::_foreach_pow.List(Tensor[] self, Tensor[] exponent) -> Tensor[]
# aten::_foreach_pow.Scalar(Tensor[] self, Scalar exponent) -> Tensor[]
# aten::_foreach_pow.ScalarAndTensor(Scalar self, Tensor[] exponent) -> Tensor[]
# aten::_foreach_pow.ScalarList(Tensor[] self, Scalar[] exponent) -> Tensor[]
# aten::_foreach_zero(Tensor[] self) -> Tensor[] self_out
for _spec in FUNCTIONAL.values():
    if _spec.overload.startswith("_foreach_"):
        _static = {"exponent", "ord"} & {a.name for a in _spec.arguments if not a.is_tensor}
        kernel(_spec.overload, static=_static)(_foreach(_spec))
