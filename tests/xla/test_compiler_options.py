"""Compiler options for a program."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jaxlib import _jax, version

from jaten_ops.xla import compiler_options, executables, kernel_cache

_OPTION = "xla_cpu_experimental_ynn_fusion_type"


def test_the_options_of_a_cpu_are_known() -> None:
    """If this fails, XLA has renamed an option."""
    assert compiler_options.known("cpu") == compiler_options.wanted("cpu") and _OPTION in compiler_options.wanted("cpu")


def test_other_platforms_have_none() -> None:
    assert compiler_options.known("cuda") == compiler_options.known("tpu") == {}


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--{_OPTION}=LIBRARY_FUSION_TYPE_DOT")
    assert compiler_options.wanted("cpu") == {}


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_options, "_OF_CPU", {"xla_cpu_no_such_option": "1"})
    assert compiler_options.known("cpu") == {}
    run, _ = executables.compiled(jax.jit(jnp.sin).lower(jnp.ones(3)))
    assert run(jnp.ones(3)).shape == (3,)


def _convolved(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_convolutions_are_not_of_one_thread() -> None:
    """One option for a whole program's convolutions; if XLA's default changes, it may go. jaxlib 0.10.0 needs none."""
    lowered = jax.jit(_convolved).lower(jnp.ones((4, 32, 32, 16)), jnp.ones((3, 3, 16, 32)))
    run, _ = executables.compiled(lowered)
    assert ("__ynn_fusion" in lowered.compile().as_text()) == (version.__version_info__ >= (0, 10, 1))
    assert "__ynn_fusion" not in run.as_text()


def test_kernels_are_compiled_with_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    told = kernel_cache.of_kernel
    monkeypatch.setattr(kernel_cache, "of_kernel", lambda place, text: asked.append(place) or told(place, text))
    torch.ones(3, 7, 11, device="jax").sinh()  # a shape that no other test has compiled
    assert set(asked) == {jax.default_backend()}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("func.func @f() -> tensor<f64>", 8),
        ("tensor<3x4xf32> tensor<2xi1>", 48),
        ("tensor<2x1024xbf16>, tensor<5xi8>", 4096),
        ("tensor<7xcomplex<f32>>", 56),
        ("tensor<9xi1>", 9),
        ("tensor<4xf8E4M3FN>", 4),
        ("tensor<0x1024xf32>", 0),
        ("", 0),
    ],
)
def test_the_longest_array_of_a_program(text: str, size: int) -> None:
    assert compiler_options._largest(set(compiler_options._TYPE.findall(text))) == size


def test_types_stand_in_a_program_as_expected() -> None:
    lowered = jax.jit(lambda x: x.astype(jnp.complex64)).lower(jnp.ones((10, 30)))
    assert compiler_options._largest(set(compiler_options._TYPE.findall(lowered.as_text()))) == 10 * 30 * 8


def test_buffers_are_short_unless_an_array_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, XLA has renamed the option: it would warn of longer arrays."""
    (name,) = compiler_options._BUFFER
    assert name in compiler_options.of_program("cpu", "tensor<1024xf32>").options
    assert name not in compiler_options.of_program("cpu", "tensor<16777216xf32>").options
    assert compiler_options.of_program("cuda", "tensor<1024x64xf32>") == ({}, False)
    monkeypatch.setenv("XLA_FLAGS", f"--{name}=1000000")
    assert name not in compiler_options.of_program("cpu", "tensor<1024xf32>").options


