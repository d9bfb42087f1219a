"""The equations of a program in one list: parts of it, and the moves of elements around one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaten_ops.interpreter.flat_equations import FlatEquations
from jaten_ops.interpreter.interpreted_program import _inlined
from jaten_ops.interpreter.primitive_rules import NotInterpreted

A, B = np.ones((4, 3), np.float32), np.ones((3, 4), np.float32)
Moves = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
AROUND: dict[str, tuple[Callable[..., Any], Moves]] = {
    "nothing": (lambda a, b: a @ b, ((), (), ())),
    "a reshape alone": (lambda a, b: (a.reshape(12).reshape(4, 3) @ b).reshape(16), ((), (), ())),
    "transpositions": (lambda a, b: (b.T @ a.T).T, (("transpose",), ("transpose",), ("transpose",))),
    "from the first that turns": (lambda a, b: a.reshape(1, 12).reshape(4, 3)[::-1] @ b, (("rev",), (), ())),
    "up to the last that turns": (
        lambda a, b: lax.rev((a @ b).reshape(2, 8), (0,)).reshape(16),
        ((), (), ("reshape", "rev")),
    ),
    "not beyond a second reader": (lambda a, b: (lambda c: (c, c.T))(a @ b), ((), (), ())),
    "within a call": (lambda a, b: jax.jit(lambda a: a.T.T)(a) @ b, (("transpose", "transpose"), (), ())),
}


def _flat(function: Callable[..., Any], *operands: Any, most: int = 1 << 20) -> FlatEquations:
    return FlatEquations(jax.jit(function).trace(*operands).jaxpr, _inlined, most)


@pytest.mark.parametrize("name", AROUND)
def test_moves_around_a_product(name: str) -> None:
    function, expected = AROUND[name]
    flat = _flat(function, A, B)
    (product,) = [each for each in flat.equations if each.name == "dot_general"]
    chains = [*map(flat.moves_to, product.operands), flat.moves_from(product.results[0])]
    assert tuple([tuple([move.name for move in chain]) for chain in chains]) == expected


def test_constants_and_what_follows_from_them() -> None:
    flat = _flat(lambda a: a + jnp.arange(3, dtype=np.float32).reshape(1, 3), A)
    last = flat.equations[-1]
    assert last.name == "add" and last.operands[0] == flat.inputs[0][0]
    assert last.operands[1] in flat.constant and flat.outputs == list(last.results)
    assert flat.largest == A.nbytes


@pytest.mark.parametrize(
    ("function", "most"), [(lambda a: a + a, A.nbytes - 1), (jnp.sin, 1 << 20), (lambda a: jax.random.key(0), 1 << 20)]
)
def test_what_is_refused(function: Callable[..., Any], most: int) -> None:
    with pytest.raises(NotInterpreted):
        _flat(function, A, most=most)
