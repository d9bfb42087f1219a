"""Views and writes on the device `jax`, against the CPU: random programs over tensors that share memory.

`pytest tests/arrays/test_storage_views.py -m exhaustive` runs 10,000 of them; the seed of one that failed is kept in
`KEPT`.
"""

from __future__ import annotations

import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import pytest
import torch
from hypothesis import strategies

import jaten_ops

Step = Callable[[torch.Tensor], Any]
STEPS = 12  # of a program
KEPT = (29, 4977, 10447, 100030, 101910, 103547, 300056, 300091)
TINY = torch.finfo(torch.float32).tiny


def _dim(rng: random.Random, t: torch.Tensor) -> int:
    return rng.randrange(-t.dim(), t.dim()) if t.dim() else 0


def _shape(rng: random.Random, n: int) -> list[int]:
    """A shape of n elements."""
    shape: list[int] = []
    while n > 1 and len(shape) < 3:
        shape.append(rng.choice([d for d in range(1, n + 1) if n % d == 0]))
        n //= shape[-1]
    return [*shape, n]


def _slice(rng: random.Random, t: torch.Tensor) -> slice:
    size = t.shape[0] if t.dim() else 0
    start = rng.randint(0, size)
    return slice(start, rng.randint(start, size), rng.randint(1, 2))


def _narrow(rng: random.Random, t: torch.Tensor) -> Step:
    dim = _dim(rng, t)
    start = rng.randint(0, t.shape[dim]) if t.dim() else 0
    length = rng.randint(0, t.shape[dim] - start) if t.dim() else 0
    return lambda x: x.narrow(dim, start, length)


def _two_dims(rng: random.Random, t: torch.Tensor) -> tuple[int, int]:
    return _dim(rng, t), _dim(rng, t)


def _view_of(rng: random.Random, t: torch.Tensor) -> Step:
    """A view op on `t`, or on a part of it."""
    (one, two), cut = _two_dims(rng, t), _slice(rng, t)
    size, stride = [rng.randint(1, 3) for _ in range(2)], [rng.randint(0, 4) for _ in range(2)]
    shape, step, length = _shape(rng, t.numel()), rng.randint(1, 2), rng.randint(1, 3)
    order = rng.sample(range(t.dim()), t.dim())
    index = rng.randrange(t.shape[one]) if t.dim() and t.shape[one] else 0
    offset = rng.randint(0, 3)
    table: list[Step] = [
        lambda x: x.transpose(one, two),
        lambda x: x.permute(order),
        lambda x: x.t(),
        lambda x: x[cut],
        lambda x: x.select(one, index),
        _narrow(rng, t),
        lambda x: x.view(shape),
        lambda x: x.reshape(shape),
        lambda x: x.diagonal(offset - 1, one, two),
        lambda x: x.unfold(one, length, step),
        lambda x: x.as_strided(size, stride),
        lambda x: x.as_strided(size, stride, offset),
        lambda x: x.unsqueeze(one),
        lambda x: x.squeeze(),
        lambda x: x.unsqueeze(0).expand(2, *x.shape),
        lambda x: x.chunk(2, one)[-1],
        lambda x: x.unbind(one)[index],
        lambda x: x.split(length, one)[0],
        lambda x: x.detach(),
        lambda x: x.data,
        lambda x: torch.view_as_real(x),
        lambda x: torch.view_as_complex(x),
        lambda x: x.real,
        lambda x: x.imag if x.is_complex() else x.mT,
        lambda x: x.view(torch.int32 if x.dtype == torch.float32 else torch.float32),
        lambda x: x.view(torch.int16),
        lambda x: x.flatten(),
        lambda x: x.movedim(one, two),
    ]
    return rng.choice(table)


def _write_to(rng: random.Random, t: torch.Tensor) -> Callable[..., Any]:
    """An in-place op on a tensor, which may read another of the program."""
    number, cut, dim = rng.randint(-3, 3), _slice(rng, t), _dim(rng, t)
    shape = _shape(rng, max(1, t.numel() + rng.randint(-1, 2)))
    indices = [rng.randrange(t.shape[0]) for _ in range(2)] if t.dim() and t.shape[0] else []
    table: list[Callable[..., Any]] = [
        lambda x, y: x.add_(number),
        lambda x, y: x.mul_(y),
        lambda x, y: x.add_(y),
        lambda x, y: x.sub_(x),
        lambda x, y: x.fill_(number),
        lambda x, y: x.zero_(),
        lambda x, y: x.copy_(y),
        # ATen's vectorized one makes 0 of a complex zero, where the other makes -0: bytes would tell
        lambda x, y: x.neg_() if not x.is_complex() else None,
        # ATen warns of expanded tensors here, and writes an element more than once: jaten refuses them
        lambda x, y: (
            x.masked_fill_((x.real if x.is_complex() else x) > number, number) if 0 not in x.stride() else None
        ),
        lambda x, y: x.__setitem__(cut, number),
        lambda x, y: x.__setitem__(0, y) if y.dim() else None,  # with a 0-d one ATen fills, on the CPU alone
        lambda x, y: x.index_fill_(0, x.new_tensor(indices).long(), number) if 0 not in x.stride() else None,
        lambda x, y: x.index_put_((x.new_tensor(indices).long(),), x[:1].clone()) if 0 not in x.stride() else None,
        lambda x, y: x.transpose_(0, dim),
        lambda x, y: x.unsqueeze_(dim),
        lambda x, y: x.squeeze_(),
        lambda x, y: x.resize_(shape).fill_(number),  # what it grows by is not initialized
        lambda x, y: x.set_(y),
        lambda x, y: torch.add(x, number, out=x),
        # an output that it resizes, ATen lays out as the input; here results are row-major
        lambda x, y: torch.mul(y, number, out=x) if x.shape == y.shape else None,
        lambda x, y: setattr(x, "data", y),
    ]
    return rng.choice(table)