def test_loops_of_short_arrays_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, XLA has renamed the option. From jaxlib 0.11.1 on it has no older emitters any more."""
    (name,) = compiler_options._PLAIN_LOOPS
    has_older = version.__version_info__ < (0, 11, 1)
    assert (name in compiler_options.of_kernel("cpu", "tensor<4096xf32>")) == has_older
    assert name not in compiler_options.of_kernel("cpu", "tensor<4097xf32>")
    assert compiler_options.of_kernel("cuda", "tensor<1xf32>") == {}
    monkeypatch.setenv("XLA_FLAGS", f"--{name}=true")
    assert name not in compiler_options.of_kernel("cpu", "tensor<1xf32>")


_PRINT = "from jaxlib import _jax; print(_jax.CompileOptions().SerializeAsString().hex())"


def test_no_loop_is_unrolled_as_with_the_flag_of_xla() -> None:
    """If this fails, the message has changed, or the flag."""
    environment = os.environ | {"XLA_FLAGS": f"--xla_backend_extra_options={compiler_options._NO_UNROLLING.decode()}"}
    flagged = subprocess.run(
        [sys.executable, "-c", _PRINT], env=environment, capture_output=True, check=True, text=True
    )
    told = compiler_options.without_unrolling(_jax.CompileOptions(), "cpu").SerializeAsString()
    assert told.hex() == flagged.stdout.strip() != _jax.CompileOptions().SerializeAsString().hex()


def test_unrolling_is_left_to_other_platforms_and_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    given = _jax.CompileOptions()
    assert compiler_options.without_unrolling(given, "cuda") is given
    assert compiler_options.without_unrolling("no such options", "cpu") == "no such options"
    before = compiler_options.options_key("cpu")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_backend_extra_options={compiler_options._NO_UNROLLING.decode()}")
    assert compiler_options.without_unrolling(given, "cpu") is given
    assert compiler_options.options_key("cpu") != before


def test_unrolling_is_left_to_the_programs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "0")
    compiler_options.of_program("cpu", "")  # which compiles programs to find out
    told: list[Any] = []
    tell = kernel_cache.without_unrolling
    monkeypatch.setattr(kernel_cache, "without_unrolling", lambda *given: told.append(given) or tell(*given))
    rows = jax.jit(lambda x, i: x[i]).lower(jnp.ones((512, 64)), jnp.zeros(512, int))
    rows.compile()
    assert not told
    executables.compiled(rows)
    assert len(told) == 1
    executables.compiled(jax.jit(jnp.sin).lower(jnp.ones(3)))
    assert len(told) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensor<1024x64xf32>", True),
        ("tensor<1024x16xf32>, tensor<1024x1xf32>", True),
        ("tensor<1024x8xf32>", False),
        ("tensor<1024x128xf32>", False),
        ("tensor<1024x64xf32>, tensor<4096x3xf32>", True),
        ("tensor<1024x64xf32>, tensor<4096x8xf32>", False),
        ("tensor<4x64xf32>", False),
        ("tensor<1024x64xf32>, stablehlo.pad", False),
        ("tensor<1024x64xf32>, stablehlo.convolution", False),
        ("", False),
    ],
)
def test_programs_whose_loops_are_kept(text: str, expected: bool) -> None:
    assert compiler_options.of_program("cpu", text).keeps_loops == expected


def test_operations_stand_in_a_program_as_expected() -> None:
    padded = jax.jit(lambda x: jnp.pad(x, 1)).lower(jnp.ones((512, 64))).as_text()
    summed = jax.jit(lambda x: jax.lax.cumsum(x, 1)).lower(jnp.ones((512, 64))).as_text()
    convolved = jax.jit(_convolved).lower(jnp.ones((4, 32, 32, 16)), jnp.ones((3, 3, 16, 32))).as_text()
    assert not any(compiler_options.of_program("cpu", text).keeps_loops for text in (padded, summed, convolved))


def _channels_last(x: jax.Array) -> jax.Array:
    return jnp.transpose(x, (0, 2, 3, 1))


@pytest.mark.parametrize(
    ("fn", "shapes", "elements"),
    [
        (_channels_last, [(2, 64, 32, 32)], 2 * 64 * 32 * 32),
        (lambda x: _channels_last(_channels_last(x)), [(2, 64, 32, 32)], 2 * 2 * 64 * 32 * 32),
        (_channels_last, [(2, 1, 32, 32)], 0),  # nothing but a dimension of one element moves
        (lambda x: jnp.transpose(x, (0, 2, 1, 3)), [(2, 64, 8, 32)], 0),  # rows stay as they are
        (lambda x, w: x @ w.T, [(64, 32), (48, 32)], 0),  # a part of the product
        (lambda x, w: (x @ w.T, jnp.sin(w.T)), [(64, 32), (48, 32)], 48 * 32),
        (lambda x: x.T, [()], 0),
    ],
)
def test_what_a_program_transposes(fn: Any, shapes: list[tuple[int, ...]], elements: int) -> None:
    text = jax.jit(fn).lower(*[jnp.ones(shape) for shape in shapes]).as_text()
    assert compiler_options._transposed(text) == elements


def test_a_program_that_transposes_more_is_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before jaxlib 0.12, whatever jaxlib is here."""
    text = jax.jit(_channels_last).lower(jnp.ones((2, 128, 32, 32))).as_text()
    for gathers, keeps in ((True, False), (False, True)):
        monkeypatch.setattr(compiler_options, "_GATHERS", gathers)
        assert compiler_options.of_program("cpu", text).keeps_loops == keeps
        assert compiler_options.of_program("cpu", "tensor<1024x64xf32>").keeps_loops
