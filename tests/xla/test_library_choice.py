"""The library for a program's products, where they are measured."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax import lax

from jaten_ops.xla import autotune, autotune_mode, compiler_bugs, compiler_options, library_choice
from jaten_ops.xla.matmul_library import Product

ROWS, COLUMNS, TERMS = 48, 32, 16


def _text(fn: Callable[..., object]) -> str:
    given = [jax.ShapeDtypeStruct(s, np.float32) for s in ((ROWS, TERMS), (TERMS, COLUMNS))]
    return jax.jit(fn).lower(*given).as_text()


TEXT = _text(lambda a, b: (a @ b, b.T @ a.T))


@pytest.mark.parametrize("fastest", ["YNNPACK", "Eigen"])
def test_the_library_with_the_least_time_for_all_products(fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_library = compiler_options.of_libraries()
    assert set(by_library) == {"YNNPACK", "Eigen"}
    monkeypatch.setattr(autotune, "seconds", lambda key, forms, operands: {n: float(n != fastest) for n in forms})
    with autotune_mode.using("all"):
        assert library_choice.measured_options("cpu", TEXT).options.items() >= by_library[fastest].items()
        assert library_choice.measured_options("cuda", TEXT) == compiler_options.of_program("cuda", TEXT)
        no_product = _text(lambda a, b: lax.sin(a))
        assert library_choice.measured_options("cpu", no_product) == compiler_options.of_program("cpu", no_product)
    for mode in ("off", "expensive"):
        with autotune_mode.using(mode):  # small products
            assert library_choice.measured_options("cpu", TEXT) == compiler_options.of_program("cpu", TEXT)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_what_is_measured_is_the_product(batch: int, transposed: tuple[bool, bool]) -> None:
    product = Product("f32", batch, ROWS, COLUMNS, TERMS, *transposed)
    draw = np.random.default_rng(0).standard_normal
    a, b = draw((batch, ROWS, TERMS)).astype(np.float32), draw((batch, TERMS, COLUMNS)).astype(np.float32)
    given = [x.swapaxes(1, 2) if swapped else x for x, swapped in zip((a, b), transposed, strict=True)]
    found = library_choice._multiplied(product, *given)
    np.testing.assert_allclose(np.asarray(found).reshape(batch, ROWS, COLUMNS), a @ b, rtol=1e-5, atol=1e-5)


def test_options_that_avoid_a_bug_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = compiler_bugs.BUGS[0]._replace(first="0", last=jax.lib.__version__, program=re.compile("f32>"))
    monkeypatch.setattr(compiler_bugs, "BUGS", (bug,))
    monkeypatch.setattr(autotune, "seconds", lambda key, forms, operands: {n: float(n != "YNNPACK") for n in forms})
    with autotune_mode.using("all"):
        assert library_choice.measured_options("cpu", TEXT).options.items() >= bug.options.items()


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
    monkeypatch.setattr(autotune, "seconds", None)  # it would raise
    with autotune_mode.using("all"):
        assert library_choice.measured_options("cpu", TEXT) == compiler_options.of_program("cpu", TEXT)
