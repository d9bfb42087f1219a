"""Sizes and positions that change from call to call: what compiles again, what is logged, and the option `buckets`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.backend import compile_log, jaten
from jaten_ops.backend.buckets import padded_tensors
from jaten_ops.backend.buckets.bucket_sizes import POWERS, Buckets, rounded
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.schema import RELEASE

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset(), counters.clear(), torch.manual_seed(0)
    with torch._dynamo.config.patch(recompile_limit=64, allow_rnn=True):
        yield


def _compiles() -> int:
    return counters["jaten"]["compiles"]


def _rows(count: int, *sizes: int) -> torch.Tensor:
    """A tensor whose first size may change."""
    x = torch.randn(count, *sizes)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def _words(count: int) -> torch.Tensor:
    x = torch.randint(0, 5, (count, 6))
    torch._dynamo.mark_dynamic(x, 0)
    return x


def _holds(program: Program, *args: Any, compiled: Program) -> None:
    """The compiled program gives eager's values and strides."""
    with torch.no_grad():
        expected = program(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args])
        torch.testing.assert_close(compiled(*args), expected, check_stride=True)


# A new size


class _Counter:
    """The backend with a choice of buckets, which counts the programs that Dynamo captures."""

    def __init__(self, buckets: str) -> None:
        self.frame_count, self._buckets = 0, buckets

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.frame_count += 1
        return jaten(gm, inputs, options={"buckets": self._buckets})


