"""The test module that covers each overload."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .rows import ROOT

TESTS = ROOT / "tests"
REACHED = TESTS / "harness" / "reached.txt"
SAMPLES = TESTS / "test_ops.py"
"""The tests that run PyTorch's own samples, which reach the overloads of `REACHED`."""

# test modules that name overloads as examples, in messages or tables
_OTHERS = ("test_architecture", "test_codegen", "test_errors", "test_import")

# names that test modules give `torch.ops.aten` and `torch.ops.jaten`
_NAMESPACES = ("aten", "jaten", "OPS", "ops")


def named_overloads(tree: ast.AST) -> Iterator[str]:
    """The overloads that the source of a test may name: `OPS.add.Tensor`, "add.Tensor", "aten::relu"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            namespace, _, name = node.value.rpartition("::")
            if namespace in ("aten", "jaten") or (not namespace and ("_" in name or "." in name)):
                yield name
        elif isinstance(node, ast.Attribute):
            *owners, name = ast.unparse(node).split(".")
            if owners[-1:] and owners[-1] in _NAMESPACES:
                yield name
            elif owners[-2:-1] and owners[-2] in _NAMESPACES:
                yield owners[-1] if name == "default" else f"{owners[-1]}.{name}"


@cache
def _namers() -> dict[str, list[Path]]:
    """The test modules that name each overload."""
    modules: dict[str, list[Path]] = {}
    for path in sorted(p for p in TESTS.rglob("test_*.py") if p.stem not in _OTHERS):
        for name in set(named_overloads(ast.parse(path.read_text(encoding="utf-8")))):
            modules.setdefault(name, []).append(path)
    return modules


@cache
def _reached() -> frozenset[str]:
    return frozenset(REACHED.read_text(encoding="utf-8").split("\n")) if REACHED.exists() else frozenset()


def test_of(overload: str, kernel: Path) -> Path | None:
    """The test module of an overload, None if there is none.

    It is the one that runs PyTorch's samples if they reach the overload, else one that names it: that of the kernel's
    module, if it does.
    """
    if overload in _reached():
        return SAMPLES
    namers = _namers().get(overload, [])
    return next((path for path in namers if path.stem == f"test_{kernel.stem}"), namers[0] if namers else None)
