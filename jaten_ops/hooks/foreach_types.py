"""Optimizers and gradient clipping that take lists of the device's tensors at once, as on CUDA."""

from __future__ import annotations

from ..tensor.tensor import Tensor


def add_tensor(types: list[type]) -> None:
    """Adds the class of the device's tensors to those whose lists are taken at once; torch adds its DTensor so."""
    types.append(Tensor)
