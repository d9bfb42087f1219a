"""The operators that can be overridden, by the names that programs have for them.

Functions of `torch.nn.functional` that are Python code of several operators are none. Such a function becomes one, made
of the same code, which programs call while an override of it is active.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NoReturn, get_args

import torch

from .. import registry
from ..errors import OverrideTargetError
from ..meta import aten_overload
from ..registry import external_ops
from ..schema import COMPOSITE, VARIANTS, OpSpec
from . import define
from .namespace import LOCK, operator_of

FUNCTIONS: dict[str, str] = {
    "cross_entropy": "cross_entropy_loss",
    "fold": "col2im",
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


_RANDOM = frozenset({
    "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", "gumbel_softmax",
})  # fmt: skip

OF_FUNCTIONS = "jaten_function"
"""The namespace of the operators that are functions of `torch.nn.functional`."""

_functions: dict[str, OpSpec] = {}


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
        function = getattr(torch.nn.functional, given, None)
        if given not in _functions and not (inspect.isfunction(function) and not given.startswith("_")):
            raise registry.unknown(given, where)
        return _of_function(given, function)
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


def operator(spec: OpSpec) -> Any:
    """The torch operator of a target."""
    return aten_overload(spec.overload) if spec.namespace == "jaten" else operator_of(spec.overload, OF_FUNCTIONS)


# Functions


def _of_function(name: str, function: Any) -> OpSpec:
    """The operator of a function, which is defined at its first use."""
    with LOCK:
        if name not in _functions:
            if name in _RANDOM:
                _refuse(name, "draws random numbers", "override the operators that use them")
            parameters, returns = _schema_of(name, function)
            schema = f"{name}({parameters}) -> {returns}"
            spec = OpSpec(schema=schema, kind="composite", namespace=OF_FUNCTIONS)
            define.define_composition(spec, function)
            _functions[name] = spec
        return _functions[name]


_TYPES = {torch.Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool", str: "str", list[int]: "SymInt[]"}


def _schema_of(name: str, function: Callable[..., Any]) -> tuple[str, str]:
    """The parameters and the results of a function as a schema has them, but for options of other types."""
    signature = inspect.signature(function)
    parameters: list[str] = []
    for p in signature.parameters.values():
        kind = None if p.name == "out" else _type_of(p.annotation)
        if kind is None and p.default is inspect.Parameter.empty:
            _refuse(name, f"is a Python function whose {p.name!r} has no type of an operator's", "override its parts")
        if kind is None:
            continue
        if p.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        default = "" if p.default is inspect.Parameter.empty else f"={_default(p.default)}"
        parameters.append(f"{kind} {p.name}{default}")
    found = signature.return_annotation
    kinds = [_type_of(t) for t in get_args(found)] if getattr(found, "__origin__", None) is tuple else [_type_of(found)]
    if not all(kind == "Tensor" for kind in kinds):
        _refuse(name, "is a Python function that does not return tensors alone", "override its parts")
    return ", ".join(parameters), "Tensor" if len(kinds) == 1 else f"({', '.join(map(str, kinds))})"


def _type_of(annotation: Any) -> str | None:
    if annotation in _TYPES:
        return _TYPES[annotation]
    either = get_args(annotation)
    rest = [t for t in either if t is not types.NoneType]
    return f"{_TYPES[rest[0]]}?" if len(either) == 2 and len(rest) == 1 and rest[0] in _TYPES else None


def _default(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def function_through(spec: OpSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls its operator; with an option that the operator lacks, itself."""
    op, names = operator(spec), frozenset(a.name for a in spec.arguments)
    most = sum(not a.kwarg_only for a in spec.arguments)

    @functools.wraps(function)
    def through(*args: Any, **kwargs: Any) -> Any:
        if len(args) > most or not names.issuperset([n for n in kwargs if kwargs[n] is not None]):
            return function(*args, **kwargs)
        return op(*args, **{n: v for n, v in kwargs.items() if n in names})

    return through
