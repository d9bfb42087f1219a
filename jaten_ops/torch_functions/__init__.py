"""Torch functions as functions of JAX: traced, differentiated by torch's autograd, and mapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import jax
import torch

from jaten_ops.arrays import seeds

from .functions import TorchFunction
from .modules import ModuleArrays, arrays_of, of_module
from .primitive import Whole, bind
from .result_trees import put_together, taken_apart
from .torch_autograd import FlatFunction

__all__ = ["ModuleArrays", "arrays_of", "call", "of_module", "put_together", "take_symbolic_dims_by", "taken_apart"]


def _unset(fn: FlatFunction, arrays: Sequence[jax.Array], key: jax.Array | None) -> NoReturn:
    raise AssertionError("jaten_ops has not told which function takes arrays with symbolic dimensions")


_of_symbolic_dims: Callable[..., list[jax.Array]] = _unset


def take_symbolic_dims_by(function: Callable[..., list[jax.Array]]) -> None:
    """Sets the function for arrays with symbolic dimensions, whose module takes time to import."""
    global _of_symbolic_dims
    _of_symbolic_dims = function


def call(fn: FlatFunction, arrays: Sequence[jax.Array], key: jax.Array | None = None) -> list[jax.Array]:
    """A torch function's results for arrays: computed at once, or, for traced arrays, recorded by JAX.

    Args:
        fn: the function, of a list of tensors.
        arrays: its operands, none of a weak type.
        key: the PRNG key of random operators.
    """
    if any(not isinstance(size, int) for a in arrays for size in a.shape):
        return _of_symbolic_dims(_drawing_anew(fn), arrays, key)
    impl = None
    if key is not None:
        impl, arrays = jax.random.key_impl(key), [jax.random.key_data(key), *arrays]
    function = TorchFunction(_drawing_anew(fn), impl)
    if any(isinstance(a, jax.core.Tracer) for a in arrays):
        return bind(Whole(function, [jax.typeof(a) for a in arrays]), *arrays)
    return function.evaluate(*arrays)


def _drawing_anew(fn: FlatFunction) -> FlatFunction:
    """The function with the same random numbers in each run, since it is run again for its derivatives."""

    def run(operands: list[torch.Tensor]) -> list[torch.Tensor]:
        drawn = seeds.seeds_of_key()
        assert drawn is not None
        drawn.start_again()
        return fn(operands)

    return run
