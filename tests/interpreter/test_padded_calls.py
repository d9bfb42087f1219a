"""Operators on the device whose sizes are others at each call: one program for larger arrays serves many of them."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import monitoring

import jaten_ops  # noqa: F401  # the device
from jaten_ops.interpreter import first_calls, padded_calls
from jaten_ops.interpreter.first_calls import FirstCalls, Padding
from jaten_ops.xla.jitted import jitted
from jaten_ops.xla.x64 import Enabled

from ..harness.in_threads import together

F = torch.nn.functional
Program = Callable[[str, int], list[torch.Tensor]]


def _rows(device: str, n: int, *shape: int) -> torch.Tensor:
    values = torch.randn(n, *shape, generator=torch.Generator().manual_seed(n))
    return values.to(device).requires_grad_()


def _classes(device: str, n: int) -> torch.Tensor:
    return torch.randint(0, 7, (n,), generator=torch.Generator().manual_seed(n)).to(device)


def _with_gradients(result: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    return [result, *torch.autograd.grad(result.sum(), leaves)]


def _classified(device: str, n: int) -> list[torch.Tensor]:
    x = _rows(device, n, 7)
    return _with_gradients(F.cross_entropy(x, _classes(device, n)), x)


def _messages(device: str, n: int) -> list[torch.Tensor]:
    x, e = _rows(device, n, 5), 3 * n + n % 4
    source, target = torch.randint(0, n, (2, e), generator=torch.Generator().manual_seed(e)).to(device)
    sent = torch.zeros(n, 5, device=device).index_add(0, target, x[source])
    return _with_gradients(torch.log_softmax(sent * 0.1, 1), x)


def _attended(device: str, n: int) -> list[torch.Tensor]:
    q, k = _rows(device, n, 4), _rows(device, n, 4)
    return _with_gradients(torch.softmax(q @ k.t(), -1).std(), q, k)


def _chosen(device: str, n: int) -> list[torch.Tensor]:
    x = _rows(device, n, 3)
    kept = x[x[:, 0] > 0]
    return [kept.exp().sum(0), kept.logsumexp(0), x.cumsum(0).var(0), x.sort(0).values.tanh()]


def _scaled(device: str, n: int) -> list[torch.Tensor]:
    x = _rows(device, n, 6)
    return _with_gradients(F.layer_norm(x, (6,)).pow(2).mean(0) + F.normalize(x, dim=0).sum(0), x)


PROGRAMS: dict[str, Program] = {
    "classified": _classified,
    "messages": _messages,
    "attended": _attended,
    "chosen": _chosen,
    "scaled": _scaled,
}
_STREAMS = {
    "ever new": [40 + 3 * i for i in range(20)],
    "with short ones": [30, 1, 41, 0, 37, 2, 35, 1, 44, 39, 0, 51],
    "growing": list(range(20, 40)),
    "two": [32, 20] * 6,
}


@contextlib.contextmanager
def _compiles() -> Iterator[list[float]]:
    """The times of the compiles of a block."""
    found: list[float] = []

    def note(event: str, seconds: float, **_: Any) -> None:
        if "backend_compile" in event:
            found.append(seconds)

    monitoring.register_event_duration_secs_listener(note)
    try:
        yield found
    finally:
        monitoring.unregister_event_duration_listener(note)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stream", _STREAMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_streams(name: str, stream: str) -> None:
    for n in _STREAMS[stream]:
        if n == 0 and name in ("attended", "messages"):  # nothing to choose from; ATen warns
            continue
        for got, want in zip(PROGRAMS[name]("jax", n), PROGRAMS[name]("cpu", n), strict=True):
            torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_new_sizes_compile_nothing(name: str) -> None:
    for n in range(200, 220):
        PROGRAMS[name]("jax", n)
    with _compiles() as found:
        for n in range(220, 230):
            PROGRAMS[name]("jax", n)
    assert len(found) <= 2, found  # none, unless a larger one is needed


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: torch.index_select(x, 0, torch.tensor([0, x.shape[0]], device=x.device)),
        lambda x: F.nll_loss(x, torch.full((x.shape[0],), 7, device=x.device)),
        lambda x: x + torch.ones(x.shape[0] + 1, 7, device=x.device),
        lambda x: F.cross_entropy(x, torch.zeros(x.shape[0] + 2, dtype=torch.long, device=x.device)),
        lambda x: x @ torch.ones(6, x.shape[0], device=x.device),
    ],
    ids=["index", "class", "shape", "batch", "product"],
)
def test_errors_are_those_for_the_sizes_that_there_are(wrong: Callable[[torch.Tensor], Any]) -> None:
    for n in range(50, 90):
        _classified("jax", n)
        _messages("jax", n)
        (torch.ones(n, 7, device="jax") + torch.ones(n, 7, device="jax")).exp().sum()
    said = []
    for device in ("cpu", "jax"):
        with pytest.raises((RuntimeError, IndexError, ValueError)) as raised:
            wrong(torch.ones(93, 7, device=device))
        said.append((raised.type, str(raised.value)))
    assert said[0][0] is said[1][0]
    assert "open" not in said[1][1] and "1024" not in said[1][1]
    _classified("jax", 94)  # and nothing is broken


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "normal": torch.randn_like,
    "uniform": lambda x: torch.empty_like(x).uniform_(-1, 3),
    "double": lambda x: torch.rand(x.shape, dtype=torch.float64, device=x.device),
    "coins": lambda x: torch.bernoulli(x / 2),
    "chosen": lambda x: torch.multinomial(x, 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_the_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(n: int) -> torch.Tensor:
        torch.manual_seed(n)
        return DRAWS[name](torch.ones(n, 3, device="jax")).cpu()

    padded = _counted(monkeypatch)
    found = {n: drawn(n) for n in range(50, 60)}
    assert padded
    monkeypatch.setattr(first_calls, "is_used", lambda: False)
    for n in (57, 59):
        assert torch.equal(found[n], drawn(n))


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets longer with each call of a program for larger arrays."""
    run, found = padded_calls.PaddedCall.__call__, list[int]()
    monkeypatch.setattr(padded_calls.PaddedCall, "__call__", lambda self, x: found.append(len(x)) or run(self, x))
    return found


