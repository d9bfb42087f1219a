"""Schema lines: comments above each kernel in `jaten_ops` with the schemas of the ATen overloads that it serves.

They are those of the oldest supported torch that has the overload, under any torch.

A line reads `# aten::mm(Tensor self, Tensor mat2) -> Tensor`; overloads that differ only in their operator's name share
one, as in `# aten::{sin, cos}(Tensor self) -> Tensor`. The lines stand above the top-level statement that registers:
a decorated function, a call, the loop over a table, or a function that registers for its callers.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaten_ops import registry
from jaten_ops.schema import FIRST

from .rows import ROOT

_WIDTH = 120
_FIRST = re.compile(r"# aten::[\w{]")
_FURTHER = re.compile(r"#     \S")


def schema_lines(schemas: Iterable[str]) -> list[str]:
    """Comment lines for schemas as in "add.Tensor(Tensor self, Tensor other) -> Tensor", in their order."""
    operators: dict[tuple[str, str], list[str]] = {}
    for schema in schemas:
        overload, _, rest = schema.partition("(")
        operator, _, suffix = overload.partition(".")
        operators.setdefault((suffix, rest), []).append(operator)
    lines = []
    for (suffix, rest), names in operators.items():
        operator = names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"
        lines += _wrapped(f"aten::{operator}{suffix and '.'}{suffix}({rest}")
    return lines


def _wrapped(text: str) -> list[str]:
    """Comment lines, broken after commas only."""
    kept = "\0"  # replaces spaces at which a line must not end
    text = re.sub(r"(?<!,) ", kept, text)
    lines = textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="#     ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(kept, " ") for line in lines]


def _generated(text: str) -> set[int]:
    """The numbers of the lines that hold schema lines: comments at the left margin, never lines of a string."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.start[1] == 0:
            number = token.start[0]
            if _FIRST.match(token.string) or (_FURTHER.match(token.string) and number - 1 in numbers):
                numbers.add(number)
    return numbers


def _first_line(statement: ast.stmt) -> int:
    decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def annotate(text: str, sites: Mapping[int, Sequence[str]]) -> str:
    """The source of a module with its schema lines renewed.

    Args:
        text: the source.
        sites: the lines on which `kernel` is called, each with the schemas of the overloads that it registers.

    Raises:
        ValueError: there is no statement on one of the lines.
    """
    body = ast.parse(text).body
    above: dict[int, list[str]] = {}
    for line in sorted(sites):
        first = next((_first_line(s) for s in body if _first_line(s) <= line <= (s.end_lineno or line)), None)
        if first is None:
            raise ValueError(f"no statement on line {line}: the file has changed since it was imported")
        above.setdefault(first, []).extend(sites[line])
    old = _generated(text)
    result: list[str] = []
    for number, source in enumerate(text.splitlines(), 1):
        result += schema_lines(above.get(number, ()))
        if number not in old:
            result.append(source)
    return "".join(line + "\n" for line in result)


def _sites() -> dict[Path, dict[int, list[str]]]:
    """For each file and line, the schemas of the overloads whose kernels are registered there."""
    files: dict[Path, dict[int, list[str]]] = {}
    for overload, entry in (registry.KERNELS | registry.ABSENT["kernel"]).items():
        if overload in FIRST:
            file, _, line = entry.where.rpartition(":")
            files.setdefault(Path(file).resolve(), {}).setdefault(int(line), []).append(FIRST[overload].schema)
    return files


def annotated(package: Path = ROOT / "jaten_ops") -> dict[Path, str]:
    """The correct source of each module that has, or should have, schema lines."""
    sites = _sites()
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    return {
        path: annotate(text, sites.get(path, {}))
        for path, text in sources.items()
        if path in sites or re.search(rf"^{_FIRST.pattern}", text, re.MULTILINE)
    }
