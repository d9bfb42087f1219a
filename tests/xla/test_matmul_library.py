"""The choice of the library that computes a program's matrix products."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jaxlib import version

from jaten_ops.xla import compiler_options, cpu_features, executables, matmul_library
from jaten_ops.xla.matmul_library import Product

ROWS, COLUMNS, TERMS = 48, 32, 16


def _text(fn: Callable[..., object], *shapes: tuple[int, ...], dtype: str = "float32") -> str:
    return jax.jit(fn).lower(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes)).as_text()


@pytest.mark.parametrize(
    ("fn", "a", "b", "transposed"),
    [
        (lambda a, b: a @ b, (ROWS, TERMS), (TERMS, COLUMNS), (False, False)),
        (lambda a, b: a @ b.T, (ROWS, TERMS), (COLUMNS, TERMS), (False, True)),
        (lambda a, b: a.T @ b, (TERMS, ROWS), (TERMS, COLUMNS), (True, False)),
        (lambda a, b: jnp.einsum("ik,jk->ij", a, b), (ROWS, TERMS), (COLUMNS, TERMS), (False, True)),
        (lambda a, b: jnp.einsum("ki,kj->ij", a, b), (TERMS, ROWS), (TERMS, COLUMNS), (True, False)),
        (lambda a, b: a.T @ b.T, (TERMS, ROWS), (COLUMNS, TERMS), (True, True)),
    ],
)
def test_the_products_of_a_program(
    fn: Callable[..., object], a: tuple[int, ...], b: tuple[int, ...], transposed: tuple[bool, bool]
) -> None:
    assert list(matmul_library.matmuls_in(_text(fn, a, b))) == [Product("f32", 1, ROWS, COLUMNS, TERMS, *transposed)]


def test_batches_loops_and_names_of_other_functions() -> None:
    # the body of a loop is a function as well with some versions of JAX

    def program(x: jax.Array, weight: jax.Array, both: jax.Array) -> object:
        turned = weight.T
        steps = lax.scan(lambda h, _: (h @ turned, h), x, length=3)
        return steps, jnp.einsum("bik,bjk->bij", both, both), jax.jit(lambda a, b: a @ b)(x, weight)

    found = sorted(matmul_library.matmuls_in(_text(program, (8, 16), (16, 16), (4, 8, 16))))
    inner = Product("f32", 1, 8, 16, 16, False, False, is_known=False)
    assert found in (
        sorted([inner, inner._replace(is_known=known), Product("f32", 4, 8, 8, 16, False, True)])
        for known in (False, True)
    )


@pytest.mark.parametrize(
    ("fn", "shapes", "dtype", "suits"),
    [
        (lambda a, b: a @ b, [(64, 256), (256, 256)], "float32", True),
        (lambda a, b: a @ b.T, [(64, 256), (256, 256)], "float32", False),
        (lambda a, b: a @ b.T, [(2048, 256), (256, 256)], "float32", True),
        (lambda a, b: (a @ b, a @ b.T), [(256, 256), (256, 256)], "float32", False),
        (lambda a, b: (a @ b, a @ b.T), [(512, 256), (256, 256)], "float32", True),
        (lambda a, b: a.T @ b, [(256, 256), (256, 256)], "float32", False),
        (lambda a, b: a @ b, [(1, 256), (256, 256)], "float32", False),
        (lambda a, b: a @ b, [(64, 256), (256, 256)], "bfloat16", False),
        (lambda a, b: jnp.sin(a) + b, [(4,), (4,)], "float32", False),
        # what a function inside is given may be transposed before it
        (lambda a, b: jax.jit(jnp.dot)(a, b.T), [(64, 256), (256, 256)], "float32", False),
    ],
)
def test_what_suits_eigen(fn: Callable[..., object], shapes: list[tuple[int, ...]], dtype: str, *, suits: bool) -> None:
    assert matmul_library.suits_eigen(_text(fn, *shapes, dtype=dtype)) is suits


@pytest.mark.parametrize("fast", [True, False])
def test_the_library_is_asked_for(monkeypatch: pytest.MonkeyPatch, *, fast: bool) -> None:
    """If this fails, XLA no longer takes the option, or uses another library by itself.

    jaxlib 0.10.0 has Eigen compute whatever is not asked for as `LIBRARY_FUSION_TYPE_DOT`.
    """
    monkeypatch.setattr(cpu_features, "multiplies_fast", lambda: fast)
    a, b = jnp.ones((65, 256)), jnp.ones((256, 257))
    lowered = jax.jit(lambda a, b: a @ b).lower(a, b)
    told = compiler_options.of_program("cpu", lowered.as_text())
    run = executables._compile(lowered, lowered.as_text())
    assert ("ynn" in run.as_text()) is not (fast or version.__version_info__ < (0, 10, 1))
    assert (told.options == compiler_options.known("cpu") | compiler_options._BUFFER) is not fast
    assert (run(a, b) == 256).all()
