"""The call of an executable, written out: tensors in, arrays through XLA, tensors out, and no loop between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from jaten_ops import bridge, x64
from jaten_ops.execute import raise_first_broken
from jaten_ops.ordering import Order


class Statics:
    """The arrays of inputs that keep their memory from call to call.

    They hold that memory: no other tensor can come to lie at its address.

    Attributes:
        arrays: by the number of the input.
        places: where the memory of each is; -1 if its array is a copy.
        orders: the order in which the dimensions of each lie, None for the program's.
    """

    def __init__(self, inputs: Sequence[int], place: Any) -> None:
        self.arrays: dict[int, jax.Array] = {}
        self.places = dict.fromkeys(inputs, -1)
        self.orders: dict[int, Order | None] = dict.fromkeys(inputs)
        self._place = place

    def keep(self, i: int, tensor: torch.Tensor) -> jax.Array:
        """The array of a tensor, converted for as long as its memory stays."""
        order = self.orders[i]
        array = self.arrays[i] = bridge.borrow(tensor if order is None else tensor.permute(order), self._place)
        self.places[i] = tensor.data_ptr() if bridge.shares_memory(array, tensor) else -1
        return array


@dataclass(frozen=True)
class Write:
    """An input of which a program writes a part.

    Attributes:
        input: its number.
        write: takes it, and what is written.
        donated: whether it gave its array away, and gets the result, an array, before anything is raised.
        given: where and what that is: for each the number of an input, or of a result and what makes a tensor of it.
    """

    input: int
    write: Callable[..., None]
    donated: bool
    given: Sequence[int | tuple[int, Callable[[Any], Any]]]


_Made = Callable[[Any], Any] | int | tuple[Any]


@dataclass
class Program:
    """An executable and how it is called.

    Attributes:
        run: takes arrays, returns a list of them.
        operands: for each operand the number of the input and what converts it; None for a static one.
        outputs: what makes a tensor of a result of `run`, in their order; the number of an input that is handed back;
            or a tuple of one value.
        errors: what the conditions stand for that are the last result; empty if there are none.
        seed: what draws the last operand, if there is a need of one.
        wide: whether operands are NumPy arrays of 64-bit numbers, so that JAX has to have these types on.
        waits: whether the call is to be over only when the results are there.
        writes: what is written to inputs.
    """

    run: Callable[..., list[Any]]
    operands: Sequence[tuple[int, Callable[[Any], Any] | None]]
    outputs: Sequence[_Made]
    errors: Sequence[Exception]
    seed: Callable[[], Any] | None
    wide: bool
    waits: bool
    writes: Sequence[Write] = ()


def make_call(program: Program, count: int, statics: Statics) -> Callable[[list[Any]], list[Any]]:
    """A function of a list of `count` inputs, which it empties, as AOTAutograd's boxed calls do."""
    scope: dict[str, Any] = {"run": program.run, "kept": statics.arrays, "places": statics.places}
    scope |= {"keep": statics.keep, "seed": program.seed, "wait": jax.block_until_ready}
    scope |= {"check": raise_first_broken, "errors": program.errors, "enter": x64.enter, "leave": x64.leave}
    lines = [f"{''.join(f'a{i}, ' for i in range(count))} = args", "args.clear()"] if count else []
    operands = []
    for i, convert in program.operands:
        if convert is None:
            lines.append(f"k{i} = kept[{i}] if a{i}.data_ptr() == places[{i}] else keep({i}, a{i})")
            operands.append(f"k{i}")
        else:
            scope[f"convert_{i}"] = convert
            operands.append(f"convert_{i}(a{i})")
    run = f"results = run({', '.join([*operands, *(['seed()'] if program.seed else [])])})"
    lines += ["before = enter()", f"try: {run}", "finally: leave(before)"] if program.wide else [run]
    lines += [_write(w, scope) for w in program.writes if w.donated]
    if program.errors:
        lines.append("check(results.pop(), errors)")
    if program.waits:
        lines.append("wait(results)")
    lines += [_write(w, scope) for w in program.writes if not w.donated]
    lines.append(f"return [{', '.join(_outputs(program.outputs, scope))}]")
    exec("def call(args):\n" + "".join(f"    {line}\n" for line in lines), scope)  # our own text
    return scope["call"]


def _write(write: Write, scope: dict[str, Any]) -> str:
    """A write as source."""
    scope[f"write_{write.input}"] = write.write
    values = []
    for n, given in enumerate(write.given):
        if isinstance(given, int):
            values.append(f"a{given}")
        elif write.donated:
            values.append(f"results[{given[0]}]")
        else:
            result, scope[f"value_{write.input}_{n}"] = given
            values.append(f"value_{write.input}_{n}(results[{result}])")
    return f"write_{write.input}({', '.join([f'a{write.input}', *values])})"


def _outputs(outputs: Sequence[_Made], scope: dict[str, Any]) -> list[str]:
    """The outputs as source; what its names stand for goes into the scope."""
    found, result = [], 0
    for n, output in enumerate(outputs):
        if isinstance(output, int):
            found.append(f"a{output}")
        elif isinstance(output, tuple):
            scope[f"value_{n}"] = output[0]
            found.append(f"value_{n}")
        else:
            scope[f"export_{n}"] = output
            found.append(f"export_{n}(results[{result}])")
            result += 1
    return found
