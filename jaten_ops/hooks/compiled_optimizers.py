"""Optimizers of tensors of the device in functions that Dynamo captures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .ledger import Patch


def with_steps_beside_parameters(get: Callable[..., Any]) -> Callable[..., Any]:
    """`OptimizerVariable.get_python_args`, by which `_init_group` creates step counts beside the parameters.

    Where a group is not `capturable`, it creates them on the CPU. Dynamo makes groups of CUDA tensors so, and moves
    other counts when it comes to the next group: the graph would go on to count in what the optimizer has no more.
    """

    @functools.wraps(get)
    def get_python_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        found, named = get(self, *args, **kwargs)
        return [_capturable(value) for value in found], {name: _capturable(value) for name, value in named.items()}

    return get_python_args


def _capturable(value: Any) -> Any:
    """A copy, which is `capturable`, of a group with tensors of the device; anything else as it is."""
    is_group = isinstance(value, dict) and "capturable" in value
    return {**value, "capturable": True} if is_group and _has_device(value["params"]) else value


def _has_device(params: Any) -> bool:
    return any(p.device.type == "jax" for p in params)


def _is_use(args: tuple[Any, ...], _: dict[str, Any]) -> bool:
    """True for a method of Dynamo's object for an optimizer with several groups, of which some are on the device."""
    groups = args[0].value.param_groups
    return len(groups) > 1 and any(_has_device(group["params"]) for group in groups)


ROW = Patch(
    "torch._dynamo.variables.optimizer:OptimizerVariable.get_python_args",
    with_steps_beside_parameters,
    "an optimizer with several groups in a captured function would count the steps of the last one alone",
    "hooks/test_compiled_optimizers",
    takes="self",
    when="Dynamo",
    used_by=("torch._dynamo.variables.optimizer:OptimizerVariable.move_step_if_cpu",),
    is_use=_is_use,
    optional=True,
)
