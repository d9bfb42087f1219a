"""The rules of the house, as checks of a source tree: what may import what, and which module alone may do a thing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "jaten_ops"

# The folders that hold the package, and the dotted name of each.
FOLDERS = {"jaten_ops": "jaten_ops", "meta": "jaten_ops.meta", "autograd": "jaten_ops.autograd"}

# Low to high. Imports only go down; those of one line do not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "patches"),
    ("schema", "processor", "libraries"),
    (
        "x64",
        "unwritten",
        "tracing",
        "progress",
        "allocator",
        "disk",
        "options",
        "host",
        "foreign",
        "streams",
        "jitted",
        "watching",
    ),
    ("engine", "parameters", "random"),
    ("registry", "bridge", "device", "lazy", "aliasing"),
    ("attributes",),
    ("kernels", "meta", "autograd", "carrier", "overlap", "memory", "batching", "view_ops", "fingerprint"),
    ("subclasses", "variants", "storage", "executables", "ordering", "kernel_cache", "generators"),
    ("defaults", "results", "starts"),
    ("execute", "composite", "tensor", "autocast"),
    ("op_kernel", "recording", "scripting", "uninitialized"),
    ("library", "in_place"),
    ("dispatch", "custom"),
    ("higher_order",),
    ("attention", "recurrent", "backend", "collectives"),
    ("device_ops", "torch_functions", "step", "inductor"),
    ("interop",),
    ("dispatcher",),
    ("__init__",),
)

# What a unit never imports, and why.
FORBIDDEN: dict[str, tuple[tuple[str, ...], str]] = {
    "errors": (("torch", "jax", "jaxlib", "numpy"), "errors import nothing"),
    "schema": (("jax", "jaxlib"), "the schema is torch's"),
    "kernels": (("torch",), "kernels are JAX only"),
    "meta": (("jax", "jaxlib"), "fakes are torch only"),
    "autograd": (("jax", "jaxlib"), "gradients are written in torch operators"),
}

# A name that only some units may mention: tensor has the methods of the dlpack protocol, dispatcher
# and autocast register what the device does below and above autograd, once.
RESERVED: dict[str, tuple[str, ...]] = {
    "dlpack": ("bridge", "tensor"),
    "torch.library": ("library", "dispatcher", "autocast"),
}

# What a unit may assign attributes to although it is torch's: the operators are jaten's own, and the flag that says
# that torch compiles is set for the length of a block.
OWN: dict[str, tuple[str, ...]] = {
    "lazy": ("torch.ops.jaten",),
    "step": ("torch.compiler",),
    "tracing": ("torch.compiler",),
}


@dataclass(frozen=True)
class Module:
    """A parsed source file.

    Attributes:
        name: its dotted name, as in "jaten_ops.kernels.matmul"; a package's ends in ".__init__".
        path: for messages.
    """

    name: str
    path: str
    tree: ast.Module

    @property
    def unit(self) -> str:
        """The module or package right below jaten_ops: what LAYERS is about."""
        return self.name.split(".")[1]

    @property
    def package(self) -> list[str]:
        return self.name.split(".")[:-1]


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
            name = ".".join([dotted, *inside.with_suffix("").parts])
            modules.append(Module(name, str(path.relative_to(root)), ast.parse(path.read_text(encoding="utf-8"))))
    return modules


def imports(module: Module) -> Iterator[Import]:
    """Every import of a module, relative ones resolved."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = module.package[: len(module.package) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                yield Import(source, alias.name, node.lineno)


def _unit_of(found: Import, units: set[str]) -> str | None:
    """The unit of jaten_ops that an import is of; None for another package."""
    top, *rest = found.module.split(".")
    if top != PACKAGE:
        return None
    if rest:
        return rest[0]
    return found.name if found.name in units else "__init__"


def layering(modules: list[Module]) -> Iterator[str]:
    """Imports only go down, and every unit has a layer."""
    level = {unit: i for i, layer in enumerate(LAYERS) for unit in layer}
    units = {module.unit for module in modules}
    for module in modules:
        if module.unit not in level:
            yield f"{module.path}: {module.unit} has no layer"
            continue
        for found in imports(module):
            target = _unit_of(found, units)
            if target is None or target == module.unit:
                continue
            if level.get(target, len(LAYERS)) >= level[module.unit]:
                yield f"{module.path}:{found.line}: {module.unit} may not import {target}"


def hidden_imports(modules: list[Module]) -> Iterator[str]:
    """No import inside a function body, by statement or by call."""
    for module in modules:
        functions = [n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {id(n): n for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)}
        for node in inside.values():
            yield f"{module.path}:{node.lineno}: import inside a function"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                "__import__",
                "import_module",
            ):
                yield f"{module.path}:{node.lineno}: import by a call"


def forbidden_imports(modules: list[Module]) -> Iterator[str]:
    """Kernels never import torch, meta and autograd never import JAX, errors import nothing."""
    for module in modules:
        banned, why = FORBIDDEN.get(module.unit, ((), ""))
        for found in imports(module):
            if found.module.partition(".")[0] in banned:
                yield f"{module.path}:{found.line}: imports {found.module}: {why}"


def _mentioned(module: Module) -> Iterator[tuple[str, int]]:
    """The dotted names that a module's code mentions, docstrings and comments aside."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute | ast.Name):
            yield ast.unparse(node), node.lineno
    for found in imports(module):
        yield f"{found.module}.{found.name}", found.line


def reserved_names(modules: list[Module]) -> Iterator[str]:
    """Only the bridge touches dlpack, only the joint registers operators."""
    for module in modules:
        for reserved, owners in RESERVED.items():
            if module.unit not in owners:
                lines = {line for name, line in _mentioned(module) if reserved in name}
                for line in sorted(lines):
                    yield f"{module.path}:{line}: {reserved} belongs to {', '.join(owners)}"


def _written(node: ast.AST) -> Iterator[ast.expr]:
    """The objects to whose attributes a statement assigns."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (t.value for t in targets if isinstance(t, ast.Attribute))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
        yield node.args[0]


def foreign_writes(modules: list[Module]) -> Iterator[str]:
    """Only the ledger assigns to attributes of torch's and JAX's modules and classes, as far as their names tell."""
    for module in modules:
        theirs = {
            (found.name or found.module).partition(".")[0] for found in imports(module)
            if found.module.partition(".")[0] in ("torch", "jax", "jaxlib")
        }  # fmt: skip
        for node in ast.walk(module.tree):
            for owner in _written(node):
                text = ast.unparse(owner)
                is_theirs = text.partition(".")[0] in theirs and text not in OWN.get(module.unit, ())
                if is_theirs and module.unit != "patches":
                    line = getattr(node, "lineno", 0)
                    yield f"{module.path}:{line}: assigns to {text}: use hooks.ledger.replace, with a row for it"


RULES: tuple[Callable[[list[Module]], Iterator[str]], ...] = (
    layering,
    hidden_imports,
    forbidden_imports,
    reserved_names,
    foreign_writes,
)
