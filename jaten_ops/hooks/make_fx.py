"""`torch.fx.experimental.proxy_tensor.make_fx`, and functions built on it, such as `torch.func.linearize`.

It records operators on tensors of torch's own classes; those on a subclass's it leaves to the subclass, to be recorded
as what these are made of. The device's, with values, are made of no operators, and are recorded as torch's own are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils._pytree import tree_leaves

from ..registry.handlers import handler_of
from ..tensor.operand_values import is_traced
from ..tensor.tensor import Tensor
from ..tracing import is_faked_now, opaque


def recording(dispatch: Any) -> Any:
    """`ProxyTorchDispatchMode.__torch_dispatch__`, which records operators on the device.

    There is no public way to add a class to those whose operators it records.
    """

    @opaque
    def record(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, Tensor) for t in types) and not is_faked_now():
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            if not any(is_traced(t) for t in tensors):
                _make_known(mode.tracer, [t for t in tensors if isinstance(t, Tensor)])
        found = dispatch(mode, func, types, args, kwargs or {})
        if found is NotImplemented and func is torch.ops.aten.lift_fresh.default and mode.pre_dispatch:
            with mode:  # before dispatch nobody asks the class of `torch.tensor(2.0, device="jax")`
                return handler_of(func)(*args)
        return found

    return record


def _make_known(tracer: Any, tensors: list[Any]) -> None:
    """Records a program's tensors from outside as constants, like tensors of torch's own classes."""
    for tensor in tensors:
        if not proxy_tensor.has_proxy_slot(tensor, tracer):
            proxy = tracer.proxy(tracer.create_arg(tensor))
            proxy_tensor.track_tensor(tensor, proxy, constant=None, tracer=tracer)
