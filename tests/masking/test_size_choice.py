"""The sizes of jaten's choice, and when they are made tighter."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import pytest
from jax import export

from jaten_ops.masking.open_program import OpenProgram
from jaten_ops.masking.size_choice import UsedSizes, larger_sizes


def _program() -> OpenProgram:
    (n,) = export.symbolic_shape("n")
    return OpenProgram(jax.make_jaxpr(jnp.sin)(jax.ShapeDtypeStruct((n, 8), jnp.float32)))


def _asked(larger: int, sizes: Iterable[int]) -> list[tuple[int, int | None]]:
    """The calls after which tighter sizes are asked for, and which these are."""
    used, found = UsedSizes({"n": larger}), []
    for call, size in enumerate(sizes, 1):
        used.meet({"n": size})
        if used.is_due():
            tight = used.tighter(_program())
            found.append((call, None if tight is None else tight["n"]))
    return found


# the larger size, those of calls, and what is found after how many of them
CASES: dict[str, tuple[int, list[int], list[tuple[int, int | None]]]] = {
    "few calls": (4096, [1000] * 63, []),
    "calls of one size": (4096, [1000] * 64, [(64, 1024)]),
    "a little above the largest": (4096, [1100, *[900] * 63], [(64, 1152)]),
    "little to save": (4096, [3700] * 200, [(64, None), (128, None)]),
    "sizes that grow": (4096, [*range(1000, 1200)], [(64, None), (128, None)]),
    "sizes that have grown": (4096, [*range(1000, 1020), *[1000] * 50], [(64, 1024)]),
}


@pytest.mark.parametrize("name", CASES)
def test_many_calls_make_sizes_tighter(name: str) -> None:
    larger, sizes, expected = CASES[name]
    assert _asked(larger, sizes) == expected


def test_the_same_larger_sizes_are_not_new() -> None:
    n, m = export.symbolic_shape("n, m")
    specs = [jax.ShapeDtypeStruct((size, 8), jnp.float32) for size in (n, m)]
    program = OpenProgram(jax.make_jaxpr(lambda x, y: (jnp.sin(x), jnp.sin(y), x @ y.T))(*specs))
    made: list[dict[str, int]] = []
    for size in (1000, 1003, 1001, 990):
        larger, is_new = larger_sizes(program, {"n": size, "m": size}, made)
        assert is_new is (not made)
        made += [larger] if is_new else []
