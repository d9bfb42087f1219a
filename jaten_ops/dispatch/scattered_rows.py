"""Scatters on the device `jax` by an index that is expanded from row numbers, as graph networks have them.

Element by element they take ten times as long as by rows: ATen's kernels look for such an index, too. In graphs that
torch captures, `backend/passes/expanded_index_scatters.py` finds them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from ..arrays import attributes
from ..arrays.storage_views import View
from ..registry.handlers import Handler, handler
from ..tensor.tensor import Tensor, from_view
from .functional import functional
from .writes import variant


def _numbers_of(target: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor | None:
    """The row numbers (n,) of which an index is the expansion to whole rows of a tensor; None if it is none."""
    view = attributes.view_or_none(index) if type(index) is Tensor else None
    if view is None or index.dtype != torch.int64 or not -len(view.shape) <= dim < len(view.shape):
        return None
    dim, strides = dim % len(view.shape), view.strides()
    others = [d for d in range(len(view.shape)) if d != dim]
    if prod(view.shape[d] for d in others) < 2 or any(strides[d] and view.shape[d] > 1 for d in others):
        return None
    if target.dim() != index.dim() or any(target.shape[d] != view.shape[d] for d in others):
        return None
    return from_view(View(view.storage, (view.shape[dim],), (strides[dim],), view.offset), index.dtype)


def _numbers(target: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> torch.Tensor | None:
    """The same for a scatter of a source, if that has the index's shape."""
    fits = isinstance(source, torch.Tensor) and source.shape == index.shape and source.dtype == target.dtype
    return _numbers_of(target, dim, index) if fits else None


def row_operator(how: Any, include_self: bool, of_floats: bool) -> str | None:
    """The operator that reduces whole rows as `scatter_reduce` does elements, if there is one."""
    if how == "sum" and include_self:
        return "index_add"
    # it rounds the mean of integers differently
    return "index_reduce" if how in ("prod", "mean", "amax", "amin") and of_floats else None


def _scatter_add(overload: str, by_rows: str, operator: Any) -> Handler:
    def scatter_add(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
        numbers = _numbers(self, dim, index, src)
        if numbers is None:
            return operator(overload)(self, dim, index, src)
        return operator(by_rows)(self, dim, numbers, src)

    return scatter_add


def _scatter_reduce(overload: str, suffix: str, operator: Any) -> Handler:
    def scatter_reduce(
        self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *, include_self: bool = True
    ) -> Any:
        by_rows = row_operator(reduce, include_self, self.is_floating_point())
        numbers = _numbers(self, dim, index, src) if by_rows else None
        if by_rows is None or numbers is None:
            return operator(overload)(self, dim, index, src, reduce, include_self=include_self)
        if by_rows == "index_add":
            return operator(by_rows + suffix)(self, dim, numbers, src)
        return operator(by_rows + suffix)(self, dim, numbers, src, reduce, include_self=include_self)

    return scatter_reduce


@handler("aten::gather")
def gather(self: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    """The operator, by rows in a backward, where the index is known to be in range: elsewhere its error is another."""
    numbers = _numbers_of(self, dim, index) if torch._C._current_autograd_node() is not None else None
    if numbers is None:
        return functional("gather")(self, dim, index, sparse_grad=sparse_grad)
    return functional("index_select")(self, dim, numbers)


handler("aten::scatter_add")(_scatter_add("scatter_add", "index_add", functional))
handler("aten::scatter_add_")(_scatter_add("scatter_add_", "index_add_", variant))
handler("aten::scatter_reduce.two")(_scatter_reduce("scatter_reduce.two", "", functional))
handler("aten::scatter_reduce_.two")(_scatter_reduce("scatter_reduce_.two", "_", variant))
