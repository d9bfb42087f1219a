"""An eager operator on small tensors of the device `jax`, beside `jax.jit` of it: `python -m benchmarks.eager`.

Prints a Markdown table of microseconds a call and their ratio, which counts what torch's dispatcher and jaten add. Then
what torch itself takes for a tensor of a subclass in Python, with operators that compute nothing.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

import jaten_ops  # noqa: F401  # the device jax

from .threads import pin_threads
from .timing import by_turns, ratio

ROUNDS = 15
SIDE = 4


def _with_number(fn: Callable[..., Any], number: float) -> Callable[..., Any]:
    """A call with a number as an operand, so that another one compiles nothing: as an eager operator has it."""
    jitted = jax.jit(fn)
    return lambda a: jitted(a, number)


# name: the call in torch, the same in JAX
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (torch.add, jnp.add),
    "sub": (torch.sub, jnp.subtract),
    "mul": (torch.mul, jnp.multiply),
    "div": (torch.div, jnp.divide),
    "pow": (torch.pow, jnp.power),
    "maximum": (torch.maximum, jnp.maximum),
    "minimum": (torch.minimum, jnp.minimum),
    "atan2": (torch.atan2, jnp.arctan2),
    "lt": (torch.lt, jnp.less),
    "eq": (torch.eq, jnp.equal),
    "mm": (torch.mm, jnp.matmul),
    "fmin": (torch.fmin, jnp.fmin),
    "cat": (lambda a, b: torch.cat([a, b]), lambda a, b: jnp.concatenate([a, b])),
    "stack": (lambda a, b: torch.stack([a, b]), lambda a, b: jnp.stack([a, b])),
    "add_": (lambda a, b: a.add_(b), jnp.add),
}
UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mul by number": (lambda a: a * 2.5, _with_number(jnp.multiply, 2.5)),
    "add number": (lambda a: a + 1, _with_number(jnp.add, 1)),
    "neg": (torch.neg, jnp.negative),
    "abs": (torch.abs, jnp.abs),
    "exp": (torch.exp, jnp.exp),
    "log": (torch.log, jnp.log),
    "sqrt": (torch.sqrt, jnp.sqrt),
    "rsqrt": (torch.rsqrt, jax.lax.rsqrt),
    "sin": (torch.sin, jnp.sin),
    "tanh": (torch.tanh, jnp.tanh),
    "sigmoid": (torch.sigmoid, jax.nn.sigmoid),
    "relu": (torch.relu, jax.nn.relu),
    "gelu": (torch.nn.functional.gelu, lambda a: jax.nn.gelu(a, approximate=False)),
    "silu": (torch.nn.functional.silu, jax.nn.silu),
    "softmax": (lambda a: torch.softmax(a, -1), lambda a: jax.nn.softmax(a, -1)),
    "sum": (torch.sum, jnp.sum),
    "sum of rows": (lambda a: a.sum(1), lambda a: a.sum(1)),
    "mean": (torch.mean, jnp.mean),
    "amax": (lambda a: a.amax(1), lambda a: a.max(1)),
    "argmax": (lambda a: a.argmax(1), lambda a: a.argmax(1)),
    "cumsum": (lambda a: a.cumsum(1), lambda a: a.cumsum(1)),
    "sort": (lambda a: a.sort()[0], lambda a: jnp.sort(a)),
    "clone": (torch.clone, jnp.copy),
    "to int": (lambda a: a.int(), lambda a: a.astype(jnp.int32)),
    "t": (torch.t, jnp.transpose),
    "view": (lambda a: a.view(-1), lambda a: a.reshape(-1)),
}
NUMBERS = ("mul by number", "add number")  # jitted already
OPS = BINARY | UNARY


class _Hollow(torch.Tensor):
    """A tensor without values, whose operators give another one: the least that a subclass can take."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch documents

    @staticmethod
    def __new__(cls) -> _Hollow:
        device = torch.device("cpu")
        made: _Hollow = torch.Tensor._make_wrapper_subclass(
            cls, (SIDE, SIDE), None, None, None, torch.float32, torch.strided, device
        )
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> _Hollow:
        return cls()


def _print_least() -> None:
    hollow, plain = [_Hollow(), _Hollow()], [torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)]
    calls = {"a subclass": lambda: torch.add(*hollow), "the CPU": lambda: torch.add(*plain)}
    with torch.no_grad():
        times = by_turns(calls, ROUNDS)
    least, cpu = (times[name].median * 1e6 for name in calls)
    print(f"torch's add, on the CPU: {cpu:.1f} µs; of a subclass that computes nothing: {least:.1f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=OPS, default=list(OPS), metavar="NAME")
    parser.add_argument("--side", type=int, default=SIDE, help="the sizes of the tensors, which are square")
    options = parser.parse_args()
    pin_threads(1)
    print("| operator | jaten, eager | jax.jit | jaten / jax.jit |\n| --- | --- | --- | --- |")
    ratios = []
    for name in options.only:
        of_torch, of_jax = OPS[name]
        values = [torch.rand(options.side, options.side) for _ in range(2 if name in BINARY else 1)]
        tensors, arrays = [v.to("jax") for v in values], [jnp.asarray(v.numpy()) for v in values]
        jitted = of_jax if name in NUMBERS else jax.jit(of_jax)
        calls = {"jaten": functools.partial(of_torch, *tensors), "jax": functools.partial(jitted, *arrays)}
        with torch.no_grad():
            times = by_turns(calls, ROUNDS)
        beside = ratio(times["jaten"], times["jax"])
        ratios.append(beside.median)
        each = [times[who].median * 1e6 for who in ("jaten", "jax")]
        print(f"| {name} | {each[0]:.1f} µs | {each[1]:.1f} µs | {beside} |", flush=True)
    print(f"\n{sum(r > 3 for r in ratios)} of {len(ratios)} over 3; median {statistics.median(ratios):.2f}")
    _print_least()


if __name__ == "__main__":
    main()
