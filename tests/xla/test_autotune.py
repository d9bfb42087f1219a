"""The measured choice between forms of an operation: what is timed, kept and chosen."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaten_ops.errors import UnsupportedInputError
from jaten_ops.xla import autotune, autotune_mode
from jaten_ops.xla.autotune import Form


@pytest.fixture(autouse=True)
def _nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "1")
    monkeypatch.setenv("JATEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(autotune_mode.ENVIRONMENT, raising=False)
    monkeypatch.setattr(autotune, "_known", {})
    torch._dynamo.reset()


def _many_products(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 300, lambda _, y: y @ x / 64, x)


def _fails(x: jax.Array) -> jax.Array:
    raise ValueError("not for these")


FORMS = {"slow": Form(_many_products), "none": Form(_fails), "fast": Form(lambda x: x @ x)}
OPERANDS = [jax.ShapeDtypeStruct((64, 64), np.float32)]


def test_the_fastest_form_that_compiles_is_found_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert autotune.fastest("key", FORMS, OPERANDS, "slow") == "fast"
    times = autotune.seconds("key", FORMS, OPERANDS)
    assert times["none"] == math.inf and 0 < times["fast"] < times["slow"] < math.inf

    monkeypatch.setattr(autotune, "_measured", None)  # it would raise
    monkeypatch.setattr(autotune, "_known", {})  # as in another process
    assert autotune.seconds("key", FORMS, OPERANDS) == times


def test_only_forms_that_lack_are_measured() -> None:
    before = autotune.seconds("key", {"slow": FORMS["slow"]}, OPERANDS)
    assert autotune.seconds("key", FORMS, OPERANDS)["slow"] == before["slow"]


@pytest.mark.parametrize(
    ("times", "chosen"),
    [({"a": 1.0, "b": 2.0}, "a"), ({"a": 0.97, "b": 1.0}, "b"), ({"a": math.inf, "b": math.inf}, "b")],
)
def test_the_rules_choice_stays_unless_another_is_clearly_faster(
    times: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "seconds", lambda *_: times)
    assert autotune.fastest("key", dict.fromkeys(times, FORMS["fast"]), OPERANDS, "b") == chosen


def test_measuring_leaves_no_trace_in_a_program_that_is_traced() -> None:
    def program(x: jax.Array) -> jax.Array:
        assert autotune.fastest("key", FORMS, OPERANDS, "slow") == "fast"
        return x + 1

    equations = jax.make_jaxpr(program)(jnp.ones(3)).eqns
    assert [e.primitive.name for e in equations] == ["add"]


@pytest.mark.parametrize(("mode", "small", "large"), [("off", 0, 0), ("expensive", 0, 1), ("all", 1, 1)])
def test_modes_and_where_they_hold(mode: Any, small: bool, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted() -> tuple[bool, bool]:
        return autotune_mode.wants(1), autotune_mode.wants(autotune_mode.EXPENSIVE)

    assert wanted() == (False, False)
    with autotune_mode.using(mode), autotune_mode.using(None):
        assert wanted() == (small, large)
    monkeypatch.setenv(autotune_mode.ENVIRONMENT, mode)
    assert wanted() == (small, large)
    with autotune_mode.using("off"):
        assert wanted() == (False, False)


def test_modes_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"option autotune.*'most'.*off, expensive, all"):
        torch.compile(torch.sin, backend="jaten", options={"autotune": "most"})(torch.ones(3))
    monkeypatch.setenv(autotune_mode.ENVIRONMENT, "yes")
    with pytest.raises(UnsupportedInputError, match=r"JATEN_AUTOTUNE.*'yes'"):
        autotune_mode.asked_mode()


# --- programs ---------------------------------------------------------------------------------------------------------


def _spied(monkeypatch: pytest.MonkeyPatch, of: Callable[[str, int], float]) -> list[set[str]]:
    """The forms of each measurement; the seconds that they seem to take are those of a function."""
    found: list[set[str]] = []

    def measured(forms: Mapping[str, Form], operands: Sequence[Any], device: Any) -> dict[str, float]:
        found.append(set(forms))
        return {name: of(name, i) for i, name in enumerate(forms)}

    monkeypatch.setattr(autotune, "_measured", measured)
    return found


def _images(x: torch.Tensor, weight: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = functional.conv2d(x, weight, padding=1).relu()
    return x.mean((2, 3)) @ matrix


GIVEN = (8, 8, 16, 16), (8, 8, 3, 3), (8, 8)


def _gradients(run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    given = [torch.randn(shape).requires_grad_() for shape in GIVEN]
    result = run(*given)
    result.square().sum().backward()
    grads = [x.grad for x in given if x.grad is not None]
    assert len(grads) == 3
    return [result.detach(), *grads]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", range(6))
def test_all_choices_compute_what_torch_computes(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = _spied(monkeypatch, lambda _, i: 1.0 + (i - number) % 6)
    found = _gradients(torch.compile(_images, backend="jaten", options={"autotune": "all"}))
    assert len(measured) >= 5 and any("channels last" in name for forms in measured for name in forms)
    for got, expected in zip(found, _gradients(_images), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("mode", "some"), [("off", False), ("expensive", False), ("all", True), (None, False)])
def test_programs_measure_what_they_ask_for_alone(
    mode: str | None, some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = _spied(monkeypatch, lambda *_: 1.0)
    options = {} if mode is None else {"autotune": mode}
    torch.compile(torch.mm, backend="jaten", options=options)(torch.ones(2, 2), torch.ones(2, 2))
    assert bool(measured) == some


def test_the_next_process_finds_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64, 64)

    def program(a: torch.Tensor) -> torch.Tensor:
        return a @ x

    compiled = torch.compile(program, backend="jaten", options={"autotune": "all"})
    first = compiled(x)
    assert autotune._known
    monkeypatch.setattr(autotune, "_known", {})
    monkeypatch.setattr(autotune, "_measured", None)  # it would raise
    torch._dynamo.reset()
    assert compiled(x).equal(first) and not autotune._known  # the executable is kept
    jax.clear_caches()
    for entry in Path(os.environ["JATEN_CACHE_DIR"]).iterdir():
        if b"YNNPACK" not in entry.read_bytes():  # all but the measurement
            entry.unlink()
    torch._dynamo.reset()
    assert compiled(x).equal(first) and autotune._known
