"""Rows given by offsets, against ATen's CPU kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ..harness.beside import Call, assert_same_outcome


def t(values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


ends, empty = t([0, 1, 3]), t([], torch.int64)
values = torch.arange(6.0).reshape(3, 2)
padded = torch.arange(12.0).reshape(2, 3, 2)

INDICES: dict[str, Call] = {
    "coo": lambda ops: ops._convert_indices_from_coo_to_csr(t([0, 0, 1, 3]), 5),
    "coo int32": lambda ops: ops._convert_indices_from_coo_to_csr(t([0, 0, 1, 3]).int(), 4, out_int32=True),
    "coo uint8": lambda ops: ops._convert_indices_from_coo_to_csr(t([0, 0, 1, 3], torch.uint8), 4),
    "coo of nothing": lambda ops: ops._convert_indices_from_coo_to_csr(empty, 3),
    "coo 0-d": lambda ops: ops._convert_indices_from_coo_to_csr(t(2), 4),
    "coo 2-d": lambda ops: ops._convert_indices_from_coo_to_csr(t([[0, 1]]), 3),
    "coo of floats": lambda ops: ops._convert_indices_from_coo_to_csr(t([0.0, 1.0]), 3),
    "coo of bools": lambda ops: ops._convert_indices_from_coo_to_csr(t([True]), 3),
    "csr": lambda ops: ops._convert_indices_from_csr_to_coo(t([0, 2, 3, 3]), t([0, 1, 0])),
    "csr first rows empty": lambda ops: ops._convert_indices_from_csr_to_coo(t([0, 0, 0, 3]), t([0, 1, 0])),
    "csr transposed": lambda ops: ops._convert_indices_from_csr_to_coo(
        t([0, 2, 3, 3]), t([0, 1, 0]), transpose=True, out_int32=True
    ),
    "csr batch": lambda ops: ops._convert_indices_from_csr_to_coo(
        t([[[0, 2, 3], [0, 1, 3]]]), t([[[0, 1, 0], [2, 1, 0]]]), transpose=True
    ),
    "csr of nothing": lambda ops: ops._convert_indices_from_csr_to_coo(t([0, 0]), empty),
    "csr of floats": lambda ops: ops._convert_indices_from_csr_to_coo(t([0.0, 1.0]), t([0.0])),
}

VALID: dict[str, tuple[Any, ...]] = {
    "right": (True, t([0, 1, 2]), t([1, 0]), 2, 3, 2),
    "batch": (True, t([[0, 1, 2], [0, 0, 2]]), t([[0, 1], [0, 1]]), 2, 3, 2),
    "of nothing": (True, t([0]), empty, 0, 3, 0),
    "first": (True, t([1, 1, 2]), t([0, 1]), 2, 3, 2),
    "last": (False, t([0, 1, 1]), t([0, 1]), 2, 3, 2),
    "twice": (True, t([0, 2, 2]), t([1, 1]), 2, 3, 2),
    "unsorted": (True, t([[0, 1, 2], [0, 2, 2]]), t([[1, 0], [1, 0]]), 2, 3, 2),
    "beyond": (False, t([0, 1, 2]), t([0, 5]), 2, 3, 2),
    "negative": (True, t([0, 1, 2]), t([-1, 1]), 2, 3, 2),
    "dtypes": (True, t([0, 1, 2]), t([0, 1]).int(), 2, 3, 2),
    "floats": (True, t([0.0, 1.0]), t([0.0]), 1, 3, 1),
    "rows": (True, t([0, 1, 2, 2]), t([0, 1]), 2, 3, 2),
    "nnz": (True, t([0, 2, 1]), t([0, 1]), 2, 3, 1),
}

JAGGED: dict[str, Call] = {
    "to padded": lambda ops: ops._jagged_to_padded_dense_forward(values, [ends], [2], 9.0),
    "cut off": lambda ops: ops._jagged_to_padded_dense_forward(values, [ends], [1], 9.0),
    "1-d": lambda ops: ops._jagged_to_padded_dense_forward(values[:, 0], [ends.int()], [4], math.inf),
    "integers": lambda ops: ops._jagged_to_padded_dense_forward(values.long(), [ends], [4], 9.5),
    "of nothing": lambda ops: ops._jagged_to_padded_dense_forward(values[:0], [ends * 0], [4], math.nan),
    "two offsets": lambda ops: ops._jagged_to_padded_dense_forward(values, [ends, ends], [4, 2]),
    "to jagged": lambda ops: ops._padded_dense_to_jagged_forward(padded, [ends]),
    "to jagged of a size": lambda ops: ops._padded_dense_to_jagged_forward(padded, [t([0, 0, 3])], 3),
    "to jagged of nothing": lambda ops: ops._padded_dense_to_jagged_forward(padded, [ends * 0]),
    "to jagged 4-d": lambda ops: ops._padded_dense_to_jagged_forward(padded[..., None], [ends.int()]),
    "total too large": lambda ops: ops._padded_dense_to_jagged_forward(padded, [ends], 5),
    "row too long": lambda ops: ops._padded_dense_to_jagged_forward(padded[:, :1], [ends]),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(name: str) -> None:
    assert_same_outcome("_convert_indices_from_coo_to_csr", INDICES[name])


@pytest.mark.parametrize("name", VALID)
def test_validation(name: str) -> None:
    assert_same_outcome(
        "_validate_compressed_sparse_indices", lambda ops: ops._validate_compressed_sparse_indices(*VALID[name])
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name: str) -> None:
    assert_same_outcome("_jagged_to_padded_dense_forward", JAGGED[name])
