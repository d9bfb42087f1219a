"""Generated code for the call of an executable: tensors in, arrays through XLA, tensors out, without loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src.api_util import InternalFloatingPointError  # private: what jax_debug_nans raises in an executable

from jaten_ops.arrays import carrier
from jaten_ops.ops.executor import raise_first_broken
from jaten_ops.xla import x64

from .lent_inputs import Lent, Static


@dataclass(frozen=True)
class WriteBack:
    """An input that a program writes to in part.

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


@dataclass(frozen=True)
class PackedOutput:
    """An output that is one of the tensors made of a result that follows those with an output each.

    Attributes:
        result: the number of that result among them.
        place: the output's place among the tensors.
    """

    result: int
    place: int


@dataclass(frozen=True)
class SavedInput:
    """An output that is an input of the device as it is now: autograd does not see writes before the backward pass."""

    input: int


_Made = Callable[[Any], Any] | int | tuple[Any] | PackedOutput | SavedInput


@dataclass
class CallPlan:
    """An executable and its calling convention.

    Attributes:
        run: takes arrays, returns a list of them.
        operands: for each operand the number of the input and what converts it, or keeps its array.
        outputs: what makes a tensor of a result of `run`, in their order; the number of an input that is handed back;
            a tuple of one value; a part of a result; or an input that is saved.
        unpackers: what makes tensors of the results with several outputs.
        errors: what the conditions stand for that are the last result; empty if there are none.
        seed: what draws the last operand, if there is a need of one.
        wide: whether operands are NumPy arrays of 64-bit numbers, so that JAX has to have these types on.
        waits: whether the call is to be over only when the results are there.
        writes: what is written to inputs.
    """

    run: Callable[..., list[Any]]
    operands: Sequence[tuple[int, Callable[[Any], Any] | Static | Lent]]
    outputs: Sequence[_Made]
    errors: Sequence[Exception]
    seed: Callable[[], Any] | None
    wide: bool
    waits: bool
    writes: Sequence[WriteBack] = ()
    unpackers: Sequence[Callable[[Any], list[Any]]] = ()


def generate_call(
    program: CallPlan, count: int, not_finite: Callable[[Exception, list[Any]], Any]
) -> Callable[[list[Any]], list[Any]]:
    """A function of a list of `count` inputs, which it empties, like AOTAutograd's boxed calls.

    Args:
        program: what it runs.
        count: the number of inputs.
        not_finite: raises the error of `jax_debug_nans`, from JAX's and the inputs.
    """
    scope: dict[str, Any] = {"run": program.run, "seed": program.seed, "wait": jax.block_until_ready}
    scope |= {"check": raise_first_broken, "errors": program.errors, "enter": x64.enter, "leave": x64.leave}
    lines = [f"{''.join(f'a{i}, ' for i in range(count))} = args", "args.clear()"] if count else []
    operands = []
    for i, convert in program.operands:
        if isinstance(convert, Static):
            scope |= {f"static_{i}": convert, f"keep_{i}": convert.keep}
            lines.append(f"place, k{i} = static_{i}.held")
            lines.append(f"if a{i}.data_ptr() != place: k{i} = keep_{i}(a{i})")
            operands.append(f"k{i}")
        elif isinstance(convert, Lent):
            scope |= {f"lent_{i}": convert, f"take_{i}": convert.take}
            lines.append(f"place, k{i} = lent_{i}.held")
            moved = f"a{i}.data_ptr() != place or not a{i}.is_contiguous() or a{i}.is_neg()"
            lines.append(f"if {moved}: k{i} = take_{i}(a{i})")
            operands.append(f"k{i}")
        else:
            scope[f"convert_{i}"] = convert
            operands.append(f"convert_{i}(a{i})")
    run = f"results = run({', '.join([*operands, *(['seed()'] if program.seed else [])])})"
    scope |= {"NotFinite": InternalFloatingPointError, "not_finite": not_finite}
    scope |= {"config": jax.config, "disable_jit": jax.disable_jit}
    inputs = ", ".join(f"a{i}" for i in range(count))
    guarded = [
        f"try: {run}",
        f"except NotFinite as error: not_finite(error, [{inputs}])",
        # under `jax.disable_jit`, which is for functions in Python, JAX refuses to call an executable
        "except ValueError:",
        "    if not config.jax_disable_jit: raise",
        f"    with disable_jit(False): {run}",
    ]
    lines += ["before = enter()", *guarded, "finally: leave(before)"] if program.wide else guarded
    lines += [_write(w, scope) for w in program.writes if w.donated]
    if program.errors:
        lines.append("check(results.pop(), errors)")
    if program.waits:
        lines.append("wait(results)")
    lines += [_write(w, scope) for w in program.writes if not w.donated]
    outputs, used = _outputs(program.outputs, scope)
    for n, unpack in enumerate(program.unpackers):
        scope[f"unpack_{n}"] = unpack
        lines.append(f"parts_{n} = unpack_{n}(results[{used + n}])")
    lines.append(f"return [{', '.join(outputs)}]")
    exec("def call(args):\n" + "".join(f"    {line}\n" for line in lines), scope)  # our own text
    return scope["call"]


def _write(write: WriteBack, scope: dict[str, Any]) -> str:
    """The source of a write."""
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


def _outputs(outputs: Sequence[_Made], scope: dict[str, Any]) -> tuple[list[str], int]:
    """The source of the outputs, and how many results they are; the values of its names go into the scope."""
    found, result = [], 0
    for n, output in enumerate(outputs):
        if isinstance(output, int):
            found.append(f"a{output}")
        elif isinstance(output, SavedInput):
            scope["snapshot"] = carrier.snapshot
            found.append(f"snapshot(a{output.input})")
        elif isinstance(output, PackedOutput):
            found.append(f"parts_{output.result}[{output.place}]")
        elif isinstance(output, tuple):
            scope[f"value_{n}"] = output[0]
            found.append(f"value_{n}")
        else:
            scope[f"export_{n}"] = output
            found.append(f"export_{n}(results[{result}])")
            result += 1
    return found, result
