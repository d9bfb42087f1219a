"""The default gradient of a kernel: its `jax.vjp`, in PyTorch's convention, as another kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import checks
from .promotion import is_complex, is_inexact


def _flat(results: Any) -> list[jax.Array | None]:
    if isinstance(results, tuple | list):
        return [a for r in results for a in _flat(r)]
    return [None if results is None else jnp.asarray(results)]


def _conjugate(x: jax.Array) -> jax.Array:
    # torch's gradient of a real loss by z is dL/d(re z) + i dL/d(im z); JAX's is the conjugate of that
    return jnp.conj(x) if is_complex(x.dtype) else x


def make_vjp(
    fn: Callable[..., Any],
    names: Sequence[str],
    keyword_names: Sequence[str],
    differentiable: Sequence[str],
    nondifferentiable_outputs: Sequence[int],
) -> Callable[..., list[jax.Array]]:
    """The kernel of `<op>_vjp(grads, output_mask, *arguments of the op)`.

    Args:
        fn: the kernel of the op.
        names: its positional parameters, in schema order.
        keyword_names: its keyword-only parameters.
        differentiable: those of its parameters that may get a gradient, in the order of `output_mask`.
        nondifferentiable_outputs: the indices of the results that no element of `grads` belongs to.

    Returns:
        A kernel that returns the gradients of the parameters selected by `output_mask`; a list of tensors
        contributes as many gradients as it has elements.
    """

    def vjp(grads: Sequence[jax.Array], output_mask: Sequence[bool], /, *args: Any, **kwargs: Any) -> list[jax.Array]:
        bound = dict(zip(names, args, strict=True)) | kwargs
        wanted = [n for n, on in zip(differentiable, output_mask, strict=True) if on]

        def forward(*primals: Any) -> list[jax.Array]:
            values = bound | dict(zip(wanted, primals, strict=True))
            with checks.collect(None):  # the forward call has checked them
                outputs = _flat(fn(*(values[n] for n in names), **{n: values[n] for n in keyword_names}))
            return [
                x
                for i, x in enumerate(outputs)
                if x is not None and i not in nondifferentiable_outputs and is_inexact(x.dtype)
            ]

        outputs, pull = jax.vjp(forward, *(bound[n] for n in wanted))
        cotangents = [_conjugate(g.astype(o.dtype)) for g, o in zip(grads, outputs, strict=True)]
        pulled = jax.tree.leaves(pull(cotangents))
        primals = jax.tree.leaves([bound[n] for n in wanted])
        return [
            jnp.zeros(p.shape, p.dtype) if g.dtype == jax.dtypes.float0 else _conjugate(g)
            for p, g in zip(primals, pulled, strict=True)
        ]

    return vjp
