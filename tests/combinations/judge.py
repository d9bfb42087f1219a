"""Comparison of a way's outcome with plain torch's: values, dtypes, shapes, structure, and no internal tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import torch
from torch.utils._pytree import tree_flatten

import jaten_ops

from .uses import Layouts

RTOL, ATOL = 1e-7, 1e-9  # of float64: sums are added in another order


def difference(got: Any, expected: Any, device: str, has_layouts: bool) -> str | None:
    """The first difference between two outcomes, in a line; None if there is none.

    Args:
        got: what a way has given, on `device`.
        expected: what plain torch gives on the CPU.
        device: where the way's tensors must be.
        has_layouts: whether strides and offsets are compared.
    """
    (leaves, structure), (wanted, wanted_structure) = tree_flatten(_ordered(got)), tree_flatten(_ordered(expected))
    if structure != wanted_structure:
        return f"structure: got {structure}, expected {wanted_structure}"
    for n, (value, want) in enumerate(zip(leaves, wanted, strict=True)):
        found = _leaf(value, want, device, has_layouts)
        if found is not None:
            return f"value {n}: {found}"
    return None


def _ordered(value: Any) -> Any:
    """The same with dictionaries in the order of their keys, as JAX returns them."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return type(value)(map(_ordered, value)) if type(value) in (list, tuple) else value


def _leaf(got: Any, expected: Any, device: str, has_layouts: bool) -> str | None:
    if isinstance(expected, Layouts):
        if not has_layouts or dataclasses.astuple(got) == dataclasses.astuple(expected):
            return None
        return f"layouts: got {got.of}, expected {expected.of}"
    if not isinstance(expected, torch.Tensor):
        return None if type(got) is type(expected) and got == expected else f"got {got!r}, expected {expected!r}"
    if inside := _inside(got, device):
        return inside
    got = got.detach().cpu()
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"got {got.dtype} {tuple(got.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
    is_exact = expected.dtype in (torch.float64, torch.complex128) or not expected.is_floating_point()
    rtol, atol = (RTOL, ATOL) if is_exact else (1e-5, 1e-6)
    try:
        torch.testing.assert_close(got, expected.detach(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return None


def _inside(value: Any, device: str) -> str | None:
    """The fault of a tensor by itself: its class, its device, or its contents; None without one."""
    if not isinstance(value, torch.Tensor):
        return f"got {type(value)}, expected a tensor"
    if value.device.type != device:
        return f"a tensor on {value.device}, expected one on {device}"
    if device != "jax":
        return None
    if not isinstance(value, jaten_ops.Tensor):
        return f"an inside leaves: {type(value)}"
    array = jaten_ops.to_jax(value)
    return None if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) else "a tracer leaves"