@pytest.mark.parametrize("buckets", ["off", "auto"])
@pytest.mark.parametrize("how", ["marked", "automatic", "dynamic"])
def test_a_new_size_is_at_most_one_compile_and_no_retrace(how: str, buckets: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    counter = _Counter(buckets)
    compiled = torch.compile(model, backend=counter, dynamic=True if how == "dynamic" else None)
    seen = []
    for count in (3, 5, 7, 5, 9, 11):
        x = _rows(count, 4) if how == "marked" else torch.randn(count, 4)
        _holds(model, x, compiled=compiled)
        seen.append((counter.frame_count, _compiles()))
    # of itself, Dynamo makes a size dynamic when it meets the second one
    frames = [1, 2, 2, 2, 2, 2] if how == "automatic" else [1] * 6
    rounded = [1, 2, 3, 3, 4, 4] if how == "automatic" else [1, 2, 3, 3, 3, 3]  # from a graph's third size on
    compiles = [1, 2, 3, 3, 4, 5] if buckets == "off" else rounded
    assert seen == list(zip(frames, compiles, strict=True))


@pytest.mark.parametrize(("buckets", "compiles"), [("off", 8), ("auto", 6)])
def test_training_with_a_new_size_compiles_each_graph_once(buckets: str, compiles: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    counter = _Counter(buckets)
    compiled = torch.compile(model, backend=counter)
    for count in (3, 5, 9, 5, 11):
        x = _rows(count, 4)
        got, expected = (torch.autograd.grad(m(x).square().mean(), list(model.parameters())) for m in (compiled, model))
        torch.testing.assert_close(got, expected)
    assert (counter.frame_count, _compiles()) == (1, compiles)


# Numbers that change no shape


def _attended(cache: torch.Tensor, query: torch.Tensor, position: Any) -> torch.Tensor:
    scores = (cache @ query[..., None]).squeeze(-1)
    scores = scores.masked_fill(torch.arange(cache.shape[2]) > position, float("-inf"))
    return (scores.softmax(-1)[..., None] * cache).sum(2)


def _slice(cache: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
    cache[:, :, at : at + 1] = x[:, :, None]
    return _attended(cache, x, at)


def _narrow(cache: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
    cache.narrow(2, at, 1).copy_(x[:, :, None])
    return _attended(cache, x, at)


def _select(cache: torch.Tensor, x: torch.Tensor, at: int) -> torch.Tensor:
    cache.select(2, at).copy_(x)
    return _attended(cache, x, at)


def _index_copy(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(2, at, x[:, :, None])
    return _attended(cache, x, at)


def _index_put(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    cache[:, :, at] = x[:, :, None]
    return _attended(cache, x, at)


CACHES: dict[str, tuple[Program, Callable[[int], Any]]] = {
    "slice": (_slice, int),
    "narrow": (_narrow, int),
    "select": (_select, int),
    "index_copy_": (_index_copy, lambda at: torch.tensor([at])),
    "index_put_": (_index_put, lambda at: torch.tensor([at])),
}


def _decode(name: str, steps: int) -> None:
    """A loop that writes each position of a cache in place and reads all of them."""
    program, position = CACHES[name]
    counter = _Counter("off")
    compiled = torch.compile(program, backend=counter, fullgraph=True)
    cache, expected = torch.zeros(1, 2, steps, 4), torch.zeros(1, 2, steps, 4)
    with torch.no_grad():
        x = y = torch.randn(1, 2, 4)
        for at in range(steps):
            x, y = compiled(cache, x, position(at)), program(expected, y, position(at))
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(cache, expected, rtol=1e-3, atol=1e-4)
    assert _compiles() <= 2 and counter.frame_count <= 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CACHES)
def test_a_decode_loop_compiles_at_most_twice(name: str) -> None:
    _decode(name, 30)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CACHES)
def test_a_long_decode_loop_compiles_at_most_twice(name: str) -> None:
    _decode(name, 500)


SOURCE = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1))

NUMBERS: dict[str, Program] = {
    "slice": lambda x, p: x[:, p : p + 2] * 2,
    "slice from the end": lambda x, p: torch.ops.aten.slice(x, 1, p - 8, p - 7) + 0,
    "select": lambda x, p: x.select(1, p) + p,
    "slice_scatter": lambda x, p: torch.slice_scatter(x, SOURCE, 1, p, p + 2),
    "select_scatter": lambda x, p: torch.select_scatter(x, SOURCE[:, 0], 1, p),
    "range": lambda x, p: torch.arange(p, p + 4) * x,
    "int32 range": lambda x, p: torch.arange(p, p + 4, dtype=torch.int32) * x,
    "beyond 32 bits": lambda x, p: torch.full((2,), p + 2**40) + x.sum().long() * 0,
    "written": lambda x, p: x.clone().narrow(1, p, 2).mul_(3),
    "mask": lambda x, p: x.masked_fill(torch.arange(4) < p, p),
}

SIZES: dict[str, Program] = {
    "length": lambda x, p: x[:, :p] + 1,
    "returned": lambda x, p: (x + p, p + 1),
    "shift": lambda x, p: x.roll(p, 1),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_changes_no_shape_is_handed_over(name: str) -> None:
    compiled = torch.compile(NUMBERS[name], backend="jaten", fullgraph=True)
    for position in (2, 3, 5, 4, 6):
        _holds(NUMBERS[name], torch.randn(3, 8, 4), position, compiled=compiled)
    assert _compiles() == 2  # the first is for the number that it was


@pytest.mark.parametrize("name", SIZES)
def test_a_number_that_decides_more_compiles_anew(name: str) -> None:
    compiled = torch.compile(SIZES[name], backend="jaten", fullgraph=True)
    for position in (2, 3, 5, 4):
        _holds(SIZES[name], torch.randn(3, 8, 4), position, compiled=compiled)
    assert _compiles() == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_the_lengths_of_jagged_nested_tensors_are_handed_back() -> None:
    layer = nn.Linear(4, 3)
    compiled = torch.compile(lambda x: torch.relu(layer(x)) * 2, backend="jaten", fullgraph=True)
    for lengths in ((2, 5, 3), (1, 1, 4, 7), (3, 4, 2)):
        x = torch.nested.nested_tensor([torch.randn(n, 4) for n in lengths], layout=torch.jagged)
        result = compiled(x)
        torch.testing.assert_close(result.values(), torch.relu(layer(x.values())) * 2)
        assert [len(one) for one in result.unbind()] == list(lengths)
        layer.zero_grad()
        result.values().sum().backward()
        torch.testing.assert_close(layer.bias.grad, 2 * (result.values() > 0).sum(0).float())


@pytest.mark.parametrize("name", ["slice", "select", "slice_scatter", "select_scatter"])
def test_gradients_where_a_number_says(name: str) -> None:
    compiled = torch.compile(NUMBERS[name], backend="jaten", fullgraph=True)
    for position in (2, 3, 5, 4):
        x = torch.randn(3, 8, 4, requires_grad=True)
        got, expected = (torch.autograd.grad(p(x, position).square().sum(), x) for p in (compiled, NUMBERS[name]))
        torch.testing.assert_close(got, expected)
    assert _compiles() <= 6


# What is logged


def _messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level and r.name == compile_log.__name__]


def test_each_compile_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(lambda x: x.abs() + 1, backend="jaten", options={"buckets": "off"})
    with caplog.at_level(logging.DEBUG, "jaten_ops"):
        for count in (3, 5, 5):
            compiled(_rows(count, 2))
    first, second = _messages(caplog, logging.INFO)
    assert first.startswith("graph 0/0 (") and "x.abs() + 1" in first and "compile 1 in " in first
    assert "compile 2 in " in second and second.endswith("L['x'].size()[0] = 5 (was 3)")
    assert _messages(caplog, logging.DEBUG)[1] == "graph 0/0: inputs float32[5, 2]"


def test_nothing_is_logged_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    compiled = torch.compile(lambda x: x.abs() + 1, backend="jaten")
    compiled(_rows(3)), compiled(_rows(5))
    assert capfd.readouterr() == ("", "")


def test_many_sizes_are_warned_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "MANY", 3)
    compiled = torch.compile(lambda x: x + 1, backend="jaten", options={"buckets": "off"})
    for count in range(3, 8):
        compiled(_rows(count, 2))
    (warning,) = _messages(caplog, logging.WARNING)
    assert "3 sizes of L['x'].size()[0]" in warning and "buckets" in warning


# The option `buckets`

EMBEDDING = nn.Embedding(5, 8)
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True).eval()
BLOCK = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
RECURRENT = nn.LSTM(4, 5, batch_first=True)
IMAGES = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8)),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
).eval()
WEIGHT = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))


