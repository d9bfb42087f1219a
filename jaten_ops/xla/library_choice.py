"""The settings of a CPU program whose products are measured: with the library that takes less time for all of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from jax import lax

from . import autotune, autotune_mode, compiler_options, matmul_library
from .compiler_options import Options, Told
from .matmul_library import Product

_DTYPES = {"f32": np.float32, "f64": np.float64}  # in which both libraries compute


def measured_options(platform: str, text: str) -> Told:
    """The settings of a program, from its text in StableHLO; measured, if it asks for that."""
    ruled = compiler_options.of_program(platform, text)
    if platform != "cpu" or autotune_mode.asked_mode() == "off":
        return ruled
    by_library = compiler_options.of_libraries()
    if len(by_library) < 2:  # the user has chosen, or XLA knows no such option
        return ruled
    totals = dict.fromkeys(by_library, 0.0)
    for product in _worth_measuring(text):
        for name, time in _seconds(product, by_library).items():
            totals[name] += time
    fastest = min(totals, key=totals.__getitem__)
    if not any(totals.values()):
        return ruled
    options = ruled.options | by_library[fastest] | compiler_options.around_bugs(platform, text)
    return ruled._replace(options=options)


def _worth_measuring(text: str) -> Iterator[Product]:
    for product in matmul_library.matmuls_in(text):
        size = product.batch * product.rows * product.columns * product.terms
        if product.dtype in _DTYPES and autotune_mode.wants(size):
            yield product


def _seconds(product: Product, by_library: Mapping[str, Options]) -> dict[str, float]:
    forms = {
        name: autotune.Form(functools.partial(_multiplied, product), compiler_options.known("cpu") | options)
        for name, options in by_library.items()
    }
    first = (product.batch, *_transposed((product.rows, product.terms), product.first_transposed))
    second = (product.batch, *_transposed((product.terms, product.columns), product.second_transposed))
    operands = [jax.ShapeDtypeStruct(shape, _DTYPES[product.dtype]) for shape in (first, second)]
    return autotune.seconds(str(product), forms, operands)


def _transposed(shape: tuple[int, int], swapped: bool) -> tuple[int, int]:
    return (shape[1], shape[0]) if swapped else shape


def _multiplied(product: Product, a: jax.Array, b: jax.Array) -> jax.Array:
    terms = (1 if product.first_transposed else 2,), (2 if product.second_transposed else 1,)
    if product.batch > 1:
        return lax.dot_general(a, b, (terms, ((0,), (0,))))
    matrices = [lax.reshape(x, x.shape[1:]) for x in (a, b)]
    (at_a,), (at_b,) = terms
    return lax.dot_general(matrices[0], matrices[1], (((at_a - 1,), (at_b - 1,)), ((), ())))
