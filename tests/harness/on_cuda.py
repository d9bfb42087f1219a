"""Direct calls of jaten's operators with CUDA tensors, compared with ATen's on the CPU."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from jaten_ops import registry

from .checks import FREE, Found, assert_same_derivatives, first_order
from .comparison import assert_same, in_float64
from .recorded import Call, recorded_calls
from .replay import describe, op_named


def _moved(value: Any) -> Any:
    """Arguments with CUDA tensors; the numbers that ATen takes as 0-d CPU tensors stay there."""

    def name(device: Any) -> Any:
        return "cuda" if device in ("cpu", torch.device("cpu")) else device

    return tree_map_only((str, torch.device), name, tree_map_only(torch.Tensor, lambda t: t.clone().cuda(), value))


def cuda(name: str, dtype: torch.dtype, most: int) -> Found:
    """Results of direct calls with CUDA tensors, and in double precision their gradients."""
    found = Found()
    for call in recorded_calls(name, dtype, most):
        spec = registry.SPECS[call.overload]
        if spec.random or call.overload in FREE or call.overload.startswith(("empty", "new_empty")):
            found.skipped = f"the values of {call.overload} are random, or free"
            continue
        found.compared += 1
        op = op_named(call.overload)
        try:
            expected = call.aten(*call.args, **call.kwargs)
            args, kwargs = _moved((call.args, call.kwargs))
            got = op(*args, **kwargs)
            assert all(t.is_cuda for t in tree_leaves(got) if isinstance(t, torch.Tensor)), "a result is not on the GPU"
            exact = functools.partial(in_float64, call.aten, call.args, call.kwargs)
            assert_same(call.overload, tree_map_only(torch.Tensor, torch.Tensor.cpu, got), expected, call.args, exact)
            if dtype is torch.float64 and spec.differentiable:
                moved = Call(call.overload, call.aten, args, kwargs)
                derivatives = [d if d is None else d.cpu() for d in first_order(moved, op)]
                assert_same_derivatives(derivatives, first_order(call, call.aten))
        except Exception as error:
            found.failures.append(describe(error, str(call)))
    return found.need("no overload with a kernel is reached")
