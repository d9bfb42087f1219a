"""Registrations with torch's dispatcher, for calls that bypass `Tensor.__torch_dispatch__`."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .. import meta, registry
from ..arrays import bridge, carrier, partitioned
from ..device import privateuse1, streams, torch_jax
from ..registry.handlers import ABOVE_AUTOGRAD, BELOW_PYTHON, CHOSEN, HANDLERS, handler_of
from ..tensor import (
    in_place_views,  # noqa: F401  # methods of the class
    lazy_parameters,
    storage,
)
from ..tensor.tensor import Tensor
from ..tracing import is_traced_now, opaque
from ..xla import x64
from . import (
    copies,
    factories,
    first_gradients,  # noqa: F401  # its handler
    fused_attention,  # noqa: F401  # its handler
    fused_norms,  # noqa: F401  # its handler
    fused_products,  # noqa: F401  # its handler
    handler_rules,  # noqa: F401  # the choice of all other handlers
    other_layouts,
    partitioned_products,
    queries,  # noqa: F401  # its handlers
    recurrent_layers,  # noqa: F401  # its handlers
    scattered_rows,  # noqa: F401  # its handlers
)
from .operands import is_on_jax

_ATEN = torch.library.Library("aten", "IMPL")
_FALLBACK = torch.library.Library("_", "IMPL")


@opaque
def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_traced_now():
        for value in tree_leaves((args, kwargs)):
            if type(value) in (torch.Tensor, torch.nn.Parameter) and is_on_jax(value):
                carrier.view_of(value)  # raises for a tensor that C++ has made
    return (CHOSEN.get(id(func)) or handler_of(func))(*args, **kwargs)


def _after_fork() -> None:
    """Refuses computations in a forked process, without JAX's threads, for which they would wait forever."""
    if not streams.has_started():
        return  # it can start JAX itself

    def refuse(*_args: Any) -> Any:
        raise RuntimeError(
            "Cannot use JAX in a forked subprocess: it was started before the fork. With multiprocessing,"
            " use the 'spawn' start method (DataLoader: multiprocessing_context='spawn'), or CPU tensors alone."
        )

    # other processes pay nothing: the functions that all computations call are replaced in this one
    x64.enter = refuse
    setattr(x64.Enabled, "__enter__", refuse)  # noqa: B010  # mypy allows no method to be assigned
    bridge._capsule_to_buffer = refuse
    torch_jax.in_bad_fork = True


def _at_first_mesh() -> None:
    for operator, run in partitioned_products.OVER_A_MESH.items():
        _ATEN.impl(operator, opaque(run), ABOVE_AUTOGRAD)
        getattr(torch.ops.aten, operator).default._dispatch_cache.clear()  # what torch looked up to trace calls


for _overload in meta.scalars.OVERLOADS:
    _ATEN.impl(_overload, opaque(meta.scalars.meta_of(_overload)), "Meta")

os.register_at_fork(after_in_child=_after_fork)

if privateuse1.CLAIMED:
    for _operator, _registered in HANDLERS.items():
        for _key in _registered.keys:
            _ATEN.impl(_operator, opaque(_registered.run), _key)
    for _spec in registry.SPECS.values():
        if _spec.namespace == "jaten" and _spec.takes_no_tensors and _spec.overload in registry.KERNELS:
            _ATEN.impl(_spec.overload, opaque(factories.factory(_spec.overload)), BELOW_PYTHON)
    _aten = torch.ops.aten
    for _view in (_aten.alias.default, _aten._unsafe_view.default, _aten.view.dtype):
        # ATen's own of these serve all keys, before a fallback, and would give a carrier no values
        _ATEN.impl(_view.name(), opaque(handler_of(_view)), BELOW_PYTHON)
    partitioned.AT_FIRST.append(_at_first_mesh)
    # carriers come here; wrappers are caught above, by __torch_dispatch__
    _FALLBACK.fallback(_fallback, BELOW_PYTHON)
    for _key in other_layouts.KEYS:
        _FALLBACK.fallback(opaque(other_layouts.refuse_layout), _key)
    for _overload in other_layouts.MEASURES:
        _ATEN.impl(_overload, opaque(other_layouts.measure(_overload)), "NestedTensorPrivateUse1")
    _ATEN.impl("_pin_memory", opaque(copies.pin_on_cpu), "CPU")
    torch_jax.JaxModule.Tensor = Tensor  # on the device of the class
    storage.register_location()
    lazy_parameters.register_lazy_classes()
