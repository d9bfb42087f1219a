"""Torch functions in `jax.shard_map` over eight devices: each program is compared with the same one in plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaten_ops

from .mesh_programs import Programs

PROGRAMS = Programs()
_X, _W = jnp.linspace(0, 1, 64).reshape(16, 4), jnp.linspace(-1, 1, 16).reshape(4, 4)
_MAPPED, _ROWS = (P("i"), P()), P("i")
_Layer = Callable[[Any, Any], Any]

_torchs = jaten_ops.as_jax(lambda x, w: (x @ w).tanh())


def _jaxs(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def _mapped(layer: Any, ins: Any = _MAPPED, outs: Any = _ROWS, **options: Any) -> Any:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    return jax.shard_map(layer, mesh=mesh, in_specs=ins, out_specs=outs, **options)


def _same(program: Callable[[_Layer], Any]) -> None:
    got, expected = program(_torchs), program(_jaxs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)


def _loss(mapped: _Layer) -> Callable[[Any], Any]:
    return lambda w: jnp.square(mapped(_X, w)).mean()


@PROGRAMS
def values() -> None:
    _same(lambda layer: jax.jit(_mapped(layer))(_X, _W))
    _same(lambda layer: _mapped(layer)(_X, _W))


@PROGRAMS
def gradients_of_what_is_replicated() -> None:
    """They are sums over the devices."""
    for options in ({}, {"check_vma": False}):
        _same(lambda layer, options=options: jax.jit(jax.grad(_loss(_mapped(layer, **options))))(_W))


@PROGRAMS
def second_derivatives() -> None:
    ones = jnp.ones_like(_W)
    _same(lambda layer: jax.jit(lambda w: jax.jvp(jax.grad(_loss(_mapped(layer))), (w,), (ones,)))(_W))


@PROGRAMS
def gradients_inside() -> None:
    def program(layer: _Layer) -> Any:
        def local(x: Any, w: Any) -> Any:
            found = jax.value_and_grad(lambda w: jnp.square(layer(x, w)).mean())(w)
            return jax.lax.pmean(found, "i")

        return jax.jit(_mapped(local, outs=P()))(_X, _W)

    _same(program)


@PROGRAMS
def batches_and_loops() -> None:
    weights = jnp.stack([_W, 2 * _W])

    def program(layer: _Layer) -> Any:
        mapped = _mapped(jax.vmap(layer, (None, 0)), outs=P(None, "i"))
        return jax.jit(jax.grad(lambda w: jnp.square(mapped(_X, w)).mean()))(weights)

    _same(program)

    def looped(layer: _Layer) -> Any:
        def local(x: Any, w: Any) -> Any:
            return jax.lax.scan(lambda x, _: (layer(x, w), None), x, length=3)[0]

        return jax.jit(jax.grad(_loss(_mapped(local))))(_W)

    _same(looped)


@PROGRAMS
def random_numbers_differ_by_device() -> None:
    dropout = jaten_ops.as_jax(lambda x: torch.nn.functional.dropout(x, 0.5))

    def local(x: Any, key: Any) -> Any:
        return dropout(x, key=jax.random.fold_in(key, jax.lax.axis_index("i")))

    found = np.asarray(jax.jit(_mapped(local))(jnp.ones((8, 16)), jax.random.key(0)))
    assert set(found.flat) == {0, 2} and len({tuple(row) for row in found}) == 8
