"""The rules of the house, as checks of a source tree: what may import what, and which module alone may do a thing."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .rooms import ROOMS

PACKAGE = "jaten_ops"

# The folders that hold the package, and the dotted name of each.
FOLDERS = {"jaten_ops": "jaten_ops", "meta": "jaten_ops.meta", "autograd": "jaten_ops.autograd"}


def layers() -> Iterator[list[str]]:
    """The names of the modules of each layer, without the package's."""
    for room, layers in ROOMS.items():
        if not layers:
            yield [room]
        for layer in layers:
            yield [f"{room}.{name}" for name in layer.split()]


LEVELS: dict[str, int] = {name: level for level, layer in enumerate(layers()) for name in layer}

# What the modules of a room never import, and why.
FORBIDDEN: dict[str, tuple[tuple[str, ...], str]] = {
    "errors": (("torch", "jax", "jaxlib", "numpy"), "errors import nothing"),
    "schema": (("jax", "jaxlib"), "the schema is torch's"),
    "kernel_base": (("torch",), "kernels are JAX only"),
    "kernels": (("torch",), "kernels are JAX only"),
    "cpu": (("torch",), "kernels are JAX only"),
    "meta": (("jax", "jaxlib"), "fakes are torch only"),
    "autograd": (("jax", "jaxlib"), "gradients are written in torch operators"),
}

# A name that only some modules may mention: tensor has the methods of the dlpack protocol and hooks the function of
# torch that asks for one, register and autocast tell torch what the device does below and above autograd, once.
RESERVED: dict[str, tuple[str, ...]] = {
    "dlpack": ("arrays.bridge", "arrays.gpu_memory", "tensor.tensor", "hooks.constructors", "hooks.patches"),
    "torch.library": ("ops.define", "dispatch.redirects", "dispatch.register", "device.autocast"),
}

# Attributes of torch that a module may assign to: the operators are jaten's own, the flag that says that torch compiles
# is set for the length of a block, and a function that a user overrides for as long as the override is active.
OWN: dict[str, tuple[str, ...]] = {
    "ops.namespace": ("torch.ops.jaten",),
    "dispatch.redirects": ("torch.nn.functional",),
    "step.trace": ("torch.compiler",),
    "tracing": ("torch.compiler",),
}

# The most lines of a file and of a function, and the files and functions that have more: as many, or fewer. The table
# may only shrink.
MOST_LINES = {"file": 450, "function": 60}
LONGER: dict[str, int] = {}

# The folders whose files have lengths, beside those that hold the package.
OTHERS = ("benchmarks", "tests", "tools")

# The names that several modules and packages of jaten_ops may have, and why.
SHARED_STEMS: dict[str, tuple[tuple[str, ...], str]] = {
    "attention": (("kernels", "meta", "autograd"), "an operator's kernel, its fake and its gradient"),
    "graph_cache": (("backend", "hooks"), "a module of the backend, and the patches that it needs"),
    "higher_order": (("dispatch", "hooks"), "handlers of operators on functions, and the patches that they need"),
    "normalization": (("kernels", "meta"), "an operator's kernel and its fake"),
    "tensor": (("", "tensor"), "the package is named for the class, which its module has"),
}


@dataclass(frozen=True)
class Module:
    """A parsed source file.

    Attributes:
        name: its dotted name, as in "jaten_ops.kernels.matmul"; a package's ends in ".__init__".
        path: for messages.
        lines: how many it has.
    """

    name: str
    path: str
    tree: ast.Module
    lines: int

    @property
    def inner(self) -> str:
        """The name without the package's: what ROOMS is about."""
        return self.name.partition(".")[2]

    @property
    def room(self) -> str:
        """The module or package right below jaten_ops."""
        return self.name.split(".")[1]

    @property
    def package(self) -> list[str]:
        return self.name.split(".")[:-1]

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))


@dataclass(frozen=True)
class Import:
    """One imported module, by its full dotted name, and the name taken from it, if any."""

    module: str
    name: str
    line: int


def read(root: Path) -> list[Module]:
    """The modules of the source tree at `root`; links are not followed."""
    modules = []
    for folder, dotted in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            inside = path.relative_to(root / folder)
            if any((root / folder / parent).is_symlink() for parent in inside.parents):
                continue
            modules.append(_parsed(path, root, [dotted, *inside.with_suffix("").parts]))
    return modules


def _parsed(path: Path, root: Path, name: list[str]) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(".".join(name), str(path.relative_to(root)), ast.parse(text), text.count("\n"))


def read_others(root: Path) -> list[Module]:
    """The modules beside the package: tests, tools, benchmarks."""
    paths = [path for folder in OTHERS for path in sorted((root / folder).rglob("*.py"))]
    return [_parsed(path, root, list(path.relative_to(root).with_suffix("").parts)) for path in paths]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements within a tree: a walk that leaves out the many expressions."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, None)
            left.extend(inner if isinstance(inner, list) else ())


