"""The choice of an operator's handler, made at its first call on the device `jax`: RULES, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import registry
from ..arrays import view_ops
from ..registry import external_ops
from ..registry.handlers import HANDLERS, Handler, choose_by
from ..schema import VARIANTS
from .aliasing import in_place_view, view_op
from .collectives import collective
from .compositions import composition, third_party
from .functional import functional
from .writes import variant


class Rule(NamedTuple):
    """A condition on operators, and a function that makes the handler of one."""

    name: str
    applies_to: Callable[[Any], bool]
    make: Callable[[Any], Handler]


def _is_view(func: Any) -> bool:
    return func.namespace == "aten" and view_ops.is_view(func)


def _is_in_place_view(func: Any) -> bool:
    spec = VARIANTS.get(external_ops.name_of(func))
    return spec is not None and "inplace_view" in spec.tags


def _of_kernel(func: Any) -> Handler:
    overload = external_ops.name_of(func)
    if external_ops.is_foreign(overload):
        external_ops.require_schema(registry.SPECS[overload], func)
    return functional(overload, row_major=func.namespace == "jaten")


RULES: tuple[Rule, ...] = (
    Rule("registered", lambda func: func.name() in HANDLERS, lambda func: HANDLERS[func.name()].run),
    Rule("collective", lambda func: func.namespace == "c10d", collective),
    Rule("view", _is_view, view_op),
    Rule("in-place view", _is_in_place_view, in_place_view),
    Rule("variant", lambda func: external_ops.name_of(func) in VARIANTS, lambda f: variant(external_ops.name_of(f))),
    Rule("kernel", lambda func: external_ops.name_of(func) in registry.KERNELS, _of_kernel),
    Rule("third party", lambda func: external_ops.is_foreign(func.name()), third_party),
    Rule("composition", lambda func: True, composition),
)
"""The handler of an operator is made by the first rule that takes it:

registered: a function with the decorator `@handler`.
collective: `torch.distributed`'s, run by the CPU's.
view: a tensor in the operand's storage.
in-place view: `t_` and its like, by the view of the same name.
variant: an in-place or out= form, by the functional overload and a write.
kernel: the JAX kernel, or the operator's node in a graph that torch captures.
third party: an operator of another library without kernel here.
composition: ATen's own, of operators for which the rules are asked again.
"""


def rule_for(func: Any) -> Rule:
    """The first rule that applies to an operator."""
    return next(rule for rule in RULES if rule.applies_to(func))


choose_by(lambda func: rule_for(func).make(func))
