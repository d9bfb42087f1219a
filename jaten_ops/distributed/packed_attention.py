"""`nn.MultiheadAttention` over a mesh: the packed weight of its three products is partitioned within each of them.

The weight has the rows of queries, keys and values one after the other, so that a device has rows of one or two of
them. Of a product by the whole weight, each device would then need the results of others. Within the forward the weight
is three matrices instead, each partitioned along its rows: parts of the weight move, and no values do.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.utils.stateless import _reparametrize_module

from ..arrays.placements import Layout
from ..tensor.mesh_methods import constrained_by

_PACKED = "in_proj_weight"
_PARTS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # that a module with a packed weight has as None


class WrappedForward:
    """The forward of a module with something around it, in place of the module's own."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.forward = module, module.forward

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        packed: Any = self.module.in_proj_weight
        if packed.device.type != "jax":
            return self.forward(*args, **kwargs)
        matrices = {name: constrained_by(part, self.text) for name, part in zip(_PARTS, packed.chunk(3), strict=True)}
        self.module._qkv_same_embed_dim = False
        try:
            with _reparametrize_module(self.module, matrices):
                return self.forward(*args, **kwargs)
        finally:
            self.module._qkv_same_embed_dim = True


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
