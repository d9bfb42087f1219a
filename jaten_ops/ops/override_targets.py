"""The operators that can be overridden, by the names that programs have for them."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from .. import registry
from ..errors import OverrideTargetError
from ..meta import aten_overload
from ..registry import external_ops
from ..schema import COMPOSITE, VARIANTS, OpSpec

FUNCTIONS: dict[str, str] = {
    "cross_entropy": "cross_entropy_loss",
    "fold": "col2im",
    "interpolate": "",
    "log_softmax": "log_softmax.int",
    "logsigmoid": "log_sigmoid",
    "nll_loss": "nll_loss_nd",
    "softmax": "softmax.int",
}
"""Functions of `torch.nn.functional` that call an overload of another name; those of the same name have no row."""

_WRITES_STATISTICS = frozenset({
    "_batch_norm_impl_index", "batch_norm", "cudnn_batch_norm", "instance_norm", "miopen_batch_norm",
    "native_batch_norm",
})  # fmt: skip


def target_of(target: str | torch._ops.OpOverload, where: str) -> OpSpec:
    """The overload that a target names: one of ATen, its operator, or a function of `torch.nn.functional`.

    Raises:
        UnknownOpError: there is none of this name.
        OverrideTargetError: it cannot be overridden.
    """
    given = external_ops.name_of(target) if isinstance(target, torch._ops.OpOverload) else target
    name = given.removeprefix("aten::")
    if name in FUNCTIONS:
        name = FUNCTIONS[name]
    spec = registry.SPECS.get(name) or COMPOSITE.get(name) or VARIANTS.get(name)
    if spec is None:
        if callable(getattr(torch.nn.functional, given, None)) or given in FUNCTIONS:
            _refuse(given, "is a Python function that calls several operators", "override one of those")
        raise registry.unknown(given, where)
    _check(spec)
    return spec


def _check(spec: OpSpec) -> None:
    name = spec.overload
    if spec.namespace != "jaten":
        _refuse(spec.name, "is no operator of ATen", "register its kernel with `jaten_ops.kernel` or `jaten_ops.op`")
    if name in VARIANTS:
        base = VARIANTS[name].base
        remedy = f"override {base!r}, which holds for its in-place form as well"
        _refuse(name, "writes to an argument" if spec.kind == "inplace" else "writes its result to `out`", remedy)
    aten = aten_overload(name)
    if aten is None:
        _refuse(name, "is not in the installed torch", "override one that is")
    if spec.kind == "view" or any(a.alias_info is not None for a in aten._schema.arguments):
        _refuse(name, "may return a view of its operand", "override the operators that compute with the view")
    if name in _WRITES_STATISTICS:
        _refuse(name, "updates running statistics", "override the operators around it")
    if spec.random and not spec.draws_by:
        _refuse(name, "draws random numbers", "override the operators that use them")
    if not spec.returns or not all(kind in ("Tensor", "Tensor[]") for kind in spec.returns):
        _refuse(name, f"returns {', '.join(spec.returns) or 'nothing'}", "override one that returns tensors")
    if spec.takes_no_tensors:
        _refuse(name, "takes no tensor", "override the operators that use what it makes")


def _refuse(name: Any, problem: str, remedy: str) -> NoReturn:
    raise OverrideTargetError(str(name), problem, remedy)
