"""`python -m tools.patches [--check]`: writes docs/patches.md, a page of what importing jaten changes."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from jaten_ops.hooks.ledger import Patch
from jaten_ops.hooks.patches import FILLED, PATCHES, REGISTERED, SHADOWED
from jaten_ops.hooks.private_names import ATTRIBUTES, GROUPS, NAMES

from . import private_names

PAGE = private_names.ROOT / "docs" / "patches.md"

_HEAD = """# What importing jaten changes of torch and JAX

<!-- Made by `python -m tools.patches` from jaten_ops/hooks/patches.py and private_names.py; do not edit. -->

`import jaten_ops` replaces the attributes in this table, in one call of `jaten_ops.hooks.install()`. The guard is
checked first: if the installed torch or JAX lacks the attribute, or it takes other parameters, it is left alone. The
import goes on, a line of the log says that the feature is off, and its use on the device `jax` raises
`UnsupportedVersionError`, which names the attribute. Where the last column has a text, there is no such error, but what
the text says. A test compares the table with snapshots of both libraries before and after the import.
"""
_REGISTERED = """
## What torch's and JAX's own ways to register things change

These are not patches: the functions in the second column change these attributes, dictionaries and lists.
"""
_SHADOWED = """
## While a step is traced

While `compile_step` traces a step, these names hide the built-in functions in one module of torch.
"""
_PRIVATE = """
## Private names that are called

These are called and not changed, but a later torch or JAX may move them. A test finds them in the source and compares
them with this table; another test names those that the installed versions lack.

XLA's custom call `__onednn$convolution`, which `jaten_ops/xla/onednn.py` writes into programs, has no name in Python.
Before it is used one is compiled and compared with XLA's convolution; `tests/xla/test_onednn.py` fails if it is gone.
"""
_ATTRIBUTES = """
Private attributes of their objects that are read:
"""
_WHEN = {
    "import": "",
    "Dynamo": ", once Dynamo is loaded",
    "first compile": ", at the first compile",
    "first random DTensor": ", at the first random operator on a DTensor",
}


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head.split(', '))} |"
    yield "|" + " --- |" * len(head.split(", "))
    for row in rows:
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name.replace(':', '.')}`" for name in names)


def _guard(row: Patch) -> str:
    if row.adds_to is not None:
        return f"is a {row.adds_to.__name__}, and is added to"
    takes = "is there" if row.takes is None else f"takes ({row.takes.replace(' ', ', ')})"
    return takes + _WHEN[row.when] + (f", from torch {row.since} on" if row.since else "")


def _patches() -> Iterator[tuple[str, ...]]:
    """A row for each replacement and reason: several attributes may share one."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for what, row in PATCHES.items():
        test = f"[{row.test}](../tests/{row.test}.py)"
        groups[row.why, _guard(row), test, row.loss].append(what)
    for (why, guard, test, loss), whats in groups.items():
        yield _code(whats), why, guard, test, loss


def _by_reason(table: dict[str, str]) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for what, why in table.items():
        groups[why].append(what)
    yield from ((_code(whats), why) for why, whats in groups.items())


def _rooms(files: Iterable[str]) -> str:
    """The folders of files below jaten_ops: files are renamed more often, and `private_names.used` has them."""
    return ", ".join(sorted({file.removesuffix(".py").partition("/")[0] for file in files}))


def _names() -> Iterator[tuple[str, ...]]:
    files: dict[str, set[str]] = defaultdict(set)
    for name, where in private_names.used().items():
        files[private_names.row_of(name, NAMES) or ""] |= where
    for why, names in GROUPS.items():
        yield why, _code(names), _rooms(file for name in names for file in files[name])


def _attributes() -> Iterator[tuple[str, ...]]:
    files = private_names.attributes()
    for name, what in ATTRIBUTES.items():
        yield f"`{name}`", what, _rooms(files.get(name, ()))


def render() -> str:
    """The page."""
    lines = [_HEAD.rstrip()]
    lines += _table("What is replaced, Why, Guard, Test, If it is off", _patches())
    lines += [_REGISTERED.strip(), *_table("What, By", _by_reason(REGISTERED | FILLED))]
    lines += [_SHADOWED.strip(), *_table("What, Why", _by_reason(SHADOWED))]
    lines += [_PRIVATE.strip(), *_table("Why, Names, Used in", _names())]
    lines += [_ATTRIBUTES.strip(), *_table("Attribute, What it is, Used in", _attributes())]
    return "\n".join(lines).rstrip() + "\n"


def main(page: Path = PAGE, *, check: bool = False) -> int:
    """Writes the page, or compares it; 1 if it is to be compared and is another."""
    text = render()
    if check:
        is_same = page.read_text(encoding="utf-8") == text
        print(f"{page.name} is up to date." if is_same else f"{page.name} is stale. Fix: python -m tools.patches")
        return int(not is_same)
    page.write_text(text, encoding="utf-8")
    print(f"{page.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
