"""Programs that call LAPACK several times."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.scipy.linalg import solve_triangular

import jaten_ops  # noqa: F401  # the backend
from jaten_ops.cpu.layouts import has_turns, in_turn

_LINE = re.compile(r"^\s*(?:ROOT )?%([\w.\-]+) = .*?\((.*)$", re.MULTILINE)


def _apart(a: Any, b: Any) -> Any:
    return [solve_triangular(a * i, b, lower=True) for i in range(1, 4)]


def _of_several_kinds(a: Any, b: Any) -> Any:
    whole = a @ a.mT + jnp.eye(4)
    return jnp.linalg.cholesky(whole), jnp.linalg.eigvalsh(whole), jnp.linalg.qr(b), jnp.linalg.det(a)


def _once(a: Any, b: Any) -> Any:
    return solve_triangular(a, b, lower=True) + 1


def _operands() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return np.tril(rng.normal(size=(3, 4, 4)) + 4 * np.eye(4)).astype(np.float32), rng.normal(size=(3, 4, 2)).astype(
        np.float32
    )


def _are_in_turn(text: str) -> bool:
    """True if each call, in the order of XLA's program, depends on the one before."""
    entry = text[text.index("\nENTRY") :]
    takes = {name: re.findall(r"%([\w.\-]+)", rest) for name, rest in _LINE.findall(entry)}
    calls = [m[1] for m in re.finditer(r'%([\w.\-]+) = [^\n]*custom_call_target="lapack_', entry)]
    before: dict[str, set[str]] = {}
    for name, operands in takes.items():  # which come first
        before[name] = {x for o in operands if o in takes for x in ({o} | before.get(o, set()))}
    return len(calls) > 1 and all(one in before[other] for one, other in itertools.pairwise(calls))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fn", [_apart, _of_several_kinds], ids=lambda f: f.__name__.strip("_"))
def test_calls_are_in_turn(fn: Callable[..., Any]) -> None:
    plain, ordered = (jax.jit(f).lower(*_operands()) for f in (fn, in_turn(fn)))
    assert has_turns(plain.as_text())
    programs = plain.compile(), ordered.compile()
    assert [_are_in_turn(p.as_text()) for p in programs] == [False, True]
    expected, got = (p(*_operands()) for p in programs)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, expected)


def test_one_call_waits_for_none() -> None:
    got, expected = in_turn(_once)(*_operands()), _once(*_operands())
    np.testing.assert_allclose(got, expected)
    assert not has_turns(jax.jit(jnp.sin).lower(1.0).as_text())


def test_a_compiled_program() -> None:
    def solve(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [torch.linalg.solve_triangular(a * i, b, upper=False) for i in range(1, 5)]

    operands = [torch.from_numpy(x) for x in _operands()]
    torch.testing.assert_close(torch.compile(solve, backend="jaten")(*operands), solve(*operands))
