"""The private names of torch and JAX that the package uses, found in its source.

A name is private if a part of it begins with an underscore, as in "torch._C.DispatchKey" and
"torch.storage._new_dtypes". Operators, as "torch.ops.aten._to_copy", are not: their schemas are public.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("jaten_ops", "meta", "autograd")
_LIBRARIES = ("torch", "jax", "jaxlib", "functorch")


def _is_private_part(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def _is_private(name: str) -> bool:
    return not name.startswith("torch.ops.") and any(map(_is_private_part, name.split(".")))


def _is_theirs(name: str | None) -> bool:
    return name is not None and name.partition(".")[0] in _LIBRARIES


class _Names(ast.NodeVisitor):
    """The full dotted names of torch and JAX in one module: imports, attributes and `getattr` of constants.

    Attributes:
        found: the names.
        unknown: private attributes of objects that no name tells the class of, as in `op._schema`.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.found: set[str] = set()
        self.unknown: set[str] = set()
        self._known: dict[str, str] = {}
        self._of_others: set[str] = set()
        for node in ast.walk(tree):
            self._learn(node)
        self.visit(tree)

    def _learn(self, node: ast.AST) -> None:
        """Takes note of what a name stands for: an import, or another name for an attribute."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if _is_theirs(top):
                    self.found.add(alias.name)
                    self._known[alias.asname or top] = alias.name if alias.asname else top
                else:
                    self._of_others.add(alias.asname or top)
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_theirs(node.module):
            for alias in node.names:
                self.found.add(f"{node.module}.{alias.name}")
                self._known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.ImportFrom):
            self._of_others |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = self._resolved(node.value)
            if isinstance(target, ast.Name) and name is not None:
                self._known.setdefault(target.id, name)

    def _resolved(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolved(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._resolved(node)
        if name is not None:
            self.found.add(name)
            return
        is_others = isinstance(node.value, ast.Name) and node.value.id in self._of_others
        if _is_private_part(node.attr) and not is_others:
            self.unknown.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            owner, name = self._resolved(node.args[0]), node.args[1]
            if owner is not None and isinstance(name, ast.Constant) and isinstance(name.value, str):
                self.found.add(f"{owner}.{name.value}")
        self.generic_visit(node)


def _sources(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """The modules of the package, as "tensor/storage.py"; links are not followed."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            inside = path.relative_to(root)
            if not any((root / parent).is_symlink() for parent in inside.parents):
                yield inside.as_posix().removeprefix("jaten_ops/"), ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _names(root: Path) -> list[tuple[str, ast.Module, _Names]]:
    return [(file, tree, _Names(tree)) for file, tree in _sources(root)]


@functools.cache
def used(root: Path = ROOT) -> dict[str, set[str]]:
    """The private names of torch and JAX in the package, in alphabetical order, each with the files that use it."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, _, names in _names(root):
        for name in filter(_is_private, names.found):
            found[name].add(file)
    return dict(sorted(found.items()))


def _members(tree: ast.Module) -> Iterator[str]:
    """The names of members of classes, and of attributes that are assigned to, in one module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef):
                yield member.name
            elif isinstance(member, ast.Assign | ast.AnnAssign):
                yield from (name.id for name in ast.walk(member) if isinstance(name, ast.Name))


_OF_NAMEDTUPLES = {"_asdict", "_fields", "_make", "_replace"}


@functools.cache
def attributes(root: Path = ROOT) -> dict[str, set[str]]:
    """The private attributes of objects that no class of the package has, sorted, each with the files that use it.

    Operators are left out, as in `aten._to_copy`: a private attribute that torch has as an operator is taken for one.
    """
    own = {name for _, tree, _ in _names(root) for name in _members(tree)} | _OF_NAMEDTUPLES
    operators = {name.partition("::")[2].partition(".")[0] for name in _operators()}
    found: dict[str, set[str]] = defaultdict(set)
    for file, _, names in _names(root):
        for name in names.unknown - own - operators:
            found[name].add(file)
    return dict(sorted(found.items()))


def _operators() -> list[str]:
    torch = importlib.import_module("torch")
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return names


def row_of(name: str, rows: Iterable[str]) -> str | None:
    """The row of a table that a name belongs to: the longest that is the name, or a part of it from the left."""
    return max((row for row in rows if f"{name}.".startswith(f"{row}.")), key=len, default=None)


def missing(name: str) -> str:
    """The part of a dotted name that the installed torch or JAX lacks, as "torch._C._gone"; empty if it has all."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], 2):
        prefix = ".".join(parts[:at])
        if not hasattr(found, part):
            try:
                found = importlib.import_module(prefix)  # torch.optim deletes the name of its module `optimizer`
            except ImportError:
                return prefix
        else:
            found = getattr(found, part)
    return ""
