"""Calls that are interpreted and that are compiled, and that nothing else of them differs."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import types
from typing import Any

import jax
import numpy as np
import pytest
import torch

import jaten_ops
from jaten_ops.interpreter import first_calls, library_calls
from jaten_ops.interpreter.first_calls import FirstCalls
from jaten_ops.xla.jitted import jitted
from jaten_ops.xla.x64 import Enabled

from ..harness.in_threads import together


class _Counted:
    """A function under `jax.jit` that counts its compiled calls."""

    def __init__(self, function: Any, **options: Any) -> None:
        self._made = jitted(function, **options)
        self.calls = 0

    def __call__(self, *values: Any) -> Any:
        self.calls += 1
        return self._made(*values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


def _negative(x: Any) -> Any:
    return -x


def test_the_first_calls_are_interpreted() -> None:
    compiled = _Counted(_negative)
    calls = FirstCalls(compiled)
    for size in (2, 3, 2):
        assert calls(jax.numpy.ones(size)).tolist() == [-1.0] * size
    assert compiled.calls == 0


def test_calls_are_compiled_once_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "SECONDS", 1e-6)
    monkeypatch.setattr(first_calls, "_CALM", 3)
    ended: list[bool] = []
    compiled = _Counted(_negative)
    calls = FirstCalls(compiled, placed=lambda _calls, is_ended: ended.append(is_ended))
    for times in range(6):
        assert calls(jax.numpy.ones(2)).tolist() == [-1.0, -1.0]
        assert (compiled.calls, bool(ended)) == (times, times > 3)


_CALLED = {
    "a product": (lambda x: x @ x, True),
    "a product of what is moved": (lambda x: (x.reshape(2, 1, 8).transpose(2, 1, 0)[:, 0] @ x.reshape(2, 8)).T, True),
    "a product, and a sum of two": (lambda x: x @ x + x, False),
    "a convolution": (lambda x: jax.lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"), True),
}
"""A function, and whether a compile of the library's call alone would take as long as that of the whole program."""


@pytest.mark.parametrize("name", _CALLED)
def test_a_program_is_compiled_at_once_if_a_library_computes_all_of_it(name: str) -> None:
    function, is_compiled = _CALLED[name]
    compiled = _Counted(function)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert np.array_equal(FirstCalls(compiled)(x), function(x))
    assert compiled.calls == is_compiled


@pytest.mark.parametrize("function", [_negative, lambda x: x @ x + x])
def test_each_step_without_a_compile_gets_some_time(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the calls of a library take beside it."""
    ticks = itertools.count()
    monkeypatch.setattr(first_calls, "time", types.SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(library_calls, "time", types.SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(first_calls, "SECONDS", 3.5)
    compiled = _Counted(function)
    calls = FirstCalls(compiled)
    for _ in range(6):
        calls(np.ones((2, 2), np.float32))
    assert compiled.calls == 2


def test_new_shapes_are_interpreted_after_others_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop whose shapes depend on values would be compiled for each of them otherwise."""
    monkeypatch.setattr(first_calls, "SECONDS", 1e-6)
    monkeypatch.setattr(first_calls, "_MOST_KINDS", 4)
    compiled = _Counted(_negative)
    calls = FirstCalls(compiled)
    for size in range(1, 9):
        for _ in range(2):
            assert calls(jax.numpy.ones(size)).tolist() == [-1.0] * size
        assert compiled.calls == size


def test_what_is_never_interpreted_is_soon_compiled_at_once() -> None:
    ended: list[bool] = []
    calls = FirstCalls(jitted(jax.numpy.exp), placed=lambda _calls, is_ended: ended.append(is_ended))
    for _ in range(40):
        calls(jax.numpy.ones(2))
    assert ended == [True]


@pytest.mark.parametrize("setting", ["jax_debug_nans", "jax_debug_infs", "jax_disable_jit"])
def test_settings_that_look_at_results(setting: str) -> None:
    compiled = _Counted(_negative)
    before = getattr(jax.config, setting)
    jax.config.update(setting, True)
    try:
        FirstCalls(compiled)(jax.numpy.ones(2))
    finally:
        jax.config.update(setting, before)
    assert compiled.calls == 1


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.make_jaxpr])
def test_a_program_that_jax_traces_has_the_call(transform: Any) -> None:
    compiled = _Counted(_negative)
    calls = FirstCalls(compiled)
    transform(lambda x: calls(x) if transform is not jax.grad else calls(x).sum())(jax.numpy.ones(3))
    constants = jax.make_jaxpr(lambda: calls(np.ones(3, np.float32)))()
    assert compiled.calls == 2
    assert constants.jaxpr.eqns  # not computed while it is traced