def _outcome(call: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    try:
        return call(*tensors)
    except Exception as error:
        return error


def _has_elements_in_one_place(t: torch.Tensor) -> bool:
    """True if elements with nonzero strides coincide: ATen does not check it, and writes there depend on the order."""
    last = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    places = torch.arange(last + 1).as_strided(t.shape, t.stride(), t.storage_offset()) if t.numel() else t
    return 0 not in t.stride() and places.unique().numel() < t.numel()


def _is_read_while_written(x: torch.Tensor, y: torch.Tensor) -> bool:
    """True if y may change while x is written to, through gaps or in another dtype: ATen does not see it."""
    share = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return any(map(torch._debug_has_internal_overlap, (x, y))) or (share and x.dtype != y.dtype)


def _has_subnormals(t: torch.Tensor) -> bool:
    """True if some numbers, as integers read as floats may be, are subnormal: XLA's CPU takes them for zero."""
    values = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).double().abs()
    return t.dtype in (torch.float32, torch.complex64) and bool(((values > 0) & (values < TINY)).any())


def _run(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.int32, torch.complex64])
    shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    first = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    on_cpu, on_jax = [first], [first.to("jax")]
    for _ in range(STEPS):
        at, other = rng.randrange(len(on_cpu)), rng.randrange(len(on_cpu))
        if rng.random() < 0.5:
            step = _view_of(rng, on_cpu[at])
            expected, got = _outcome(step, on_cpu[at]), _outcome(step, on_jax[at])
            _same_kind(seed, got, expected)
            if isinstance(expected, torch.Tensor) and expected.numel():
                on_cpu.append(expected)
                on_jax.append(got)
        elif not _has_elements_in_one_place(on_cpu[at]) and not any(map(_has_subnormals, (on_cpu[at], on_cpu[other]))):
            if _is_read_while_written(on_cpu[at], on_cpu[other]):
                other = at
            write = _write_to(rng, on_cpu[at])
            expected = _outcome(write, on_cpu[at], on_cpu[other])
            got = _outcome(write, on_jax[at], on_jax[other])
            _same_kind(seed, got, expected)
        for i, (e, g) in enumerate(zip(on_cpu, on_jax, strict=True)):
            assert isinstance(g, jaten_ops.Tensor)
            said = f"program {seed}, tensor {i}"
            lies = [(t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (g, e)]
            assert lies[0] == lies[1], said
            torch.testing.assert_close(g.cpu(), e, rtol=0, atol=0, equal_nan=True, msg=lambda m, s=said: f"{s}: {m}")


def _same_kind(seed: int, got: Any, expected: Any) -> None:
    both = isinstance(got, Exception), isinstance(expected, Exception)
    assert both[0] == both[1], f"program {seed}: got {got!r}, expected {expected!r}"


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # resizing, and casts of complex numbers
        yield


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", KEPT)
def test_kept_program(seed: int) -> None:
    _run(seed)


SEEDS = hypothesis.given(strategies.integers(0, 2**32))


@hypothesis.settings(max_examples=10, deadline=None, derandomize=True)
@SEEDS
def test_programs(seed: int) -> None:
    _run(seed)


@pytest.mark.exhaustive
@hypothesis.settings(max_examples=10_000, deadline=None, database=None)
@SEEDS
def test_many_programs(seed: int) -> None:
    _run(seed)
    jax.clear_caches()  # each program has shapes of its own


def test_views_of_views_share() -> None:
    x = torch.arange(24.0).to("jax")
    cube = x.view(2, 3, 4)
    cube.transpose(0, 2)[1:, 1].mul_(10)
    expected = torch.arange(24.0).view(2, 3, 4)
    expected.transpose(0, 2)[1:, 1].mul_(10)
    assert torch.equal(x.view(2, 3, 4).cpu(), expected) and torch.equal(cube.cpu(), expected)


def test_a_view_is_read_once_until_its_base_changes() -> None:
    x = torch.arange(6.0).to("jax")
    view = x.view(2, 3).t()
    first = view.view_of_arrays.read()
    assert view.view_of_arrays.read() is first
    x.add_(1)
    assert view.view_of_arrays.read() is not first


def test_autograd_sees_writes_through_views() -> None:
    results = []
    for device in ("cpu", "jax"):
        x = torch.arange(6.0, device=device).requires_grad_()
        y = x * 2
        y.view(2, 3)[0].mul_(x[:3])
        (y * y).sum().backward()
        results.append(x.grad.cpu())
    assert torch.equal(*results)


def test_a_tensor_that_a_gradient_needs_may_not_change() -> None:
    x = torch.ones(3, device="jax").requires_grad_()
    y = x.exp()
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.view(3).add_(1)


def test_swapped_tensors() -> None:
    x, y = torch.ones(2, device="jax"), torch.zeros(3, device="jax")
    torch.utils.swap_tensors(x, y)
    assert x.tolist() == [0, 0, 0] and y.tolist() == [1, 1]


def test_an_alias_does_not_keep_what_was_overwritten() -> None:
    torch.ones(5, device="jax").add_(1)  # a trace keeps its operands until the next garbage collection
    x = torch.ones(5, device="jax")
    alias, old = x.detach(), weakref.ref(x.view_of_arrays.read())
    alias.view_of_arrays.read()
    x.add_(1)
    assert old() is None and alias.tolist() == [2, 2, 2, 2, 2]
