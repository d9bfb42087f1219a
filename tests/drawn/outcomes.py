"""The outcomes of programs in each way to run them, and the differences of two outcomes."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import jaten_ops
from jaten_ops.backend import jaten

from .drawing import Program, overlaps_itself


def _called(fn: Any) -> Any:
    return fn


class Way(NamedTuple):
    """A way to run a program.

    Attributes:
        device: where its tensors are.
        wrap: what is made of the function.
        is_step: whether the function takes its gradients itself, and is called three times: the first call of a step
            runs as it is.
        has_strides: whether results have the strides of eager calls on the CPU; on the device they are row-major.
        placed: gives a tensor a place on the device by chance; None for that of `to`.
    """

    device: str = "cpu"
    wrap: Callable[[Any], Any] = _called
    is_step: bool = False
    has_strides: bool = False
    placed: Callable[[torch.Tensor, random.Random], torch.Tensor] | None = None


def compiled(fn: Any) -> Any:
    return torch.compile(fn, backend=jaten)


WAYS = {
    "on the device": Way("jax"),
    "compiled": Way("cpu", compiled, has_strides=True),
    "compiled on the device": Way("jax", compiled),
    "a step": Way("cpu", jaten_ops.compile_step, is_step=True),
    "a step on the device": Way("jax", jaten_ops.compile_step, is_step=True),
}


def _weighted(results: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """A sum in which each element of each result that requires a gradient has a weight of its own."""
    total = None
    for result in results:
        if result.requires_grad and result.numel():
            weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype, device=result.device)
            part = (result * weights.reshape(result.shape)).sum()
            total = part if total is None else total + part
    return total


def _with_gradients(fn: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    def step(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = fn(*args)
        total = _weighted(results)
        if total is not None:
            total.backward()
        return tuple([r.detach() for r in results])

    return step


def _function(program: Program) -> Any:
    """The program, with lines that errors can show."""
    name = f"<program {program.seed}>"
    linecache.cache[name] = len(program.source), None, program.source.splitlines(keepends=True), name
    names: dict[str, Any] = {"torch": torch}
    exec(compile(program.source, name, "exec"), names)  # of the tables
    return names["program"]


def outcome(program: Program, way: Way | None, *, is_step: bool = False) -> dict[str, Any]:
    """The things left of a run: results, inputs and gradients, and both again after a write to each result.

    Args:
        program: the one to run.
        way: how; None for eager calls on the CPU.
        is_step: whether these take their gradients in the program, to be compared with a step.
    """
    chosen = Way(is_step=is_step) if way is None else way
    torch._dynamo.reset()
    fn = _function(program)
    run = chosen.wrap(_with_gradients(fn) if chosen.is_step else fn)

    def given() -> list[torch.Tensor]:
        chance = random.Random(program.seed)
        made = {
            name: value.clone().to(chosen.device) if chosen.placed is None else chosen.placed(value, chance)
            for name, value in program.inputs.items()
        }
        return [value.requires_grad_(name in program.trains) for name, value in made.items()]

    for _ in range(2 if chosen.is_step else 0):
        run(*given())
    inputs = given()
    results = run(*inputs)
    left: dict[str, Any] = {f"result {i}": _described(r, strides=True) for i, r in enumerate(results)}
    left |= {f"input {i}": _described(x) for i, x in enumerate(inputs)}
    total = None if chosen.is_step else _weighted(results)
    if total is not None:
        total.backward()
    left |= {f"gradient {i}": _gradient(x) for i, x in enumerate(inputs)}
    for result in results:
        if not overlaps_itself(result):
            with torch.no_grad():
                result.detach().add_(1)
    left |= {f"result {i} after": _described(r) for i, r in enumerate(results)}
    return left | {f"input {i} after": _described(x) for i, x in enumerate(inputs)}


def _described(tensor: torch.Tensor, *, strides: bool = False) -> tuple[Any, ...]:
    values = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    of_more = tuple(n for n, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)  # others say nothing
    return values, tensor.requires_grad, of_more if strides else None


def _gradient(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The gradient of a leaf; zeros for none, which AOTAutograd returns of inputs that are written to."""
    grad = tensor.grad if tensor.is_leaf else None
    return (torch.zeros(tensor.shape) if grad is None else grad.detach().cpu().clone()), None, None


def differences(expected: dict[str, Any], found: dict[str, Any], *, has_strides: bool) -> list[str]:
    """The names of what differs between two outcomes, with what it is."""
    differing = []
    for name, (values, needs_gradient, strides) in expected.items():
        other, its_need, its_strides = found[name]
        if values.shape != other.shape or values.dtype != other.dtype:
            differing.append(f"{name}: {values.dtype} {list(values.shape)}, not {other.dtype} {list(other.shape)}")
        elif not torch.allclose(values, other, rtol=1e-4, atol=1e-4, equal_nan=True):
            differing.append(f"{name}: {values.tolist()}, not {other.tolist()}")
        elif needs_gradient != its_need:
            differing.append(f"{name}: requires_grad={needs_gradient}, not {its_need}")
        elif has_strides and values.numel() and strides != its_strides:
            differing.append(f"{name}: strides {strides}, not {its_strides}")
    return differing


class Verdict(NamedTuple):
    """The outcome of a comparison: "the same", "differs", "torch refuses", with details."""

    outcome: str
    details: str = ""


def judge(program: Program, way: Way) -> Verdict:
    """A program in a way beside eager calls on the CPU.

    Torch refuses some eagerly, such as a gradient whose operand has been written to, and more of them compiled: there
    an error is a difference if the backend "aot_eager" raises none.
    """
    try:
        expected = outcome(program, None, is_step=way.is_step)
    except RuntimeError as error:
        return Verdict("torch refuses", str(error))
    try:
        found = outcome(program, way)
    except Exception as error:  # whatever it is
        if way.wrap is not _called and _is_refused_by_torch(program):
            return Verdict("torch refuses", str(error))
        return Verdict("differs", f"{type(error).__name__}: {error}")
    different = differences(expected, found, has_strides=way.has_strides)
    return Verdict("differs", "\n".join(different)) if different else Verdict("the same")


def _is_refused_by_torch(program: Program) -> bool:
    try:
        outcome(program, Way("cpu", lambda fn: torch.compile(fn, backend="aot_eager")))
    except Exception:  # whatever it is
        return True
    return False
