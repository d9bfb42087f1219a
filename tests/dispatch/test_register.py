"""The device's entries in torch's dispatcher: calls that C++ makes of its own accord do not end the process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jaten_ops.errors import MissingKernelError, UnsupportedInputError

_REFUSED = (MissingKernelError, UnsupportedInputError)


def _rows(device: str = "jax") -> list[torch.Tensor]:
    return [torch.ones(n, 3, device=device, requires_grad=True) for n in (2, 3)]


def _buffer() -> tuple[torch.Tensor, ...]:
    sizes, strides = torch.tensor([[2, 3], [2, 3]]), torch.tensor([[3, 1], [3, 1]])
    return torch.ones(12, device="jax", requires_grad=True), sizes, strides, torch.tensor([0, 6])


def _sparse_embedding() -> torch.Tensor:
    return torch.nn.functional.embedding(torch.tensor([0, 1], device="jax"), _rows()[0], sparse=True)


_coo = torch.sparse_coo_tensor


# autograd asks what is made here for its sizes, where C++ lets no exception through
MADE: dict[str, Callable[[], Any]] = {
    "as_nested_tensor": lambda: torch.nested.as_nested_tensor(_rows()),
    "as_nested_tensor of one": lambda: torch.nested.as_nested_tensor(torch.ones(2, 2, 3, device="jax")),
    "as_nested_tensor of the CPU's": lambda: torch.nested.as_nested_tensor(_rows("cpu"), device="jax").sin(),
    "nested_tensor": lambda: torch.nested.nested_tensor(_rows(), requires_grad=True),
    "nested_tensor of numbers": lambda: torch.nested.nested_tensor([[1.0]], device="jax", requires_grad=True).sin(),
    "moved": lambda: torch.nested.nested_tensor(_rows("cpu"), requires_grad=True).to("jax"),
    "narrow": lambda: torch.nested.narrow(torch.ones(2, 2, 3, device="jax", requires_grad=True), 1, 0, 1),
    "view of a buffer": lambda: torch._nested_view_from_buffer(*_buffer()),
    "copy of a buffer": lambda: torch._nested_view_from_buffer_copy(*_buffer()),
    "padded": lambda: torch._nested_from_padded(torch.ones(2, 2, 3, device="jax", requires_grad=True), _buffer()[1]),
    "sparse": lambda: _rows()[0].to_sparse(),
    "sparse of its parts": lambda: _coo(torch.zeros(1, 1, device="jax").long(), _rows()[0][0, :1], (2,)),
    "sparse gradient": lambda: _sparse_embedding().sum().backward(),
    "sparse, moved": lambda: torch.ones(2, 2).to_sparse().requires_grad_().to("jax"),
    "compressed": lambda: _rows()[0].to_sparse_csr(),
    "oneDNN": lambda: _rows()[0].to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(_rows()[0], 0.1, 0, torch.qint8),
    "quantized, moved": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).to("jax"),
}


def _outcome(make: Callable[[], Any]) -> str:
    try:
        return f"made a {type(make()).__name__}"
    except _REFUSED as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised {error!r}"


def _tell() -> None:
    """Prints what comes of each, in a process that they may end."""
    for name, make in MADE.items():
        print(json.dumps([name, _outcome(make)]), flush=True)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    program = f"import {__name__} as tests; tests._tell()"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("name", MADE)
def test_what_is_no_dense_array_is_refused(outcomes: dict[str, str], name: str) -> None:
    assert outcomes.get(name, "the process ended").startswith("refused: ")


def test_nested_tensors_that_work(outcomes: dict[str, str]) -> None:
    """The remedy that the errors name."""
    for make in (torch.nested.as_nested_tensor, torch.nested.nested_tensor):
        assert make(_rows(), layout=torch.jagged).values().sum().item() == 15  # type: ignore[operator]  # a function


OF_CARRIERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "detach": lambda x: x.detach().clone(),
    "alias": lambda x: torch.ops.aten.alias(x) + 1,
    "a product of matrices": lambda x: x @ x.mT,
    "bits": lambda x: (x * 2).view(torch.int32),
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", OF_CARRIERS)
def test_graphs_that_torch_runs_itself(name: str) -> None:
    """Operators of carriers for which torch has kernels that serve all keys."""
    x = torch.arange(24.0).view(2, 3, 4)
    found = torch.compile(OF_CARRIERS[name], backend="aot_eager")(x.to("jax"))
    torch.testing.assert_close(found.cpu(), OF_CARRIERS[name](x))
