"""The numbers of a key: those of the published cipher, and in which order keys and elements take them."""

from __future__ import annotations

import math

import pytest
import torch

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from jaten_ops.schema import FUNCTIONAL

OPS, ATEN = torch.ops.jaten, torch.ops.aten


def _philox(seed: int, offset: int) -> list[int]:
    """The cipher, in plain Python."""
    word = 2**32
    key, counter = [seed % word, seed // word], [offset % word, offset // word, 0, 0]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            second // word ^ counter[1] ^ key[0],
            second % word,
            first // word ^ counter[3] ^ key[1],
            first % word,
        ]
        key = [(key[0] + 0x9E3779B9) % word, (key[1] + 0xBB67AE85) % word]
    return counter


def _key(*pairs: int) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.uint64).reshape(-1, 2)


def _derived(seed: int, offset: int) -> list[int]:
    a, b, c, d = _philox(seed, offset)
    return [a | b << 32, c | d << 32]


def test_the_published_answer() -> None:
    assert _philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_split_and_fold_in() -> None:
    pairs = (0, 0, 2**64 - 1, 2**63, 7, 2**64 - 2)
    keys = _key(*pairs)
    split = OPS._philox_key_split(keys, 4)
    assert split.shape == (4, 3, 2)
    for step in range(4):
        expected = [_derived(pairs[2 * i], (pairs[2 * i + 1] + step) % 2**64) for i in range(3)]
        assert split[step].tolist() == expected
        assert OPS._philox_key_fold_in(keys, step).tolist() == expected
    assert OPS._philox_key_fold_in(keys[2], -1).tolist() == _derived(7, 2**64 - 3)


def _words(seed: int, offset: int, count: int) -> list[int]:
    return [w for i in range(-(-count // 4)) for w in _philox(seed, offset + i)][:count]


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8)], ids=str)
def test_uniform(dtype: torch.dtype, digits: int) -> None:
    got = OPS._philox_uniform(torch.empty(2, 3, dtype=dtype), _key(5, 9)[0], -1.0, 3.0)
    expected = torch.tensor([w % 2**digits / 2**digits * 4 - 1 for w in _words(5, 9, 6)], dtype=torch.float64)
    torch.testing.assert_close(got, expected.reshape(2, 3).to(dtype))


def test_uniform_in_double_takes_two_words() -> None:
    got = OPS._philox_uniform(torch.empty(5, dtype=torch.float64), _key(5, 9)[0])
    words = _words(5, 9, 12)
    wide = [(words[2 * i] << 32 | words[2 * i + 1]) % 2**53 / 2**53 for i in range(5)]
    torch.testing.assert_close(got, torch.tensor(wide, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_normal(dtype: torch.dtype) -> None:
    got = OPS._philox_normal(torch.empty(4, dtype=dtype), _key(1, 2)[0], 2.0, 3.0)
    words = _words(1, 2, 8)
    if dtype == torch.float64:
        units = [(words[2 * i] + (words[2 * i + 1] + 0.5) / 2**32) / 2**32 for i in range(4)]
    else:
        units = [(w + 0.5) / 2**32 for w in words[:4]]
    expected = []
    for first, second in (units[:2], units[2:]):
        radius = math.sqrt(-2 * math.log(first))
        expected += [radius * math.cos(2 * math.pi * second), radius * math.sin(2 * math.pi * second)]
    torch.testing.assert_close(got, torch.tensor([3 * e + 2 for e in expected], dtype=dtype))


@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 3, 2), (1, 3, 2), (1, 1, 2)])
def test_a_key_for_each_leading_index(shape: tuple[int, ...]) -> None:
    """If a batch of keys has size 1 in its last dimensions, the elements there share one key."""
    keys = torch.arange(math.prod(shape)).to(torch.uint64).reshape(shape)
    got = OPS._philox_uniform(torch.empty(2, 3), keys)
    if shape[1] == 1:
        rows = [keys.expand(2, 1, 2)[i, 0] for i in range(2)] if shape[0] == 2 else None
        if rows is None:
            expected = OPS._philox_uniform(torch.empty(2, 3), keys[0, 0])
        else:
            expected = torch.stack([OPS._philox_uniform(torch.empty(3), k) for k in rows])
    else:
        full = torch.cat([keys] * 2)[:2] if shape[0] == 1 else keys
        expected = torch.stack([torch.cat([OPS._philox_uniform(torch.empty(1), k) for k in row]) for row in full])
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def _if_there(overload: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(overload not in FUNCTIONAL, reason="a newer torch has it")


@_if_there("_philox_key_fold_in.Tensor")
def test_what_is_folded_in_may_be_a_tensor() -> None:
    keys = _key(0, 0, 2**64 - 1, 2**63)
    for step in (0, 7, 2**64 - 2):
        data = torch.tensor([step], dtype=torch.uint64)
        got = OPS._philox_key_fold_in.Tensor(keys, data)
        assert got.tolist() == [_derived(0, step), _derived(2**64 - 1, (2**63 + step) % 2**64)]
        assert torch.equal(got, ATEN._philox_key_fold_in.Tensor(keys, data))


INTEGERS = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
RANGES = [(None, None), (0, None), (None, 0), (0, 7), (-300, 300), (-(2**31), 2**31), (0, 2**28 - 1), (3, 2)]


@_if_there("_philox_randint")
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_randint(dtype: torch.dtype) -> None:
    """As ATen on the CPU, bit for bit; what it refuses is refused."""
    keys = _key(5, 9, 1, 2, 2**64 - 1, 2**64 - 2)
    for low, high in RANGES:
        for shape, key in (((7,), keys[0]), ((3, 5), keys[:, None]), ((2, 3), keys[None])):
            args = (torch.empty(shape, dtype=dtype), key, low, high)
            try:
                expected = ATEN._philox_randint(*args)
            except RuntimeError:
                with pytest.raises(RuntimeError, match="_philox_randint_: "):
                    OPS._philox_randint(*args)
            else:
                got = OPS._philox_randint(*args)
                assert got.dtype == expected.dtype and torch.equal(got, expected), (low, high)
                assert torch.equal(OPS._philox_randint_(args[0], *args[1:]), expected)