def _sums() -> Callable[[Any], Any]:
    calls = FirstCalls(jitted(lambda x: (x * x).sum(0)), padding=Padding())

    def call(x: Any) -> Any:
        with Enabled():
            return calls(x)

    return call


def test_layers_of_other_sizes_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several dimensions that change at once are those of layers, until there are many of them."""
    calls = _sums()
    monkeypatch.setattr(first_calls, "_CALM", math.inf)
    padded = _counted(monkeypatch)
    for size in range(10, 40):
        calls(jax.numpy.ones((size, size + 1, 3)))
    assert not padded
    for size in range(40, 70):
        calls(jax.numpy.ones((size, size + 1, 3)))
    assert padded


def test_a_size_that_comes_often_gets_a_program_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "SECONDS", 1e-6)
    calls = _sums()
    for size in (5, 6, 8, 9):
        assert calls(np.full((size, 2), 2, np.float32)).tolist() == [4.0 * size] * 2
    with _compiles() as found:
        for _ in range(12):
            assert calls(np.full((9, 2), 2, np.float32)).tolist() == [36.0] * 2
    assert len(found) == 1


def test_calls_are_looked_at_again_when_a_new_size_comes() -> None:
    x = torch.ones(5, 3, device="jax")
    for _ in range(600):
        torch.logcumsumexp(x, 0)
    with _compiles() as found:
        for n in range(20, 60):
            torch.logcumsumexp(torch.ones(n, 3, device="jax"), 0)
    assert len(found) < 12


def test_a_program_without_a_form_for_larger_arrays(caplog: pytest.LogCaptureFixture) -> None:
    def windows(x: Any) -> Any:
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 1), (1, 1), "VALID")

    calls = FirstCalls(jitted(windows), padding=Padding())
    with caplog.at_level(logging.INFO, "jaten_ops"), Enabled():
        for n in range(3, 9):
            assert calls(jax.numpy.ones((n, 2))).tolist() == [[2.0, 2.0]] * (n - 1)
    assert "no form for larger arrays" in caplog.text


def test_threads() -> None:
    def work(number: int) -> None:
        for k in range(30):
            n = 20 + (7 * k + number) % 40
            for got, want in zip(_classified("jax", n), _classified("cpu", n), strict=True):
                torch.testing.assert_close(got.cpu(), want)

    together(work)


def _subnormal(n: int) -> torch.Tensor:
    return torch.linspace(-1e-40, 1e-40, n)


def _far_from_zero(n: int) -> torch.Tensor:
    return 1e4 + torch.rand(n, 3, generator=torch.Generator().manual_seed(n))


FORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[int], torch.Tensor]]] = {
    "tan": (torch.tan, _subnormal),
    "log1p": (torch.log1p, _subnormal),
    "var": (lambda x: x.var(0), _far_from_zero),
    "cumsum": (lambda x: x.cumsum(0), _far_from_zero),
    "cummax": (lambda x: x.cummax(0).indices, _far_from_zero),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_those_for_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as accurate as ATen's, where XLA's own are not."""
    function, operand = FORMS[name]
    padded = _counted(monkeypatch)
    for n in range(80, 100):  # scans are interpreted at first
        x = operand(n)
        # a unit or two in the last place, also of subnormal numbers
        torch.testing.assert_close(function(x.to("jax")).cpu(), function(x), rtol=2e-7, atol=1e-44)
    assert padded
