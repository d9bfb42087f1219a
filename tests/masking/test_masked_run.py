"""Programs with open sizes on larger arrays: what is added to them reaches no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jaten_ops.masking import open_program  # noqa: F401  # registers the rules
from jaten_ops.masking.masked_run import MaskedRun
from jaten_ops.masking.masked_values import NotMasked, PaddedSizes, padded_array, size_value

GIVEN, LARGER = {"n": 5, "m": 3}, {"n": 8, "m": 4}
Program = Callable[..., Any]

# Sizes by name. Programs take n and m, which are ints or symbolic dimensions, and arrays; "i" begins the shape of ints.
PROGRAMS: dict[str, tuple[Program, list[str]]] = {
    "sums": (lambda n, m, x: (x.sum(0), x.mean(), x.prod(0), x.var(0)), ["n 4"]),
    "largest": (lambda n, m, x: (x.max(0), x.argmax(0), x.argmin(0), x.min()), ["n 4"]),
    "conditions": (lambda n, m, x: ((x < 9).all(), (x > 9).any(0)), ["n 4"]),
    "products": (lambda n, m, x: (x @ x.T, x.T @ x), ["n 4"]),
    "batches": (lambda n, m, x, y: jnp.einsum("bnd,bmd->bnm", x, y), ["2 n 4", "2 m 4"]),
    "softmax": (lambda n, m, x: jax.nn.softmax(x, 0), ["n 4"]),
    "causal attention": (
        lambda n, m, q, k, v: jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((n, n), bool)), q @ k.T, -jnp.inf)) @ v,
        ["n 4", "n 4", "n 4"],
    ),
    "parts": (lambda n, m, x: (x[-1], x[1:] - x[:-1], x[::2], lax.dynamic_slice(x, (n + 7, 0), (2, 4))), ["n 4"]),
    "turned": (lambda n, m, x: (jnp.flip(x, 0), jnp.roll(x, 1, 0), x.T), ["n 4"]),
    "side by side": (lambda n, m, x, y: jnp.concatenate([x, y, x[:1], y]), ["n 4", "m 4"]),
    "padded": (lambda n, m, x: jnp.pad(x, ((2, 1), (0, 1)), constant_values=3), ["n 4"]),
    "sorted": (lambda n, m, x: (jnp.sort(x, 0), jnp.argsort(x, 0), lax.top_k(x.T, 2)), ["n 4"]),
    "so far": (lambda n, m, x: (jnp.cumsum(x, 0), lax.cumsum(x, 0, reverse=True), lax.cummax(x, 0)), ["n 4"]),
    "merged": (lambda n, m, x: (x.reshape(-1, 3) @ jnp.ones((3, 2)), x.reshape(-1) * jnp.arange(x.size)), ["4 n 3"]),
    "merged and parted": (lambda n, m, x: jnp.abs(x.reshape(4 * n, 3)).reshape(4, n, 3).sum(1), ["4 n 3"]),
    "pairs": (lambda n, m, x, y: (x[:, None] * y).reshape(n * m, 4), ["n 4", "m 4"]),
    "written": (lambda n, m, x, y: (x.at[:, 1].set(1), lax.dynamic_update_slice(x, y[:1], (n - 1, 0))), ["n 4", "m 4"]),
    "written in a larger one": (
        lambda n, m, x, y: lax.dynamic_update_slice(jnp.concatenate([x, y, x]), y, (1, 0)),
        ["n 4", "m 4"],
    ),
    "indexed": (lambda n, m, x, i: (x[i], x[-i - 1], jnp.take(x, i * 3 - 1, 0, mode="fill")), ["n 4", "i m"]),
    "clipped": (lambda n, m, x, i: jnp.take(x, i * 10 - 5, axis=0, mode="clip"), ["n 4", "i m"]),
    "along": (lambda n, m, x, i: jnp.take_along_axis(x, i, 0), ["n 4", "i m 4"]),
    "scattered": (lambda n, m, x, i: jnp.zeros((3, 4)).at[i].add(x), ["n 4", "i n"]),
    "scattered over": (lambda n, m, x, i: jnp.zeros((n, 4)).at[i].add(x, mode="drop"), ["m 4", "i m"]),
    "scattered at the end": (lambda n, m, x, i: jnp.zeros((n, 4)).at[i * 9].add(x, mode="clip"), ["m 4", "i m"]),
    "segments": (lambda n, m, x, i: jax.ops.segment_max(x, i, num_segments=3), ["n 4", "i n"]),
    "a loop": (lambda n, m, x: lax.fori_loop(0, 3, lambda i, c: c * 2 + x.sum(0), x), ["n 4"]),
    "a scan": (lambda n, m, x: lax.scan(lambda c, y: (c + y, c.sum()), x[0], x), ["4 n"]),
    "a branch": (lambda n, m, x: lax.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, x), ["n 4"]),
}


def _sizes(shape: str, n: Any, m: Any) -> tuple[list[Any], str]:
    parts = shape.removeprefix("i ").split()
    return [{"n": n, "m": m}.get(p) or int(p) for p in parts], "int64" if shape.startswith("i ") else "float32"


def _with_poison(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    larger = np.full(shape, np.nan if x.dtype.kind == "f" else 7, x.dtype)
    larger[tuple(map(slice, x.shape))] = x
    return larger


def _traced(program: Program, shapes: list[str]) -> Any:
    n, m = export.symbolic_shape("n, m", constraints=["n >= 2", "m >= 2"])
    specs = [jax.ShapeDtypeStruct(*_sizes(shape, n, m)) for shape in shapes]
    return jax.make_jaxpr(lambda *arrays: program(n, m, *arrays))(*specs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_added_reaches_no_result(name: str) -> None:
    program, shapes = PROGRAMS[name]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        traced = _traced(program, shapes)
        given = [_sizes(shape, *GIVEN.values()) for shape in shapes]
        arrays = [rng.integers(0, 3, s) if d == "int64" else rng.normal(size=s).astype(d) for s, d in given]
        expected = jax.tree.leaves(program(*GIVEN.values(), *map(jnp.asarray, arrays)))

        def run(larger: list[Any], n: Any, m: Any) -> list[Any]:
            run = MaskedRun(PaddedSizes(LARGER, {"n": n, "m": m}))
            values = [run.masks.of(a, v.aval.shape) for a, v in zip(larger, traced.jaxpr.invars, strict=True)]
            return [padded_array(run.masks.all_leading(r)) for r in run(traced, values)]

        poisoned = [_with_poison(a, _shape(v, LARGER)) for a, v in zip(arrays, traced.jaxpr.invars, strict=True)]
        found = jax.jit(run)(poisoned, *map(np.int64, GIVEN.values()))
    for got, want, variable in zip(found, expected, traced.jaxpr.outvars, strict=True):
        assert got.shape == _shape(variable, LARGER)
        assert want.shape == _shape(variable, GIVEN)
        np.testing.assert_allclose(np.asarray(got)[tuple(map(slice, want.shape))], want, rtol=1e-4, atol=1e-5)


def _shape(variable: Any, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple([size_value(size, sizes) for size in variable.aval.shape])


REFUSED: dict[str, tuple[Program, list[str], str]] = {
    "noise": (lambda n, m, x: x + jax.random.normal(jax.random.key(0), (n, 4)), ["n 4"], "is not known"),
    "steps": (lambda n, m, x: lax.scan(lambda c, y: (c + y, c), x[0], x), ["n 4"], "step by step"),
    "windows": (lambda n, m, x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "VALID"), ["n 4"], "window"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name: str) -> None:
    program, shapes, reason = REFUSED[name]
    traced = _traced(program, shapes)
    run = MaskedRun(PaddedSizes(LARGER, GIVEN))
    values = [run.masks.of(jnp.zeros(_shape(v, LARGER)), v.aval.shape) for v in traced.jaxpr.invars]
    with jax.enable_x64(True), pytest.raises(NotMasked, match=reason):
        run(traced, values)
