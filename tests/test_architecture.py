"""The rules of the house hold, and each of them can fail."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import keyword
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import jaten_ops
from jaten_ops import errors, registry
from jaten_ops.schema import FIRST, STORAGE_ARGUMENTS

from . import architecture, docstrings, shared_names

ROOT = Path(__file__).resolve().parents[1]

RULES = (*architecture.RULES, shared_names.shared_names)

PUBLIC = {
    *("JatenError", "Tensor", "as_jax", "call_jax", "compile_step", "fake", "from_jax", "gradient", "kernel", "op"),
    *("Override", "checkpoint_policy", "explain", "export", "override", "scan_layers", "to_jax"),
    *(n for n, value in vars(errors).items() if isinstance(value, type)),
}

# What a test file is about when it is not one module: the stem says so.
SUBJECTS = {
    "architecture": "the rules of the source tree",
    "installing": "wheels, source distributions and editable installs",
    "beyond_samples": "overloads that the samples of PyTorch do not reach",
    "examples": "the programs in examples/",
    "dynamic_shapes": "sizes and positions that change from call to call, under torch.compile",
    "extremal": "elementwise operators and reductions at the edges of their dtypes",
    "graphs": "what capture records, on plain tensors and on the device jax",
    "huggingface": "models of transformers as JAX functions",
    "import": "what importing jaten_ops leaves alone",
    "jax_programs": "control flow, checkpoints, ensembles and meshes in JAX programs from torch ones",
    "mixed_dtypes": "calls with tensors of several floating dtypes",
    "modules": "modules and optimizers on the device jax",
    "moving_modules": "module.to, and what torch.nn.utils makes of modules on the device jax",
    "programs_of_cpp": "operators of users that C++ looks up",
    "written_arguments": "operators of users that write to arguments",
    "nothing": "batches, sequences and sets of indices that are empty",
    "ops": "every operator",
    "pages": "the pages of the site, and the public names that it shows",
    "public_names": "the docstrings of jaten_ops.__all__",
    "ranks": "DDP, FSDP and DTensors of torch, one process a device",
    "readme": "the code in README.md",
    "warm_start": "a second process, which finds on the disk what the first has compiled",
    "transformed": "transforms of direct calls, nested",
    "threads": "threads that share compiled functions, operators and tensors",
    "same_as_cpu": "single calls on the device jax beside the CPU",
    "training_scripts": "tests/programs/scripts.py and models of transformers, trained eagerly on the device jax",
    "workers": "other processes than the one that has the device jax",
}


# The folders whose design needs arguing.
READMES = ("arrays", "backend", "dispatch", "step", "torch_functions")


@pytest.fixture(scope="module")
def modules() -> list[architecture.Module]:
    return architecture.read(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Callable, modules: list[architecture.Module]) -> None:
    assert list(rule(modules)) == []


def test_exceptions_for_length_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = _write(tmp_path, GOOD | {"jaten_ops/ops/define.py": "x = 1\n" * 500})
    monkeypatch.setattr(architecture, "LONGER", {"jaten_ops/ops/define.py": 500, "jaten_ops/errors.py": 500})
    assert list(architecture.lengths(tree)) == []
    (settled,) = architecture.settled_lengths(tree)
    assert settled.startswith("jaten_ops/errors.py: ")


def test_others_are_as_short(modules: list[architecture.Module]) -> None:
    others = architecture.read_others(ROOT)
    assert {"tests.harness.checks", "tools.codegen.__main__", "benchmarks.eager"} <= {m.name for m in others}
    assert list(architecture.lengths(others)) == []
    assert list(architecture.settled_lengths([*modules, *others])) == []


def _rooms() -> list[str]:
    """The folders of the package, from the lowest room to the highest; a room in two places counts where it ends."""
    names = [room.partition(".")[0] for room, layers in architecture.ROOMS.items() if layers]
    places = {"meta": "meta/", "autograd": "autograd/"}
    return [places.get(name, f"jaten_ops/{name}/") for name in names]


def test_contributing_names_the_rooms_in_order() -> None:
    rows = re.findall(r"^\| \[?`(\S+?/)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [row for row in rows if row not in ("tools/codegen/", "tests/")] == _rooms()


def test_packages_say_their_purpose(modules: list[architecture.Module]) -> None:
    for module in modules:
        if module.name.endswith(".__init__"):
            first, *_ = (ast.get_docstring(module.tree) or "").split("\n")
            assert first.endswith("."), module.path


@pytest.mark.parametrize("readme", ["CONTRIBUTING.md", *(f"jaten_ops/{room}/README.md" for room in READMES)])
def test_files_that_are_named_exist(readme: str) -> None:
    text = (ROOT / readme).read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", text) + re.findall(r"\]\(([\w/.]+)\)", text)
    assert paths
    places = ROOT, ROOT / "jaten_ops", (ROOT / readme).parent
    assert [p for p in paths if not any((place / p).exists() for place in places)] == []


def test_shared_stems_are_shared(modules: list[architecture.Module]) -> None:
    for stem, (folders, _) in architecture.SHARED_STEMS.items():
        names = {".".join(filter(None, (folder, stem))) for folder in folders}
        assert names <= {module.inner.removesuffix(".__init__") for module in modules}


def test_shared_names_are_shared(modules: list[architecture.Module]) -> None:
    found = shared_names.defined_names(modules)
    for name, (holders, _) in shared_names.SHARED_NAMES.items():
        assert set().union(*found[name].values()) == set(holders)


def test_all_modules_are_seen(modules: list[architecture.Module]) -> None:
    names = {module.name for module in modules}
    assert {
        "jaten_ops.__init__",
        "jaten_ops.kernels.matmul",
        "jaten_ops.meta.reuse",
        "jaten_ops.autograd.function",
    } <= names
    assert {module.inner for module in modules} == architecture.LEVELS.keys()
    assert len(architecture.LEVELS) == sum(len(layer) for layer in architecture.layers())


GOOD = {
    "jaten_ops/__init__.py": "from .ops.user_ops import op",
    "jaten_ops/errors.py": "class JatenError(Exception):\n    'dlpack and torch.library in a docstring'",
    "jaten_ops/registry/__init__.py": "import torch\nfrom ..errors import JatenError",
    "jaten_ops/arrays/bridge.py": "import torch, jax.dlpack\nfrom .. import errors",
    "jaten_ops/kernel_base/promotion.py": "import jax",
    "jaten_ops/kernels/matmul.py": "from ..registry import kernel\nfrom ..kernel_base import promotion\n"
    "@kernel('mm')\ndef mm(): ...",
    "jaten_ops/kernels/special.py": "import jax\ndef gamma(): ...\ndef _own(): ...",
    "jaten_ops/kernels/__init__.py": "from . import matmul",
    "jaten_ops/ops/define.py": "import torch\nfrom .. import kernels, registry\nlib = torch.library.Library",
    "jaten_ops/ops/user_ops.py": "from .define import op",
    "meta/reuse.py": "import torch\nfrom jaten_ops import registry\n@registry.fake('mm')\ndef mm(): ...",
    "autograd/function.py": "import torch\ndef _own(): ...",
}

# rule, file, its text, what the rule says of it
BAD = [
    ("layering", "registry/__init__.py", "from ..ops import define", "registry.__init__ may not import ops.define"),
    ("layering", "registry/__init__.py", "from jaten_ops.ops.define import op", "may not import ops.define"),
    ("layering", "registry/__init__.py", "import jaten_ops", "registry.__init__ may not import __init__"),
    ("layering", "registry/__init__.py", "from jaten_ops import op", "registry.__init__ may not import __init__"),
    ("layering", "registry/__init__.py", "from ..arrays import bridge", "may not import arrays.bridge"),
    ("layering", "kernel_base/promotion.py", "from .. import kernels", "may not import kernels.__init__"),
    ("layering", "kernels/matmul.py", "from . import special", "kernels.matmul may not import kernels.special"),
    ("layering", "ops/define.py", "from .user_ops import op", "ops.define may not import ops.user_ops"),
    (
        "layering",
        "meta/reuse.py",
        "from jaten_ops.autograd import function",
        "meta.reuse may not import autograd.function",
    ),
    ("layering", "misc.py", "", "misc has no layer"),
    ("layering", "ops/misc.py", "", "ops.misc has no layer"),
    ("hidden_imports", "ops/define.py", "def f():\n    from .. import registry", "import inside a function"),
    ("hidden_imports", "ops/define.py", "import importlib\nimportlib.import_module('x')", "import by a call"),
    ("forbidden_imports", "kernels/matmul.py", "from torch import nn", "kernels are JAX only"),
    ("forbidden_imports", "kernel_base/promotion.py", "import torch", "kernels are JAX only"),
    ("forbidden_imports", "cpu/conv_choice.py", "import torch", "kernels are JAX only"),
    ("forbidden_imports", "meta/reuse.py", "import jax.numpy as jnp", "fakes are torch only"),
    ("forbidden_imports", "autograd/function.py", "from jax import lax", "gradients are written in torch"),
    ("forbidden_imports", "errors.py", "import torch", "errors import nothing"),
    ("reserved_names", "ops/define.py", "import jax.dlpack", "dlpack belongs to arrays.bridge"),
    ("reserved_names", "ops/define.py", "from torch.utils import dlpack", "dlpack belongs to arrays.bridge"),
    ("reserved_names", "ops/define.py", "import torch\ntorch._C._to_dlpack(1)", "dlpack belongs to arrays.bridge"),
    ("reserved_names", "arrays/bridge.py", "from torch.library import Library", "torch.library belongs to ops.define"),
    ("reserved_names", "meta/reuse.py", "import torch\ntorch.library.impl('x')", "torch.library belongs to ops.define"),
    ("foreign_writes", "meta/reuse.py", "import torch\ntorch.nn.Module.to = None", "assigns to torch.nn.Module"),
    ("foreign_writes", "registry/__init__.py", "import jax\nsetattr(jax, 'jit', None)", "assigns to jax: use"),
    ("foreign_writes", "meta/reuse.py", "from torch.nn import Module\nModule.to = None", "assigns to Module"),
    ("lengths", "ops/define.py", "x = 1\n" * 451, "a file of 451 lines"),
    ("lengths", "ops/define.py", "def f():\n" + "    x = 1\n" * 60, "define.py:f: a function of 61 lines"),
    ("shared_stems", "ops/promotion.py", "", "promotion is the name of several modules"),
    ("shared_stems", "kernels/reuse.py", "", "reuse is the name of several modules"),
    ("shared_names", "ops/define.py", "class gamma: ...", "gamma is defined by several modules"),
    ("shared_names", "ops/define.py", "def mm(): ...", "mm is defined by several modules"),
    ("shared_names", "ops/define.py", "JatenError = int | str", "JatenError is defined by several modules"),
    ("shared_names", "kernels/special.py", "@kernel('mm.out')\ndef mm(): ...", "mm is defined by several modules"),
]


def _write(root: Path, files: dict[str, str]) -> list[architecture.Module]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return architecture.read(root)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_is_content_with_a_good_tree(rule: Callable, tmp_path: Path) -> None:
    assert list(rule(_write(tmp_path, GOOD))) == []
    assert rule.__name__ in {row[0] for row in BAD}


@pytest.mark.parametrize(("rule", "file", "text", "message"), BAD)
def test_rule_can_fail(rule: str, file: str, text: str, message: str, tmp_path: Path) -> None:
    file = file if file.startswith(("meta/", "autograd/")) else f"jaten_ops/{file}"
    (check,) = [r for r in RULES if r.__name__ == rule]
    found = list(check(_write(tmp_path, GOOD | {file: text})))
    assert len(found) == 1 and file in found[0] and message in found[0]


def test_docstrings_start_with_what_a_thing_is_or_does() -> None:
    folders = ("jaten_ops", "meta", "autograd", "tools", "tests", "benchmarks", "examples")
    assert list(docstrings.indirect_docstrings(ROOT, folders)) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('"""What it is."""', "What"),
        ('def f():\n    """Whether it holds."""', "Whether"),
        ('class C:\n    x = 1\n    """\n    Where it is."""', "Where"),
        ('def f():\n    """True if it holds: what else?"""\nx = \'What it is.\'', None),
    ],
)
def test_indirect_docstrings_are_found(text: str, word: str | None, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "module.py").write_text(text, encoding="utf-8")
    found = list(docstrings.indirect_docstrings(tmp_path, ["folder"]))
    assert [line.rpartition(" ")[2] for line in found] == ([repr(word)] if word else [])


@pytest.mark.parametrize("name", ["meta", "autograd"])
def test_mapped_packages_refuse_their_bare_names(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / name / "__init__.py")
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=f"jaten_ops.{name}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_public_names() -> None:
    assert set(jaten_ops.__all__) == PUBLIC
    assert all(hasattr(jaten_ops, name) for name in PUBLIC)
    body = ast.parse(Path(jaten_ops.__file__).read_text(encoding="utf-8")).body
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    assert functions == ["__getattr__", "__dir__"]  # for names that are imported when they are used
    kinds = ast.Expr | ast.Import | ast.ImportFrom | ast.Assign | ast.FunctionDef
    assert all(isinstance(node, kinds) for node in body)


def test_names_of_all_are_there(modules: list[architecture.Module]) -> None:
    for module in modules:
        lists = [n for n in module.tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
        for node in lists:
            names = ast.literal_eval(node.value)
            imported = importlib.import_module(module.name.removesuffix(".__init__"))
            assert [n for n in names if not hasattr(imported, n)] == [], module.path


def _is_written_out(fn: Callable) -> bool:
    """True if a kernel is a function of its own; members of a family are lambdas, or made by another function."""
    return inspect.isfunction(fn) and fn.__name__ != "<lambda>" and "<locals>" not in fn.__qualname__


def _misnamed(fn: Callable, overloads: list[str]) -> list[str]:
    """The parameters of a kernel that none of its overloads' schemas has at that position, or as a keyword.

    A name of the schema that is a Python keyword, or that of the PRNG key, has a trailing underscore.
    """
    schemas = [[a for a in FIRST[o].arguments if a.name not in STORAGE_ARGUMENTS] for o in overloads]
    keywords = {a.name for arguments in schemas for a in arguments if a.kwarg_only} | {"key"}
    found = []
    for at, (name, parameter) in enumerate(inspect.signature(fn).parameters.items()):
        names = {a.name for arguments in schemas for a in arguments[at : at + 1] if not a.kwarg_only}
        names |= {f"{n}_" for n in names if n == "key" or keyword.iskeyword(n)}
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name not in names | keywords:
            found.append(f"{fn.__name__}: {name} should be {' or '.join(sorted(names)) or 'absent'}")
    return found


def test_kernel_parameters_mirror_the_schema() -> None:
    """But for families: there a lambda, or a function that another one made, serves many schemas."""
    served: dict[Callable, list[str]] = {}
    for overload, entry in (registry.KERNELS | registry.ABSENT["kernel"]).items():
        if overload in FIRST and _is_written_out(entry.fn):
            served.setdefault(entry.fn, []).append(overload)
    wrong = [text for fn, overloads in served.items() for text in _misnamed(fn, overloads)]
    assert not wrong, "\n".join(wrong)


def test_misnamed_parameters_are_seen() -> None:
    def kernel(self, x, dtype=None, *, alpha=1, key=None):
        """As a kernel of add.Tensor, whose parameters are self, other and alpha."""

    assert _misnamed(kernel, ["add.Tensor"]) == [
        "kernel: x should be other",
        "kernel: dtype should be absent",
    ]


def _is_tested(path: Path) -> bool:
    """True if a test file has the stem of a module in the folder of the same name, or one of SUBJECTS."""
    stem, folder = path.stem.removeprefix("test_"), path.parent
    places = [ROOT / top / folder for top in ("jaten_ops", ".")]
    if folder == Path():
        places += [ROOT / top for top in ("tests", "tests/harness", "tests/programs")]
    found = any((place / f"{stem}.py").exists() or (place / stem / "__init__.py").exists() for place in places)
    return found or stem == folder.name or stem in SUBJECTS


def test_tests_mirror_the_tree() -> None:
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    assert [path for path in tests if not _is_tested(path)] == []
    assert not _is_tested(Path("ops/test_special.py")) and not _is_tested(Path("test_special.py"))
    assert _is_tested(Path("kernels/test_special.py")) and _is_tested(Path("backend/test_backend.py"))
