"""Random numbers in functions of `as_jax`: a program that goes back to a state draws the same ones again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import jaten_ops


def _back(get: Callable[[], Tensor], put: Callable[[Tensor], None], draw: Callable[[], Tensor]) -> tuple[Tensor, ...]:
    state = get()
    first = draw()
    put(state)
    return first, draw(), draw()


def _of_the_default(x: Tensor) -> Any:
    return _back(torch.get_rng_state, torch.set_rng_state, lambda: functional.dropout(x))


def _of_the_device(x: Tensor) -> Any:
    return _back(torch.jax.get_rng_state, torch.jax.set_rng_state, lambda: functional.dropout(x))


def _of_a_generator(x: Tensor) -> Any:
    generator = torch.Generator()
    draw = lambda: torch.rand(len(x), generator=generator, device=x.device)  # noqa: E731  # as short as the others
    return _back(generator.get_state, generator.set_state, draw)


def _in_a_fork(x: Tensor) -> Any:
    with torch.random.fork_rng(devices=[]):
        first = functional.dropout(x)
    return first, functional.dropout(x), functional.dropout(x)


def _seeded(x: Tensor) -> Any:
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(functional.dropout(x))
    return tuple(found)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, lambda f: jax.jit(jax.checkpoint(f))])
@pytest.mark.parametrize("draws", [_of_the_default, _of_the_device, _of_a_generator, _in_a_fork, _seeded])
def test_states_that_a_function_goes_back_to(draws: Callable[[Tensor], Any], transform: Callable) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    call = transform(lambda x, key: jaten_ops.as_jax(draws)(x, key=key))
    first, again, other = call(jnp.ones(64), jax.random.key(1))
    assert (first == again).all() and not (first == other).all()
    assert not (call(jnp.ones(64), jax.random.key(2))[0] == first).all()
    assert (call(jnp.ones(64), jax.random.key(1))[2] == other).all()  # the key says it, and no generator
    if draws is not _seeded:
        assert torch.equal(before, torch.get_rng_state())


def test_checkpoints_draw_again_what_they_have_drawn() -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda w: functional.dropout(w * functional.dropout(x)), w, use_reentrant=False)

    function, ones = jaten_ops.as_jax(run), jnp.ones(64)
    values, pull = jax.vjp(lambda w: function(ones, w, key=jax.random.key(0)), ones)
    assert ((values != 0) == (pull(ones)[0] != 0)).all() and 0 < (values != 0).sum() < 40
