"""`torch.compile` without a backend: programs with tensors of the device `jax` go to jaten, all others to Inductor.

Inductor has no code for the device. If torch calls it in another way than is expected here, such programs need
`backend="jaten"`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def _is_on_jax(values: Iterable[Any]) -> bool:
    return any(isinstance(x, torch.Tensor) and x.device.type == "jax" for x in values)


def if_on_cpu(inductor: Any) -> Any:
    """The call of Inductor's wrapper, unless the program has tensors of the device."""

    @functools.wraps(inductor)
    def compile_fx(self: Any, gm: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        made = tree_leaves([node.meta.get("example_value") for node in gm.graph.nodes])
        if _is_on_jax(inputs) or _is_on_jax(made):
            return torch._dynamo.lookup_backend("jaten")(gm, inputs)
        return inductor(self, gm, inputs, **options)

    return compile_fx
