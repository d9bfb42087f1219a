"""Arrays stored in row-major order: the same arrays, transformed and exported."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jaten_ops.xla import cpu_features
from jaten_ops.xla.memory_order import in_order

X, Y = (np.random.default_rng(0).standard_normal((6, 4), np.float32) for _ in range(2))


def _product(x: Any, y: Any) -> jax.Array:
    return in_order(jnp.swapaxes(x, -1, -2)) @ jnp.sin(y)


def _plain(x: Any, y: Any) -> jax.Array:
    return jnp.swapaxes(x, -1, -2) @ jnp.sin(y)


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "none": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(lambda x, y: jnp.sum(f(x, y) ** 2), (0, 1)),
    "second": lambda f: jax.grad(lambda x, y: jnp.sum(jax.grad(lambda x: jnp.sum(f(x, y) ** 3))(x) ** 2)),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    "vmap": lambda f: lambda x, y: jax.vmap(f, (0, None))(jnp.stack([x, 2 * x]), y),
    "vmap over the last": lambda f: lambda x, y: jax.jit(jax.vmap(f, (2, None)))(jnp.stack([x, y], 2), y),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x, y: jnp.sum(f(x[None], y[None]) ** 2)), (0, 0)),
    "dimensions of one element": lambda f: lambda x, y: f(x[:, None, :1], y[:, None, :1]),
    "checkpoint": lambda f: jax.grad(lambda x, y: jnp.sum(jax.checkpoint(f)(x, y) ** 2)),
    "loop": lambda f: lambda x, y: jax.lax.map(lambda a: f(a[None], y[:1]), x),
    "export": lambda f: lambda x, y: jax.export.deserialize(jax.export.export(jax.jit(f))(x, y).serialize()).call(x, y),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transformed(transform: str) -> None:
    transformed = TRANSFORMS[transform]
    found, expected = transformed(_product)(X, Y), transformed(_plain)(X, Y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@pytest.mark.parametrize("fn", [_product, _plain])
def test_a_program_transposes_where_it_has_to(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_features, "multiplies_bfloat16", lambda: True)
    program = jax.jit(lambda x, y: fn(x, y)).lower(X, Y).compile().as_text()
    assert bool(re.search(r"f32\[4,6\]\{1,0\} copy", program)) == (fn is _product)
    sines = jax.jit(lambda x: in_order(jnp.sin(x)) @ Y.T).lower(X).compile().as_text()
    assert not re.search(r" (copy|transpose)\(", sines)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_programs_for_other_platforms_have_nothing_of_it(platform: str) -> None:
    program = jax.jit(_product).trace(X, Y).lower(lowering_platforms=(platform,)).as_text()
    assert ("LayoutConstraint" in program or "optimization_barrier" in program) == (platform == "cpu")


def test_a_program_of_open_sizes_for_several_platforms_is_exported() -> None:
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 4"), X.dtype)
    exported = jax.export.export(jax.jit(_product), platforms=["cpu", "cuda"])(rows, rows)
    np.testing.assert_allclose(jax.export.deserialize(exported.serialize()).call(X, Y), _plain(X, Y), rtol=1e-6)
