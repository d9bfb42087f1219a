"""The cost of a plan: the collectives of a compiled program, in number and bytes, and its memory on each device."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from ..step.compiled import Step

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class Traffic(NamedTuple):
    """The collectives of one kind in a program.

    Attributes:
        number: how many there are; one in a loop counts once.
        bytes: what they leave on each device together: for reduce-scatter, what they take.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(data=-1)
        >>> x = distributed.distribute_batch(torch.ones(16, 4), mesh)
        >>> distributed.collectives(lambda x: x + 1, x)["all-reduce"]
        Traffic(number=0, bytes=0)
    """

    number: int
    bytes: int


def collectives(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Traffic]:
    """The collectives of the program that a call would run: what XLA has inserted for the placements of its tensors.

    The program is compiled, but not run, and nothing changes.

    Args:
        fn: a function or a module of tensors over a mesh, which is compiled as a whole, with `backward()` if it calls
            that; or a function of `compile_step`.
        args, kwargs: those of the call, tensors of any shape and dtype on the mesh, and other values.

    Returns:
        A `Traffic` of number and bytes a device for each of "all-reduce", "all-gather", "reduce-scatter", "all-to-all"
        and "collective-permute".

    Raises:
        UnsupportedInputError: the function reads the value of a tensor.
        RuntimeError: an optimizer makes its state in the step alone: call it once before.

    Example:
        >>> from jaten_ops import distributed
        >>> mesh = distributed.make_mesh(data=-1)
        >>> x = distributed.distribute_batch(torch.ones(16, 4), mesh)
        >>> sorted(distributed.collectives(torch.sum, x))
        ['all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter']
    """
    step = fn if isinstance(fn, Step) else Step(fn, ())
    return traffic_of(step.executable_for(*args, **kwargs))


def traffic_of(executable: jax.stages.Compiled) -> dict[str, Traffic]:
    """The collectives of a compiled program of JAX."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for line in (executable.as_text() or "").splitlines():
        match = _INSTRUCTION.search(line)
        if match is None:
            continue
        result, kind, started, operands = match.groups()
        if kind == "reduce-scatter":
            result = operands
        elif started:  # the pair of what an asynchronous one takes and gives
            result = result[len(result) // 2 :] if result.startswith("((") else result.partition(",")[2] or result
        found[kind].append(sum(map(_bytes_of, _ARRAY.findall(result))))
    return {kind: Traffic(len(sizes), sum(sizes)) for kind, sizes in found.items()}


_INSTRUCTION = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(-start)?\((.*?)\)")
_ARRAY = re.compile(r"([a-z]+[0-9a-z]*)\[([0-9,]*)\]")
_BITS = re.compile(r"[0-9]+")


def _bytes_of(array: tuple[str, str]) -> int:
    """The size of an array that is written as f32[8,16]."""
    kind, sizes = array
    bits = _BITS.search(kind)
    width = 1 if kind == "pred" or bits is None else int(bits.group()) // 8
    return width * math.prod(int(n) for n in sizes.split(",") if n)
