"""A rule of docstrings: they start with what a thing is or does."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from .architecture import statements

# A docstring starts with what a thing is or does ("True if ..." for a bool), not with a clause about it.
OPENINGS = frozenset({"How", "Of", "That", "Those", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"})


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings that stand as statements: docstrings, also of variables."""
    for node in statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def indirect_docstrings(root: Path, folders: Iterable[str]) -> Iterator[str]:
    """The docstrings in folders that start with a word of `OPENINGS`; links are not followed."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if any(parent.is_symlink() for parent in path.parents):
                continue
            for text in _docstrings(ast.parse(path.read_text(encoding="utf-8"))):
                first = (str(text.value).split() or [""])[0]
                if first in OPENINGS:
                    yield f"{path.relative_to(root)}:{text.lineno}: starts with {first!r}"
