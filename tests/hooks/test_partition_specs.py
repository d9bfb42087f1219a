"""`PartitionSpec`s and moves in captured functions, over a mesh of one device: what holds outside holds there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
import torch._dynamo
from jax.sharding import PartitionSpec as P
from torch import Tensor

from jaten_ops import distributed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
SPEC = P("data", None)
MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def _after_a_break(x: Tensor) -> Any:
    spec = P(None, "data")
    torch._dynamo.graph_break()
    return distributed.constrain(x, distributed.make_mesh(data=-1), spec)


IS_OF_PYTHON = type(P) is type
of_python = pytest.mark.xfail(
    not IS_OF_PYTHON,
    reason="in JAX 0.10.0 PartitionSpec is a class of C++, whose methods Dynamo does not trace",
    strict=True,
    raises=torch._dynamo.exc.Unsupported,
)

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "returned": lambda x: (x + 1, P("data", None)),
    "equal": lambda x: x + (1 if P("data", None) == SPEC else 2),
    "unequal": lambda x: x + (1 if P("data") != SPEC else 2),
    "a key": lambda x: x + {P("data"): 1}[P("data")],
    "its entries": lambda x: x + sum(1 if axis == "data" else 2 for axis in P("data", None)),
    "its length": lambda x: x + len(P("data", None, "model")),
    "its text": lambda x: x + len(repr(P("data"))),
    "added": lambda x: (x, P("data") + P(None)),
    "unreduced": lambda x: (x, P("data", unreduced={"model"})),
    "its class": lambda x: x + isinstance(P("data"), P),
    "redistributed": lambda x: (x + 1).redistribute(MESH, P("data")) * 2,  # type: ignore[attr-defined]  # on the device
    "after a break": _after_a_break,
}


_BY_METHODS = ("its entries", "its length", "its text", "added")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=of_python if n in _BY_METHODS else ()) for n in PROGRAMS])
def test_as_in_eager_mode(name: str) -> None:
    program, x = PROGRAMS[name], torch.ones(2, 2, device="jax")
    compiled = torch.compile(program, backend="jaten", fullgraph=name != "after a break")
    expected = program(x)
    for _ in range(2):
        got = compiled(x)
        if isinstance(expected, tuple):
            assert got[1] == expected[1]
            got = got[0]
        assert torch.equal(got.cpu(), (expected[0] if isinstance(expected, tuple) else expected).cpu())


def test_a_wrong_one_is_an_error_of_jax() -> None:
    compiled = torch.compile(lambda x: (x, P("data", unreduced=3)), backend="jaten", fullgraph=True)
    with pytest.raises(Exception, match="unreduced"):
        compiled(torch.ones(2, device="jax"))


def test_one_compilation_for_equal_specs() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("jaten")
    compiled = torch.compile(lambda x, spec: distributed.constrain(x, MESH, spec), backend=counter, fullgraph=True)
    for spec in (P("data"), P("data"), P(None, "data"), P("data")):
        compiled(torch.ones(2, 2, device="jax"), spec)
    # those of JAX 0.10.0 are other objects though they are equal, and Dynamo guards a class of C++ by identity
    assert counter.frame_count == (2 if IS_OF_PYTHON else 4)
