"""The precision of float32 products and convolutions on accelerators, by `torch.set_float32_matmul_precision`.

A CPU computes them in float32. GPUs and TPUs have units for shorter numbers, which JAX uses by default and torch does
not.
"""

from __future__ import annotations

import contextlib

import jax
import torch

_OF_JAX = {"highest": "highest", "high": "high", "medium": "default"}


def as_in_torch(*, is_elsewhere: bool = False) -> contextlib.AbstractContextManager[None]:
    """A context for tracing, in which products have the precision of torch's setting.

    It changes nothing where JAX computes on a CPU, or where the program has set `jax_default_matmul_precision`.

    Args:
        is_elsewhere: whether the program is for other platforms than this machine's.
    """
    if jax.config.jax_default_matmul_precision is not None:  # type: ignore[attr-defined]  # JAX makes it at run time
        return contextlib.nullcontext()
    if not is_elsewhere and jax.local_devices()[0].platform == "cpu":
        return contextlib.nullcontext()
    return jax.default_matmul_precision(_OF_JAX[torch.get_float32_matmul_precision()])
