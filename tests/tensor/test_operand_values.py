"""Tensors of the CPU in functions of as_jax: constants beside the operands, as NumPy's arrays are in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export
from torch.nn import functional as F

import jaten_ops
from jaten_ops.errors import UnsupportedInputError
from tests.harness.crossings import crossed

Program = Callable[[torch.Tensor], Any]
_HELD = torch.tensor([1.0, -2.0, 3.0])


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[torch.tensor([0, 2])] = torch.zeros(3)
    y.masked_fill_(torch.tensor([True, False, True]), torch.tensor(5.0))
    return y.add_(torch.ones(3))


PROGRAMS: dict[str, Program] = {
    "factor": lambda x: x * torch.tensor([1.0, 2.0, 3.0]),
    "number": lambda x: x * torch.tensor(2.0),
    "on the left": lambda x: torch.ones(3) - x,
    "another dtype": lambda x: x * torch.ones(3, dtype=torch.float64),
    "integers": lambda x: x * torch.arange(3),
    "product": lambda x: torch.einsum("ij,jk->ik", torch.ones(2, 4) @ x, torch.eye(3)),
    "layer": lambda x: F.linear(x, torch.ones(2, 3), torch.ones(2)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(4, 4).tril().bool()),
    "classes": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 0])),
    "list": lambda x: torch.cat([torch.ones(1, 3), x, torch.zeros(2, 3)]),
    "condition": lambda x: torch.where(torch.tensor([True, False, True]), x, torch.zeros(3)),
    "indices": lambda x: x[torch.tensor([0, 2])] + F.embedding(torch.tensor([1, 1]), x),
    "target": lambda x: torch.zeros(4, 3).scatter_add(0, torch.zeros(4, 3, dtype=torch.long), x),
    "view": lambda x: x + torch.ones(3, 3).T[0] + torch.ones(1).expand(4, 3),
    "writes": _written,
    "values read": lambda x: x * torch.tensor([float(v) for v in torch.linspace(0, 1, 3).tolist()]),
    "NumPy": lambda x: x * torch.from_numpy(np.ones(3, "float32")),
    "held outside": lambda x: x * _HELD,
    "requires gradients": lambda x: x * torch.ones(3, requires_grad=True),
    "a result": lambda x: (x.sum(), torch.ones(3)),
    "moved": lambda x: x.cpu() * 2 + x.to(torch.device("cpu"), torch.float64),
    "like another": lambda x: x.type_as(torch.ones(3, dtype=torch.float64)),
    "packed": lambda x: torch.nn.utils.rnn.pack_padded_sequence(x[None], [3], batch_first=True).data,
    "padded": lambda x: torch.nn.utils.rnn.pad_packed_sequence(
        torch.nn.utils.rnn.pack_padded_sequence(x[:, :, None], torch.tensor([3, 2, 2, 1]), batch_first=True)
    ),
    # compositions that ask for tensors of one device
    "cosine similarity": lambda x: (F.cosine_similarity(x, _OTHER), F.cosine_similarity(_OTHER, x)),
    "inner product": lambda x: (torch.inner(x, _OTHER), torch.inner(_OTHER, x)),
    "cartesian product": lambda x: torch.cartesian_prod(x[0], _OTHER[0]),
    "products of several": lambda x: torch.linalg.multi_dot([_OTHER, x.mT, _OTHER]),
    "taken along": lambda x: (torch.take_along_dim(x, _ORDER, 1), torch.take_along_dim(_OTHER, x.argsort(1), 1)),
    "attention to constants": lambda x: F.scaled_dot_product_attention(x, _OTHER, _OTHER),
    "attention of constants": lambda x: F.scaled_dot_product_attention(_OTHER, x, _OTHER, x @ x.mT),
    "a layer of constants": lambda x: _LAYERS["normalization"](x[None])[0],
    "an LSTM of constants": lambda x: _LAYERS["LSTM"](x[None])[0],
    "a GRU of constants": lambda x: _LAYERS["GRU"](x, x[:2, :2] * 2)[0],
    "an RNN of constants": lambda x: _LAYERS["RNN"](x)[1],
    "a cell of constants": lambda x: _LAYERS["cell"](x, torch.ones(4, 2)),
    "a transformer of constants": lambda x: _LAYERS["transformer"](x),
}
_OTHER = torch.linspace(-1, 2, 12).cos().reshape(4, 3)
_ORDER = _OTHER.argsort(1)
_LAYERS = {
    "normalization": torch.nn.BatchNorm1d(4).eval(),
    "LSTM": torch.nn.LSTM(3, 2, 2, batch_first=True, bidirectional=True),
    "GRU": torch.nn.GRU(3, 2, 2),
    "RNN": torch.nn.RNN(3, 2, nonlinearity="relu", bias=False),
    "cell": torch.nn.GRUCell(3, 2),
    "transformer": torch.nn.TransformerEncoderLayer(3, 1, 8, batch_first=True).eval(),
}


def _open(program: Program, x: jax.Array) -> Any:
    """The program for any number of rows."""
    (rows,) = export.symbolic_shape("rows")
    exported = export.export(jax.jit(jaten_ops.as_jax(program)))(jax.ShapeDtypeStruct((rows, 3), x.dtype))
    return exported.call(x)


WAYS: dict[str, Callable[[Program, jax.Array], Any]] = {
    "called": lambda program, x: jaten_ops.as_jax(program)(x),
    "jit": lambda program, x: jax.jit(jaten_ops.as_jax(program))(x),
    "vmap": lambda program, x: jax.tree.map(lambda a: a[1], jax.vmap(jaten_ops.as_jax(program))(jnp.stack([x, x]))),
}
OPEN = ["factor", "number", "on the left", "condition", "indices", "a result", "moved"]


def _agrees(got: Any, expected: Any) -> None:
    results = [jaten_ops.from_jax(a).cpu() for a in jax.tree.leaves(got)]
    for one, other in zip(results, jax.tree.leaves(expected), strict=True):
        torch.testing.assert_close(one, other.detach())


def _operand() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3) / 4


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("program", "way"), crossed(PROGRAMS, WAYS))
def test_values(program: str, way: str) -> None:
    with jax.enable_x64(True):
        _agrees(WAYS[way](PROGRAMS[program], jnp.asarray(_operand().numpy())), PROGRAMS[program](_operand()))


@pytest.mark.parametrize("program", OPEN)
def test_any_number_of_rows(program: str) -> None:
    with jax.enable_x64(True):
        _agrees(_open(PROGRAMS[program], jnp.asarray(_operand().numpy())), PROGRAMS[program](_operand()))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("jitted", [False, True])
def test_gradients(program: str, jitted: bool) -> None:
    def loss(x: Any) -> Any:
        return sum(r.sum() for r in jax.tree.leaves(PROGRAMS[program](x)) if r.is_floating_point())

    x = _operand().requires_grad_()
    loss(x).backward()
    gradient = jax.grad(jaten_ops.as_jax(loss))
    with jax.enable_x64(True):
        _agrees((jax.jit(gradient) if jitted else gradient)(jnp.asarray(_operand().numpy())), x.grad)


def _first_written(x: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(3)
    found[0] = x.sum()
    return found


WRITES: dict[str, Program] = {
    "a row": lambda x: torch.zeros(3).index_put_((torch.tensor([0]),), x[0, :1]),
    "copy_": lambda x: torch.zeros(4, 3).copy_(x),
    "add_": lambda x: torch.zeros(4, 3).add_(x),
    "a mask": lambda x: torch.zeros(4, 3).masked_fill_(x > 0, 1.0),
    "an item": _first_written,
    "statistics of a layer": lambda x: torch.nn.BatchNorm1d(3)(x),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_constant_is_not_written_to(write: str) -> None:
    with pytest.raises(UnsupportedInputError, match=r"device=.*mutable=True"):
        jax.jit(jaten_ops.as_jax(WRITES[write]))(jnp.ones((4, 3)))


def test_elsewhere_devices_are_not_mixed() -> None:
    jax.jit(jaten_ops.as_jax(PROGRAMS["factor"]))(jnp.ones((4, 3)))
    with pytest.raises(RuntimeError, match="same device"):
        _ = torch.ones(3, device="jax") * torch.ones(3)
