"""Compiled programs that write a part of an input, as a token's place in a cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor

import jaten_ops
from jaten_ops.backend import executable

from ...harness.crossings import crossed
from ...harness.passes import golden

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Program = Callable[[Tensor, Any, Tensor], Any]


def _place(c: Tensor, i: Tensor, x: Tensor) -> Tensor:
    c[:, i] = x * 2
    return c.sum(-1)


def _copied(c: Tensor, i: Tensor, x: Tensor) -> Tensor:
    c.index_copy_(1, i, x.tanh())
    return c.sum(-1)


def _nothing_else(c: Tensor, i: Tensor, x: Tensor) -> None:
    c.index_copy_(1, i, x)


def _itself(c: Tensor, i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    c.index_copy_(1, i, x)
    return c, c[0]


def _twice(c: Tensor, i: Tensor, x: Tensor) -> Tensor:
    c.index_copy_(1, i, x)
    read = c.sum(-1)
    c.index_copy_(1, i + 1, x + 1)
    return read


def _slice(c: Tensor, i: Tensor, x: Tensor) -> Tensor:
    c[:, 3:4] = x
    return c.sum(-1)


def _slice_of_slice(c: Tensor, i: Tensor, x: Tensor) -> Tensor:
    c[:1, 3:4, ::2] = x[1:, :, ::2] + 1
    return c.sum(-1)


def _row(c: Tensor, i: Tensor, x: Tensor) -> Tensor:
    c[0][i] = x[0]
    return c.sum(-1)


def _masked(c: Tensor, i: Tensor, x: Tensor) -> Tensor:
    c[c > 0] = x.mean()
    return c.sum(-1)


PARTS: dict[str, Program] = {
    "place": _place,
    "copied": _copied,
    "nothing else": _nothing_else,
    "itself": _itself,
    "twice": _twice,
    "slice": _slice,
    "slice of slice": _slice_of_slice,
    "row": _row,
    "masked": _masked,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda c: c,
    "permuted": lambda c: c.transpose(1, 2).contiguous().transpose(1, 2),
    "with gaps": lambda c: torch.stack([c, c], -1)[..., 0],
}


def _cache() -> Tensor:
    return torch.arange(48.0).view(2, 8, 3) - 20


def _calls(fn: Program, device: str, layout: str) -> list[Any]:
    """All that can be seen of three calls."""
    cache = LAYOUTS[layout](_cache().to(device))
    seen: list[Any] = []
    with torch.no_grad():
        for k in range(3):
            result = fn(cache, torch.tensor([k], device=device), torch.full((2, 1, 3), k + 1.0, device=device))
            results = result if isinstance(result, tuple) else [] if result is None else [result]
            seen += [x.cpu().clone() for x in (cache, *results)]
    return seen


def _parts() -> list[Any]:
    return [part for each in executable._EXECUTABLES for part in each.info.partial_writes.values()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "device", "layout"), crossed(PARTS, ["cpu", "jax"], LAYOUTS))
def test_only_the_part_is_written(name: str, device: str, layout: str) -> None:
    compiled = torch.compile(PARTS[name], backend="jaten", fullgraph=True)
    before = set(map(id, _parts()))
    torch.testing.assert_close(_calls(compiled, device, layout), _calls(PARTS[name], "cpu", layout))
    (part,) = [p for p in _parts() if id(p) not in before]
    assert part.donated == (device == "jax")


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_where_it_begins_may_be_a_number(device: str) -> None:
    def write(c: Tensor, start: int, x: Tensor) -> Tensor:
        c[:, start : start + 2] = x
        return c.sum(-1)

    compiled = torch.compile(write, backend="jaten", fullgraph=True, dynamic=True)
    mine, theirs = _cache().to(device), _cache()
    with torch.no_grad():
        for start in (3, 0, 6, 5):
            x = torch.full((2, 2, 3), float(start))
            torch.testing.assert_close(compiled(mine, start, x.to(device)).cpu(), write(theirs, start, x))
            torch.testing.assert_close(mine.cpu(), theirs)


def test_all_of_it_is_no_part() -> None:
    def write(c: Tensor, x: Tensor) -> Tensor:
        c.mul_(2).copy_(x + c)
        return c.sum()

    before = set(map(id, _parts()))
    cache = _cache()
    with torch.no_grad():
        torch.compile(write, backend="jaten")(cache, torch.ones(3))
    assert torch.equal(cache, 2 * _cache() + 1) and not [p for p in _parts() if id(p) not in before]


def test_the_executable_writes_in_the_array_of_a_tensor_of_the_device() -> None:
    """A new array never lies where the one before it does, which is there until it is made."""
    compiled = torch.compile(_place, backend="jaten")
    cache, place, x = _cache().to("jax") + 0, torch.tensor([1], device="jax"), torch.ones(2, 1, 3, device="jax")
    places = []
    with torch.no_grad():
        for _ in range(5):
            compiled(cache, place, x)
            places.append(jaten_ops.to_jax(cache).unsafe_buffer_pointer())
    assert any(one == next_ for one, next_ in itertools.pairwise(places))


def test_what_has_the_array_too_keeps_its_values() -> None:
    """An array that the user has, a clone, which shares it, a view, and what numpy sees."""
    compiled = torch.compile(_place, backend="jaten")
    cache, place, x = _cache().to("jax"), torch.tensor([1], device="jax"), torch.ones(2, 1, 3, device="jax")
    kept, cloned, view = jaten_ops.to_jax(cache), cache.clone(), cache[:, 1]
    shown = cache.numpy(force=True)
    with torch.no_grad():
        compiled(cache, place, x)
        compiled(cache, place, x)
    for value in (torch.tensor(kept.tolist()), cloned.cpu(), torch.as_tensor(shown)):
        assert torch.equal(value, _cache())
    assert torch.equal(view.cpu(), torch.full((2, 3), 2.0)) and torch.equal(cache[:, 1].cpu(), view.cpu())


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_nothing_is_written_where_there_is_no_place(device: str) -> None:
    compiled = torch.compile(_copied, backend="jaten")
    cache = _cache().to(device)
    with torch.no_grad(), pytest.raises(IndexError, match="out of bounds"):
        compiled(cache, torch.tensor([8], device=device), torch.ones(2, 1, 3, device=device))
    assert torch.equal(cache.cpu(), _cache())


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_inputs_that_share_memory(device: str) -> None:
    def write(c: Tensor, d: Tensor, i: Tensor) -> Tensor:
        c[:, i] = 1.0
        return d.sum(-1)

    memory = _cache().to(device)
    with torch.no_grad():
        got = torch.compile(write, backend="jaten")(memory, memory[0], torch.tensor([2], device=device))
    expected = _cache()
    expected[:, 2] = 1
    assert torch.equal(memory.cpu(), expected) and torch.equal(got.cpu(), expected[0].sum(-1))


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_a_slice(self) -> None:
        got = golden("partial_writes", _slice, torch.zeros(2, 8, 3), torch.tensor(0), torch.ones(2, 1, 3))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[2, 8, 3]
arg1_1: float32[2, 1, 3]
slice_1: float32[2, 1, 3] = jaten::slice.Tensor(arg0_1, 1, 3, 4)
copy: float32[2, 1, 3] = jaten::copy(slice_1, arg1_1)
slice_scatter: float32[2, 8, 3] = jaten::slice_scatter(arg0_1, copy, 1, 3, 4)
sum_1: float32[2, 8] = jaten::sum.dim_IntList(slice_scatter, [-1])
return (slice_scatter, sum_1)

partial_writes = {0: 'donated=False given=[1]'}""",
        )
