"""Questions about tensors, against ATen's CPU kernels."""

from __future__ import annotations

import math

import pytest
import torch

from ..harness.beside import Call, assert_same_outcome

nan, inf = math.nan, math.inf


def t(*values: object, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


i, b, c = t(1, 2), t(True, False), t(1 + 0j, 2)
with_nan, halves = t(1.0, nan), t(1.0, 2.0, dtype=torch.float16)
many = torch.cat([torch.arange(0.0, 99, 3), t(nan, inf)])

EQUAL: dict[str, Call] = {
    "NaN": lambda ops: ops.equal(with_nan, with_nan),
    "integers and floats": lambda ops: ops.equal(i, i.float()),
    "beyond float64": lambda ops: ops.equal(t(2**53 + 1), t(2.0**53, dtype=torch.float64)),
    "bool and integers": lambda ops: ops.equal(b, i),
    "complex": lambda ops: ops.equal(c, i),
    "other sizes": lambda ops: ops.equal(i, t(1, 2, 3)),
    "nothing": lambda ops: ops.equal(t(), t()),
}

ALLCLOSE: dict[str, Call] = {
    "rtol": lambda ops: ops.allclose(t(100), t(101), 0.01, 0.0),
    "integers are floats": lambda ops: ops.allclose(t(2**60), t(2**60 + 1), 0.0, 1.0),
    "no tolerance": lambda ops: ops.allclose(t(2**60), t(2**60 + 1), 0.0, 0.0),
    "bool": lambda ops: ops.allclose(b, ~b, 0.0, 1.0),
    "uint8 below zero": lambda ops: ops.allclose(t(1).byte(), t(2).byte(), 0.0, 1.0),
    "infinite tolerance": lambda ops: ops.allclose(t(inf), t(1.0), 0.0, inf),
    "complex": lambda ops: ops.allclose(t(1 + 1j), t(1 + 1.1j), 0.0, 0.2),
    "NaN equal": lambda ops: ops.allclose(t(complex(nan, 0)), t(complex(0, nan)), equal_nan=True),
    "NaN unequal": lambda ops: ops.allclose(with_nan, with_nan),
    "negative": lambda ops: ops.allclose(t(1.0), t(2.0), -1.0, 0.0),
    "dtypes": lambda ops: ops.allclose(t(1.0), t(1.0).double()),
    "sizes": lambda ops: ops.allclose(t(1.0, 2.0), t(1.0, 2.0, 3.0)),
}

ISIN: dict[str, Call] = {
    "NaN": lambda ops: ops.isin.Tensor_Tensor(with_nan, with_nan),
    "half and a 0-d float": lambda ops: ops.isin.Tensor_Tensor(halves, torch.tensor(2.0)),
    "many": lambda ops: ops.isin.Tensor_Tensor(torch.arange(60).view(5, 12), torch.arange(0, 99, 3)),
    "many, NaN and -0": lambda ops: ops.isin.Tensor_Tensor(t(0.0, -0.0, nan, inf, 3.0).bfloat16(), many, invert=True),
    "in nothing": lambda ops: ops.isin.Tensor_Tensor(with_nan, t()),
    "nothing": lambda ops: ops.isin.Tensor_Tensor(t(), with_nan),
    "bool": lambda ops: ops.isin.Tensor_Tensor(b, b),
    "complex": lambda ops: ops.isin.Tensor_Tensor(c, c),
    "a number": lambda ops: ops.isin.Tensor_Scalar(i, 1, invert=True),
    "a fraction": lambda ops: ops.isin.Tensor_Scalar(i, 1.5),
    "beyond uint8": lambda ops: ops.isin.Tensor_Scalar(i.byte(), 257),
    "a complex number": lambda ops: ops.isin.Tensor_Scalar(i, 1j),
    "of a number": lambda ops: ops.isin.Scalar_Tensor(1.5, i),
    "of a number, inverted": lambda ops: ops.isin.Scalar_Tensor(1, torch.arange(100), invert=True),
    "of a bool": lambda ops: ops.isin.Scalar_Tensor(True, i),
}

OTHERS: dict[str, Call] = {
    "same size": lambda ops: ops.is_same_size(i, with_nan),
    "other size": lambda ops: ops.is_same_size(i, t(1)),
    "dense_dim": lambda ops: ops.dense_dim(torch.ones(2, 3)),
    "sparse_dim": lambda ops: ops.sparse_dim(torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str) -> None:
    assert_same_outcome("equal", EQUAL[name])


@pytest.mark.parametrize("name", ALLCLOSE)
def test_allclose(name: str) -> None:
    assert_same_outcome("allclose", ALLCLOSE[name])


@pytest.mark.parametrize("name", ISIN)
def test_isin(name: str) -> None:
    assert_same_outcome("isin.Tensor_Tensor", ISIN[name])


@pytest.mark.parametrize("name", OTHERS)
def test_of_sizes(name: str) -> None:
    assert_same_outcome("is_same_size", OTHERS[name])


def test_on_the_device_and_compiled() -> None:
    x, y = torch.ones(3), torch.tensor([1.0, 2.0, 3.0])

    def asks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = torch.isin(y, x).sum()
        return total + 1 if torch.allclose(x, y) or x.equal(y) else total

    assert torch.compile(asks, backend="jaten")(x, y).item() == asks(x, y).item() == 1
    assert asks(x.to("jax"), y.to("jax")).item() == 1
