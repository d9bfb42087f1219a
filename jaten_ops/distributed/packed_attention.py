"""`nn.MultiheadAttention` over a mesh: the packed weight of its three products is partitioned within each of them.

The weight has the rows of queries, keys and values one after the other, so that a device has rows of one or two of
them. Of a product by the whole weight, each device would then need the results of others. Within the forward the weight
is three matrices instead, each partitioned along its rows: parts of the weight move, and no values do.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module

from ..arrays.placements import Layout
from ..tensor.mesh_methods import constrained_by

_PACKED = "in_proj_weight"
_PARTS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # that a module with a packed weight has as None

_LOCKS: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()  # not in the module: it may be copied


class WrappedForward:
    """The forward of a module with other tensors in place of its parameters, in place of the module's own.

    They are put in by the context manager of `torch.func.functional_call`, which Dynamo traces in loops and in
    checkpoints, too, and which puts the module's own back when a recomputed forward stops early.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.forward = module, module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # which is one thread at a time, and traces no lock
            return self.run(*args, **kwargs)
        with _LOCKS.setdefault(self.module, threading.RLock()):
            return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the forward while no other thread does."""
        with _reparametrize_module(self.module, self.tensors()):
            return self.forward(*args, **kwargs)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors, by the names of parameters."""
        raise NotImplementedError

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the module's own forward, by which libraries see what it takes."""
        return inspect.signature(self.forward)


class _SplitForward(WrappedForward):
    """The forward of `nn.MultiheadAttention`, in which it has three matrices, as one with other sizes of keys has."""

    module: nn.MultiheadAttention

    def __init__(self, module: nn.MultiheadAttention, text: str) -> None:
        super().__init__(module)
        self.text = text

    def run(self, *args: Any, **kwargs: Any) -> Any:
        packed: Any = self.module.in_proj_weight
        if packed.device.type != "jax":
            return self.forward(*args, **kwargs)
        self.module._qkv_same_embed_dim = False
        try:
            return super().run(*args, **kwargs)
        finally:
            self.module._qkv_same_embed_dim = True

    def tensors(self) -> dict[str, torch.Tensor]:
        packed: Any = self.module.in_proj_weight
        return {name: constrained_by(part, self.text) for name, part in zip(_PARTS, packed.chunk(3), strict=True)}


def split_packed(module: nn.Module, layouts: Mapping[str, Layout]) -> None:
    """Wraps the forward of each `nn.MultiheadAttention` of a module whose packed weight is partitioned by its rows.

    Args:
        module: the module, with its parameters over the mesh.
        layouts: those of a plan, by the names of the parameters.
    """
    for name, layout in layouts.items():
        owner, _, parameter = name.rpartition(".")
        axes = tuple(axis for dim, found in layout.dims if dim in (0, -2) for axis in found or ())
        part = module.get_submodule(owner)
        if parameter != _PACKED or not axes or not isinstance(part, nn.MultiheadAttention):
            continue
        if type(part).forward is nn.MultiheadAttention.forward:
            text = Layout(layout.mesh, ((0, axes),)).text()
            had = part.__dict__.get("forward")
            if isinstance(had, _SplitForward):
                had.text = text
            else:
                part.forward = _SplitForward(part, text)  # type: ignore[method-assign]  # the class keeps its own
