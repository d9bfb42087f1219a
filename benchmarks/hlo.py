"""The kinds of work that the kernels of XLA programs do, from the programs' text and the kernels' times."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

_COMPUTATION = re.compile(r"^(?:ENTRY )?%([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.-]+) = .*?[\]})] ([a-z][a-z-]*)\(")
_CALLED = re.compile(r"\bcalls=%([\w.-]+)")

_ONEDNN = "__onednn$"  # calls of oneDNN's convolutions

_PRODUCTS = {"dot", "convolution"}
_MOVES = {
    "bitcast", "broadcast", "concatenate", "constant", "copy", "dynamic-slice", "dynamic-update-slice", "fusion",
    "get-tuple-element", "iota", "pad", "parameter", "reshape", "reverse", "slice", "transpose", "tuple",
}  # fmt: skip
_AROUND = {"while", "call", "conditional"}  # what runs others

Program = dict[str, str]
"""The kind of each instruction, by its name."""


def programs_of(texts: Iterable[str]) -> list[Program]:
    """Programs by their texts, as `Compiled.as_text` has them."""
    return [_kinds(text) for text in texts]


def _kinds(text: str) -> Program:
    inside: dict[str, list[tuple[str, str, str | None]]] = defaultdict(list)
    computation = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            computation = found[1]
        elif found := _INSTRUCTION.match(line):
            called = _CALLED.search(line)
            opcode = "convolution" if _ONEDNN in line else found[2]
            inside[computation].append((found[1], opcode, called[1] if called else None))

    def opcodes(computation: str) -> Iterator[str]:
        for _, opcode, called in inside[computation]:
            yield opcode
            if called is not None:
                yield from opcodes(called)

    return {
        name: _kind({opcode, *(opcodes(called) if called else ())})
        for instructions in inside.values()
        for name, opcode, called in instructions
    }


def _kind(opcodes: set[str]) -> str:
    if opcodes & _PRODUCTS:
        return "products"
    return "moves" if opcodes <= _MOVES else "loops"


def kinds_of(lines: Iterable[Any], programs: list[Program], calls: int) -> Counter[str]:
    """Milliseconds of a call by the kind of what was computed.

    Args:
        lines: of a profile of JAX's, each what a thread did.
        programs: those that may have run.
        calls: how many calls the profile is of.
    """
    events = [event for line in lines for event in _own_times(line)]
    names: dict[Any, set[str]] = defaultdict(set)
    for program, name, _ in events:
        names[program].add(name)
    of = {number: _fitting(programs, found) for number, found in names.items()}
    kinds: Counter[str] = Counter()
    for program, name, nanoseconds in events:
        kinds[of[program].get(name, "loops")] += nanoseconds / calls / 1e6
    return kinds


def _fitting(programs: list[Program], names: set[str]) -> Program:
    """The smallest program that has instructions of all these names; none if there is no such."""
    return min((p for p in programs if names <= p.keys()), key=len, default={})


def _own_times(line: Any) -> Iterator[tuple[Any, str, float]]:
    """For each instruction that a thread ran: its program, its name, and its time without that of nested ones."""
    found = []
    for event in line.events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            name = stats["hlo_op"].partition(_ONEDNN)[0]  # XLA appends what it calls
            found.append((event.start_ns, event.start_ns + event.duration_ns, stats["program_id"], name))
    found.sort(key=lambda e: (e[0], -e[1]))
    own = [end - start for start, end, _, _ in found]
    open_: list[int] = []
    for i, (start, end, _, _) in enumerate(found):
        while open_ and found[open_[-1]][1] <= start:
            open_.pop()
        if open_:
            own[open_[-1]] -= end - start
        open_.append(i)
    for (_, _, program, name), time in zip(found, own, strict=True):
        yield program, name, time
