"""The table of combinations, and what becomes of one: the same as plain torch, refused as expected, or failed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from . import jax_ways, own_operators, step_ways
from .judge import difference
from .programs import PROGRAMS, Program
from .refusals import refusal_of
from .surroundings import SURROUNDINGS, Surrounding
from .ways import WAYS, Way, compiled

assert own_operators.OPERATORS  # the import enters its programs


@dataclass(frozen=True)
class Case:
    """A program, a way to run it, and what surrounds it."""

    way: str
    surrounding: str
    program: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.way, self.surrounding, self.program

    def __str__(self) -> str:
        return f"{self.way}: {self.surrounding}: {self.program}"


@dataclass
class Record:
    """The result of a case.

    Attributes:
        status: "passed"; "refused" as the table of refusals says; "not torch's" if torch or its other backends have no
            result either; or "failed".
        reason: why it failed, was refused, or is not counted.
    """

    way: str
    surrounding: str
    program: str
    status: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.way, self.surrounding, self.program

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def cases() -> list[Case]:
    """Every combination that makes sense, ordered by program, way and surrounding."""
    found = []
    for program in PROGRAMS.values():
        for way in WAYS.values():
            if way.applies_to(program):
                found += [Case(way.name, s.name, program.name) for s in SURROUNDINGS.values() if s.applies_to(program)]
        found += [Case("as_jax", t.name, program.name) for t in jax_ways.TRANSFORMS.values() if t.applies_to(program)]
        if step_ways.applies_to(program):
            found += [
                Case("compile_step", f"{how}, {optimizer}", program.name)
                for how in step_ways.SURROUNDINGS
                for optimizer in step_ways.OPTIMIZERS
            ]
    return found


def run(case: Case) -> Record:
    """Runs a case both ways, and compares."""
    program = PROGRAMS[case.program]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status, reason = _RUNNERS.get(case.way, _on_torch_way)(case, program)
    expected = refusal_of(case, program)
    if expected is None:
        return Record(*case.key, status, reason)
    if status == "failed" and expected.matches(reason):
        return Record(*case.key, expected.status, expected.reason)
    if status == "failed":
        return Record(*case.key, "failed", f"{reason}; expected to be refused: {expected.error} {expected.words!r}")
    return Record(*case.key, "failed", f"{status}, but its refusal is expected: take it out of the table")


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def _described(error: Exception) -> str:
    cause = error
    while isinstance(cause.__cause__, Exception) and type(cause).__module__.startswith("torch._dynamo"):
        cause = cause.__cause__
    words = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {words if len(words) <= 1200 else f'{words[:400]} […] {words[-800:]}'}"


def _inputs(program: Program, device: str) -> Callable[[int, int], tuple[Tensor, ...]]:
    return lambda seed, size: tuple(a.to(device) for a in program.make_inputs(seed, size))


def _plain(program: Program, surrounding: Surrounding) -> Any:
    plain = Program(program.name, program.plain, program.inputs, program.traits, program.plain)
    results = surrounding.use(surrounding.transform(plain.fn), _inputs(plain, "cpu"))
    return tree_map_only(Tensor, torch.Tensor.detach, results)


def _on_torch_way(case: Case, program: Program) -> tuple[str, str]:
    way, surrounding = WAYS[case.way], SURROUNDINGS[case.surrounding]
    expected = _outcome(lambda: _plain(program, surrounding))
    got = _outcome(lambda: surrounding.use(way.run(program, surrounding), _inputs(program, way.device)))
    status, reason = _judged(got, expected, way.device, way.has_layouts)
    if status == "failed" and isinstance(got, Exception) and way.name.startswith("compiled"):
        return (status if _others_pass(program, surrounding, way) else "not torch's"), reason
    return status, reason


def _others_pass(program: Program, surrounding: Surrounding, way: Way) -> bool:
    """True if torch's own capture, without a compiler behind it, agrees with eager torch on the CPU."""
    expected = _outcome(lambda: _plain(program, surrounding))
    make = compiled("aot_eager")
    got = _outcome(lambda: surrounding.use(make(program, surrounding), _inputs(program, "cpu")))
    return _judged(got, expected, "cpu", way.has_layouts)[0] == "passed"


def _judged(got: Any, expected: Any, device: str, has_layouts: bool) -> tuple[str, str]:
    if isinstance(expected, Exception):
        if isinstance(got, Exception):
            return "passed", ""
        if isinstance(expected, NotImplementedError):
            return "not torch's", _described(expected)  # an operator that lacks a derivative on the CPU
        return "failed", f"nothing is raised, where torch raises {_described(expected)}"
    if isinstance(got, Exception):
        return "failed", _described(got)
    found = difference(got, expected, device, has_layouts)
    return ("passed", "") if found is None else ("failed", found)


def _as_jax(case: Case, program: Program) -> tuple[str, str]:
    transform = jax_ways.TRANSFORMS[case.surrounding]
    expected = _outcome(lambda: jax_ways.plain(program, transform))
    if isinstance(expected, Exception):  # JAX has derivatives that torch has not
        return "not torch's", _described(expected)
    return _judged(_outcome(lambda: jax_ways.run(program, transform)), expected, "jax", False)


def _as_step(case: Case, program: Program) -> tuple[str, str]:
    how, _, optimizer = case.surrounding.rpartition(", ")
    expected = _outcome(lambda: step_ways.run(program, optimizer, how, compiled=False))
    got = _outcome(lambda: step_ways.run(program, optimizer, how, compiled=True))
    return _judged(got, expected, "jax", False)


_RUNNERS = {"as_jax": _as_jax, "compile_step": _as_step}
