"""A rule of names: a public class, type or function has a name that no other module has for one of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .architecture import Module

# The functions with these decorators implement an operator, whose name they have; one operator has one of each.
IMPLEMENTATIONS = ("fake", "gradient", "handler", "kernel")

_METHODS = (
    "cpu.conv_direct", "cpu.conv_eigen", "cpu.conv_grouped", "cpu.conv_matrix", "cpu.conv_onednn",
    "cpu.conv_patches", "cpu.conv_rows", "cpu.conv_space_to_depth", "cpu.conv_taps", "cpu.conv_volumes",
    "cpu.conv_winograd", "kernel_base.conv_parts", "kernels.convolution",
)  # fmt: skip

# The names that several modules have, and why. The table may only shrink.
SHARED_NAMES: dict[str, tuple[tuple[str, ...], str]] = {
    "TorchModule": (("equinox", "nnx"), "a torch module as a module of each library"),
    "compute": (
        ("cpu.conv_choice", "cpu.conv_primitive", "kernel_base.conv_parts"),
        "one function of a `ConvCall` and two operands: by the best method, as one primitive, and by XLA",
    ),
    "forward": (
        _METHODS,
        "a convolution, by each module's method; `conv_choice` takes one of the modules",
    ),
    "input_gradient": (_METHODS, "its gradient by the input, likewise"),
    "weight_gradient": (_METHODS, "its gradient by the weight, likewise"),
}


def _kind(node: ast.stmt) -> str:
    """The decorator that says what of an operator a function implements; empty for any other definition."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    calls = (ast.unparse(d.func).rpartition(".")[2] for d in decorators if isinstance(d, ast.Call))
    return next((name for name in calls if name in IMPLEMENTATIONS), "")


def defined_names(modules: list[Module]) -> dict[str, dict[str, set[str]]]:
    """The public names that modules define at their top, with the modules of each, by `_kind`."""
    found: dict[str, dict[str, set[str]]] = {}
    for module in modules:
        for node in module.tree.body:
            name = _alias(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            if name and name[0] != "_":
                found.setdefault(name, {}).setdefault(_kind(node), set()).add(module.inner)
    return found


def _alias(node: ast.stmt) -> str:
    """The name of a type, written as that of a class, to which a statement assigns; empty if it does not."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return ""
    name, is_variable = node.targets[0].id, ast.unparse(node.value).startswith("TypeVar(")
    return "" if is_variable or name.isupper() or not name[0].isupper() else name


def shared_names(modules: list[Module]) -> Iterator[str]:
    """A name is defined by one module, or by those with an operator's kernel, fake, gradient and handler."""
    paths = {module.inner: module.path for module in modules}
    for name, kinds in defined_names(modules).items():
        holders = set[str]().union(*kinds.values())
        alone = all(len(of_kind) == 1 for of_kind in kinds.values()) and "" not in kinds
        allowed, _ = SHARED_NAMES.get(name, ((), ""))
        if len(holders) > 1 and not alone and not holders <= set(allowed):
            yield f"{name} is defined by several modules: {', '.join(sorted(paths[h] for h in holders))}"