def _with_cache(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return cache.index_copy(2, at, x).softmax(-1)


def _of_own_row(x: torch.Tensor) -> torch.Tensor:
    """As transformers make masks: rows are indexed by their numbers."""
    own = torch.arange(len(x))[:, None, None]
    return x[own, torch.arange(6)[:, None]] * x[own, torch.arange(6).flip(0)]


SOUND: dict[str, tuple[Program, Callable[[int], tuple[Any, ...]]]] = {
    "layers": (lambda x: F.layer_norm(F.gelu(x @ WEIGHT), (4,)), lambda n: (_rows(n, 4),)),
    "rows within a dimension": (lambda x: (x.view(-1, 2) @ WEIGHT[:2]).reshape(len(x), 8), lambda n: (_rows(n, 4),)),
    "strides": (lambda x: ((x + 1).t(), x.sum(1, keepdim=True).expand(-1, 3)), lambda n: (_rows(n, 4),)),
    "within a larger one": (lambda x: (x @ WEIGHT).transpose(0, 1).reshape(-1, 2) * 2, lambda n: (_rows(n, 3, 4),)),
    "embedding": (lambda i: EMBEDDING(i).mean(1), lambda n: (_words(n),)),
    "images": (IMAGES, lambda n: (_rows(n, 3, 8, 8),)),
    "attention": (lambda x: ATTENTION(x, x, x)[0], lambda n: (_rows(n, 5, 8),)),
    "transformer": (BLOCK, lambda n: (_rows(n, 5, 8),)),
    "recurrent": (lambda x: RECURRENT(x)[0], lambda n: (_rows(n, 3, 4),)),
    "row numbers": (lambda x: x * torch.arange(len(x))[:, None] + torch.ones(len(x), 1), lambda n: (_rows(n, 4),)),
    "largest of all": (lambda x: (x.amax(0), x / x.abs().max()), lambda n: (_rows(n, 4),)),
    "sorted": (lambda x: x.topk(2)[0] + x.sort(1)[0][:, :2] + x.cumsum(1)[:, :2], lambda n: (_rows(n, 4),)),
    "parts": (lambda x: torch.cat([x, 2 * x, x.new_ones(len(x), 1)], 1).split([3, 6], 1), lambda n: (_rows(n, 4),)),
    "side by side": (lambda x: torch.stack(torch.stack([x, 2 * x], 1).relu().unbind(2)), lambda n: (_rows(n, 4),)),
    "cache": (_with_cache, lambda n: (_rows(n, 2, 6, 4), _rows(n, 2, 1, 4), torch.tensor([3]))),
    "given back": (lambda x: (x * 2, x.shape[0], x), lambda n: (_rows(n, 4),)),
    "moved": (lambda x: F.pad(x, (1, 1)).flip(1).roll(1, 1), lambda n: (_rows(n, 4),)),
    "own row": (_of_own_row, lambda n: (_rows(n, 6),)),
    "losses": (lambda x: F.cross_entropy(x, x.argmax(1), reduction="none"), lambda n: (_rows(n, 4),)),
}  # fmt: skip


_FIXED = pytest.mark.skipif(
    RELEASE >= (2, 15), reason="torch 2.15 itself, with aot_eager too, fixes the sizes of an LSTM without gradients"
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [pytest.param(n, marks=_FIXED) if n == "recurrent" else n for n in SOUND])
def test_sizes_of_one_bucket_compile_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    program, make = SOUND[name]
    compiled = torch.compile(program, backend="jaten", fullgraph=True, options={"buckets": [8, 16]})
    for count in (3, 7, 5, 8):
        _holds(program, *make(count), compiled=compiled)
    assert _compiles() == 1 and not _messages(caplog, logging.WARNING)


MIXED: dict[str, Program] = {
    "mean": lambda x: x.mean(0),
    "loss": lambda x: F.cross_entropy(x, x.argmax(1)),
    "training statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "softmax": lambda x: x.softmax(0),
    "largest of numbered rows": lambda x: (x * torch.arange(len(x))[:, None]).amax(0),
    "gram matrix": lambda x: x @ x.t(),
    "weight gradient": lambda x: x.t() @ (x * 2),
    "times the count": lambda x: x * x.shape[0],
    "last": lambda x: x[-1] * 2,
    "differences": lambda x: x[1:] - x[:-1],
    "order": lambda x: x.flip(0),
    "sorted": lambda x: x.sort(0)[0],
    "sums so far": lambda x: x.cumsum(0),
    "row before": lambda x: x[torch.arange(len(x)) - 1],
    "taken": lambda x: x[x.argmax(1) % 2],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_rows_leaves_out_those_that_are_added(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(padded_tensors, "FILL", float("nan"))
    compiled = torch.compile(MIXED[name], backend="jaten", fullgraph=True, options={"buckets": [8, 16]})
    for count in (3, 7, 5, 8):
        _holds(MIXED[name], _rows(count, 4), compiled=compiled)
    assert _compiles() == 1 and not _messages(caplog, logging.WARNING)


@pytest.mark.parametrize("program", [lambda x: torch.fft.fft(x, dim=0).real])
def test_what_cannot_be_rounded_says_so(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(program, backend="jaten", fullgraph=True, options={"buckets": [8, 16]})
    for count in (3, 5):
        _holds(program, _rows(count, 4), compiled=compiled)
    (warning,) = _messages(caplog, logging.WARNING)
    assert _compiles() == 2 and "XLA's fft" in warning and "L['x'].size()[0]" in warning
    assert "jaten::" in warning and "test_dynamic_shapes.py" in warning


def test_a_backward_graph_adds_up_the_rows_that_there_are(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 2)
    compiled = torch.compile(model, backend="jaten", options={"buckets": [8]})
    for count in (3, 5):
        x = _rows(count, 4)
        got, expected = (torch.autograd.grad(m(x).square().sum(), list(model.parameters())) for m in (compiled, model))
        torch.testing.assert_close(got, expected)
    assert _compiles() == 2 and not _messages(caplog, logging.WARNING)


def test_two_sizes_each_with_its_buckets() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x @ WEIGHT).relu().transpose(0, 1).reshape(-1, 2)

    compiled = torch.compile(program, backend="jaten", options={"buckets": {0: [8, 16], 1: POWERS}})
    for sizes in ((3, 5), (6, 7), (5, 6), (9, 9)):
        x = _rows(*sizes, 4)
        torch._dynamo.mark_dynamic(x, 1)
        _holds(program, x, compiled=compiled)
    assert _compiles() == 2


def test_only_the_dimension_that_is_named() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="jaten", options={"buckets": {0: [8]}})
    for sizes in ((3, 5), (6, 5), (5, 7)):
        x = _rows(*sizes)
        torch._dynamo.mark_dynamic(x, 1)
        assert torch.equal(compiled(x), x * 2)
    assert _compiles() == 2


def test_a_size_over_the_largest_bucket_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="jaten", options={"buckets": [4, 8]})
    with caplog.at_level(logging.INFO, "jaten_ops"):
        for count in (3, 9, 10):
            x = _rows(count)
            assert torch.equal(compiled(x), x * 2)
    assert _compiles() == 3
    assert sum("over the largest bucket" in m for m in _messages(caplog, logging.INFO)) == 2


def test_a_wrong_value_is_an_error_and_only_in_the_rows_there_are() -> None:
    compiled = torch.compile(lambda i: EMBEDDING(i), backend="jaten", options={"buckets": [8]})
    with torch.no_grad():
        compiled(_words(3))
        bad = _words(5)
        bad[4, 0] = 5
        with pytest.raises(IndexError, match="index out of range"):
            compiled(bad)
        good = _words(5)
        torch.testing.assert_close(compiled(good), EMBEDDING(good))


def test_in_place_writes_and_the_device_jax() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return (x + 1).t()

    compiled = torch.compile(program, backend="jaten", options={"buckets": [8]})
    for device in ("cpu", "jax"):
        for count in (3, 5):
            x = torch.ones(count, 2, device=device)
            torch._dynamo.mark_dynamic(x, 0)
            y = compiled(x)
            assert torch.equal(x.cpu(), torch.full((count, 2), 2.0))
            assert torch.equal(y.cpu(), torch.full((2, count), 3.0))
    assert _compiles() == 2


@pytest.mark.parametrize("option", [{"buckets": "squares"}, {"buckets": []}, {"buckets": [0]}, {"bucket": [8]}])
def test_an_option_that_is_not_known_is_an_error(option: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="buckets"):
        torch.compile(lambda x: x + 1, backend="jaten", options=option)(torch.ones(3))


def test_rounding() -> None:
    assert [rounded(n, POWERS) for n in (1, 2, 3, 4, 5, 1023, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]
    assert [rounded(n, [4, 8]) for n in (1, 4, 5, 9)] == [4, 4, 8, 9]
    assert Buckets({1: [8]}).of_dim(0) is None
    with pytest.raises(UnsupportedInputError):
        Buckets(8)