def test_static_arguments_of_equal_values_stay_apart() -> None:
    calls = FirstCalls(jitted(lambda x, kind: x + 1 if kind is True else x - 1, static_argnums=1), (1,))
    x = jax.numpy.zeros(1)
    assert [calls(x, kind).item() for kind in (True, 1, True, False, 0.0)] == [1.0, -1.0, 1.0, -1.0, -1.0]


def test_programs_of_other_64_bit_settings_stay_apart() -> None:
    calls = FirstCalls(jitted(lambda x: jax.numpy.arange(3) + x))
    found = []
    for wide in (False, True, False):
        with Enabled() if wide else contextlib.nullcontext():
            found.append(calls(np.int32(1)).dtype.name)
    assert found == ["int32", "int64", "int32"]


def test_results_have_memory_of_their_own() -> None:
    calls = FirstCalls(jitted(lambda x: (x, x[:2], x)))
    given = np.arange(4.0)
    with Enabled():
        first, second, third = calls(given)
        given += 1
        assert first.tolist() == third.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert second.tolist() == [0.0, 1.0]
        places = {a.unsafe_buffer_pointer() for a in (first, second, third)}
        assert len(places) == 3


@pytest.mark.parametrize("flushed", [False, True])
def test_the_thread_keeps_its_denormal_numbers(flushed: bool) -> None:
    calls = FirstCalls(jitted(lambda x: x * x))
    torch.set_flush_denormal(flushed)
    try:
        assert calls(np.full(2, 1e-20, np.float32)).tolist() == [0.0, 0.0]  # as XLA's
        assert ((torch.full((1,), 1e-20) ** 2).item() == 0) == flushed
    finally:
        torch.set_flush_denormal(False)


def test_an_error_of_the_interpreter_is_no_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: Any) -> Any:
        raise IndexError("of the interpreter")

    compiled = _Counted(_negative)
    monkeypatch.setattr(first_calls, "as_xla", fail)
    assert FirstCalls(compiled)(jax.numpy.ones(1)).tolist() == [-1.0]
    assert "of the interpreter" in caplog.text


@pytest.mark.parametrize("seconds", [3600.0, 1e-4])
def test_threads(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "SECONDS", seconds)
    calls = FirstCalls(jitted(_negative))

    def work(number: int) -> None:
        for k in range(50):
            x = np.full(1 + (k + number) % 5, float(number))
            assert calls(jax.numpy.asarray(x)).tolist() == (-x).tolist()

    together(work)


def test_views_and_writes_on_the_device() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    y = x.to("jax")
    for t in (x, y):
        t[1:3, ::2] = t[:2, 1::2].clone()
        t[:, 0] += 1
        t.t()[2].neg_()
    assert torch.equal(x, y.cpu())


_TRACED_FIRST = """
import jax, torch, jaten_ops
from jaten_ops.interpreter import first_calls
twice = jaten_ops.as_jax(lambda x: x * 2)
print(jax.jit(twice)(jax.numpy.ones(2)).tolist(), jax.vmap(twice)(jax.numpy.ones(1)).tolist())
print((torch.ones(3, device="jax") + 1).tolist(), first_calls._Array is type(jax.numpy.ones(1)))
"""


def test_the_first_call_of_a_process_may_be_traced() -> None:
    done = subprocess.run([sys.executable, "-c", _TRACED_FIRST], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[2.0, 2.0] [2.0]", "[2.0, 2.0, 2.0] True"]


_MANY = """
import jax, torch, jaten_ops
from jaten_ops.interpreter import first_calls
assert not first_calls.is_used()
print((torch.ones(3, device="jax") + 1).tolist())
"""


@pytest.mark.parametrize(
    "variables",
    [{"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, {"JATEN_INTERPRETER": "0"}],
    ids=["two devices", "off"],
)
def test_where_it_is_off(variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MANY], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]"


def test_errors_are_those_of_the_compiled_call() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ops.jaten.add.Tensor(torch.ones(2), torch.ones(3))
    assert jaten_ops.__version__