def imports(module: Module) -> Iterator[Import]:
    """Every import of a module, relative ones resolved."""
    for node in statements(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = module.package[: len(module.package) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                yield Import(source, alias.name, node.lineno)


def imported(found: Import, names: set[str]) -> str | None:
    """The module of jaten_ops that is imported, without the package's name; None for another package's."""
    if found.module.partition(".")[0] != PACKAGE:
        return None
    full = f"{found.module}.{found.name}".rstrip(".")
    candidates = (full, f"{full}.__init__", found.module, f"{found.module}.__init__")
    return next((c for c in candidates if c in names), full).partition(".")[2]


def layering(modules: list[Module]) -> Iterator[str]:
    """Imports only go down, and every module has a layer."""
    names = {module.name for module in modules}
    for module in modules:
        level = LEVELS.get(module.inner)
        if level is None:
            yield f"{module.path}: {module.inner} has no layer"
            continue
        for found in imports(module):
            target = imported(found, names)
            if target is None or target == module.inner:
                continue
            if LEVELS.get(target, len(LEVELS)) >= level:
                yield f"{module.path}:{found.line}: {module.inner} may not import {target}"


def hidden_imports(modules: list[Module]) -> Iterator[str]:
    """No import inside a function body, by statement or by call, but of names that are imported when they are used."""
    for module in (m for m in modules if m.inner != "__init__"):  # PEP 562
        functions = [n for n in statements(module.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {id(n): n for f in functions for n in statements(f) if isinstance(n, ast.Import | ast.ImportFrom)}
        for found in inside.values():
            yield f"{module.path}:{found.lineno}: import inside a function"
        for node in module.nodes:
            if isinstance(node, ast.Call) and _last_name(node.func) in ("__import__", "import_module"):
                yield f"{module.path}:{node.lineno}: import by a call"


def forbidden_imports(modules: list[Module]) -> Iterator[str]:
    """Kernels never import torch, meta and autograd never import JAX, errors import nothing."""
    for module in modules:
        banned, why = FORBIDDEN.get(module.room, ((), ""))
        for found in imports(module):
            if found.module.partition(".")[0] in banned:
                yield f"{module.path}:{found.line}: imports {found.module}: {why}"


def _last_name(node: ast.expr) -> str:
    """The name, or the attribute, that an expression is; empty for others."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _mentions(module: Module, reserved: str) -> Iterator[int]:
    """The lines on which a module's code mentions a dotted name, docstrings and comments aside."""
    last = reserved.rpartition(".")[2]
    for node in module.nodes:
        if isinstance(node, ast.Attribute | ast.Name) and last in _last_name(node) and reserved in ast.unparse(node):
            yield node.lineno
    for found in imports(module):
        if reserved in f"{found.module}.{found.name}":
            yield found.line


def reserved_names(modules: list[Module]) -> Iterator[str]:
    """Only the bridge touches dlpack, only the joint registers operators."""
    for module in modules:
        for reserved, owners in RESERVED.items():
            if module.inner not in owners:
                for line in sorted(set(_mentions(module, reserved))):
                    yield f"{module.path}:{line}: {reserved} belongs to {', '.join(owners)}"


def _written(node: ast.AST) -> Iterator[ast.expr]:
    """The objects to whose attributes a statement assigns."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (t.value for t in targets if isinstance(t, ast.Attribute))
    if isinstance(node, ast.Call) and _last_name(node.func) == "setattr":
        yield node.args[0]


def foreign_writes(modules: list[Module]) -> Iterator[str]:
    """Only hooks assign to attributes of torch's and JAX's modules and classes, as far as their names tell."""
    for module in modules:
        theirs = {
            (found.name or found.module).partition(".")[0] for found in imports(module)
            if found.module.partition(".")[0] in ("torch", "jax", "jaxlib")
        }  # fmt: skip
        for node in module.nodes:
            for owner in _written(node):
                text = ast.unparse(owner)
                is_theirs = text.partition(".")[0] in theirs and text not in OWN.get(module.inner, ())
                if is_theirs and module.inner != "hooks.ledger":
                    line = getattr(node, "lineno", 0)
                    yield f"{module.path}:{line}: assigns to {text}: use a row of hooks.patches"


def _lengths(module: Module) -> Iterator[tuple[str, str, int]]:
    """The name, the kind and the lines of a module and of each function in it."""
    yield module.path, "file", module.lines
    for node in statements(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module.path}:{node.name}", "function", (node.end_lineno or node.lineno) - node.lineno + 1


def lengths(modules: list[Module]) -> Iterator[str]:
    """No file and no function has more lines than MOST_LINES, or than LONGER has of it."""
    for module in modules:
        for name, kind, lines in _lengths(module):
            if lines > LONGER.get(name, MOST_LINES[kind]):
                yield f"{name}: a {kind} of {lines} lines: split it (the most is {LONGER.get(name, MOST_LINES[kind])})"


def settled_lengths(modules: list[Module]) -> Iterator[str]:
    """The names in LONGER that are gone, or no longer than others are: they leave the table."""
    long = {name for m in modules for name, kind, lines in _lengths(m) if lines > MOST_LINES[kind]}
    for name in LONGER.keys() - long:
        yield f"{name}: not too long any more: take it from LONGER"


def shared_stems(modules: list[Module]) -> Iterator[str]:
    """A stem is the name of one module or package, but for SHARED_STEMS."""
    places: dict[str, dict[str, str]] = {}
    for module in modules:
        *folders, stem = module.inner.removesuffix(".__init__").split(".")
        if stem != "__init__":
            places.setdefault(stem, {})[".".join(folders)] = module.path
    for stem, found in places.items():
        allowed, _ = SHARED_STEMS.get(stem, ((), ""))
        if len(found) > 1 and not found.keys() <= set(allowed):
            yield f"{stem} is the name of several modules: {', '.join(found.values())}"


RULES: tuple[Callable[[list[Module]], Iterator[str]], ...] = (
    layering,
    hidden_imports,
    forbidden_imports,
    reserved_names,
    foreign_writes,
    lengths,
    shared_stems,
)
