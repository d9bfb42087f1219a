"""The generated rows, the exclusions, and the coverage table."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from jaten_ops import registry
from jaten_ops.schema import COMPOSITE, FIRST, FUNCTIONAL, VARIANTS, OpSpec, exclusions, releases
from tests.harness import reach
from tools.codegen import __main__ as cli
from tools.codegen import coverage, kernel_schemas, tested
from tools.codegen.rows import INSTALLED, ROOT, SCHEMA_DIR, read

TABLES = ("functional.ops", "variants.ops")
FILES = TABLES if INSTALLED == releases.OLDEST else (releases.differences_name(INSTALLED),)
"""The files that are generated of the installed torch."""


@pytest.fixture(scope="module")
def generated() -> Iterator[None]:
    """Lets `refresh` and `check` take the rows that were read from the installed torch once, which takes seconds."""
    texts = {path.name: text for path, text in cli._generate(SCHEMA_DIR) if path.parent == SCHEMA_DIR}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_generate", lambda directory: [(directory / name, text) for name, text in texts.items()])
        yield


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A copy of the committed rows."""
    for name in FILES:
        shutil.copy(SCHEMA_DIR / name, tmp_path)
    return tmp_path


@pytest.mark.exhaustive  # `make check` looks, too
@pytest.mark.usefixtures("generated")
def test_committed_rows_match_the_installed_torch() -> None:
    assert cli.main(["check"]) == 0


DRIFTS: dict[str, Callable[[list[str]], list[str]]] = {
    "a changed line": lambda lines: [*lines[:-1], lines[-1].replace("Tensor", "Tensor?", 1)],
    "a removed line": lambda lines: lines[:-1],
    "an added line": lambda lines: [*lines, "zzz(Tensor self) -> Tensor\tfunctional\t-\t-\t-\t-"],
    "another order": lambda lines: [*lines[:-2], lines[-1], lines[-2]],
    "another header": lambda lines: ["# of another torch", *lines[1:]],
    "an empty file": lambda lines: [],
}


@pytest.mark.usefixtures("generated")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("drift", DRIFTS)
def test_check_fails_on_drift_and_refresh_mends_it(
    drift: str, name: str, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows / name
    committed = path.read_text(encoding="utf-8")
    path.write_text("".join(f"{line}\n" for line in DRIFTS[drift](committed.splitlines())), encoding="utf-8")
    assert cli.main(["check", "--directory", str(rows)]) == 1
    assert "python -m tools.codegen refresh" in capsys.readouterr().out
    assert cli.main(["refresh", "--directory", str(rows)]) == 0
    assert path.read_text(encoding="utf-8") == committed
    assert cli.main(["check", "--directory", str(rows)]) == 0


@pytest.mark.usefixtures("generated")
def test_check_fails_where_a_file_is_missing(tmp_path: Path) -> None:
    assert cli.main(["check", "--directory", str(tmp_path)]) == 1


@pytest.mark.usefixtures("generated")
def test_refresh_writes_only_what_has_changed(rows: Path) -> None:
    before = {name: (rows / name).stat().st_mtime_ns for name in FILES}
    assert cli.main(["refresh", "--directory", str(rows)]) == 0
    assert {name: (rows / name).stat().st_mtime_ns for name in FILES} == before


def test_committed_schema_lines_match_the_rows() -> None:
    stale = [str(path) for path, text in kernel_schemas.annotated().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "Fix: make codegen"


def _overloads_above_kernels() -> dict[str, Path]:
    """The overloads that schema lines name, each with its file."""
    found: dict[str, Path] = {}
    for path, text in kernel_schemas.annotated().items():
        for operators, suffix in re.findall(
            r"^# aten::(\{.*?\}|\w+)(\.\w+)?\(", text.replace("\n#     ", " "), re.MULTILINE
        ):
            for operator in operators.strip("{}").split(", "):
                assert operator + suffix not in found, operator + suffix
                found[operator + suffix] = path
    return found


def test_each_kernel_has_its_schema_in_its_file() -> None:
    kernels = registry.KERNELS | registry.ABSENT["kernel"]
    files = {o: Path(e.where.rpartition(":")[0]) for o, e in kernels.items() if o in FIRST}
    assert _overloads_above_kernels() == files


MM, BMM = "mm(Tensor self, Tensor mat2) -> Tensor", "bmm(Tensor self, Tensor mat2) -> Tensor"
LONG = f"long({', '.join(f'Tensor argument_{i}' for i in range(12))}) -> Tensor"

# source, the schemas registered on a line of it, and the source with schema lines
SCHEMA_LINES = {
    "a decorated function": (
        'import x\n\n\n@kernel("mm")\ndef mm(self, mat2): ...\n',
        {4: [MM]},
        f'import x\n\n\n# aten::{MM}\n@kernel("mm")\ndef mm(self, mat2): ...\n',
    ),
    "below a comment": (
        '# why\n@kernel("mm")\ndef mm(): ...\n',
        {2: [MM]},
        f'# why\n# aten::{MM}\n@kernel("mm")\ndef mm(): ...\n',
    ),
    "two decorators": (
        '@kernel("add.Tensor")\n@kernel("mm")\ndef f(): ...\n',
        {1: ["add.Tensor(Tensor self) -> Tensor"], 2: [MM]},
        f"# aten::add.Tensor(Tensor self) -> Tensor\n# aten::{MM}\n"
        '@kernel("add.Tensor")\n@kernel("mm")\ndef f(): ...\n',
    ),
    "equal schemas": ("kernel()(f)\n", {1: [MM, BMM]}, f"# aten::{{mm, bmm}}{MM[2:]}\nkernel()(f)\n"),
    "another suffix is another schema": (
        "kernel()(f)\n",
        {1: ["a.x(Tensor self) -> Tensor", "a.y(Tensor self) -> Tensor", "b.x(Tensor self) -> Tensor"]},
        "# aten::{a, b}.x(Tensor self) -> Tensor\n# aten::a.y(Tensor self) -> Tensor\nkernel()(f)\n",
    ),
    "a loop": (
        "for n in TABLE:\n    kernel(n)(f)\n",
        {2: [MM, BMM]},
        f"# aten::{{mm, bmm}}{MM[2:]}\nfor n in TABLE:\n    kernel(n)(f)\n",
    ),
    "a function that registers": (
        "def register(n):\n    kernel(n)(f)\n    kernel(g)(f)\n",
        {2: [MM], 3: [LONG.replace("argument_", "x")]},
        f"# aten::{MM}\n"
        "# aten::long(Tensor x0, Tensor x1, Tensor x2, Tensor x3, Tensor x4, Tensor x5, Tensor x6, Tensor x7, "
        "Tensor x8,\n#     Tensor x9, Tensor x10, Tensor x11) -> Tensor\n"
        "def register(n):\n    kernel(n)(f)\n    kernel(g)(f)\n",
    ),
    "stale lines": (
        f"# why\n# aten::old(Tensor self,\n#     Tensor other) -> Tensor\nkernel(n)(f)\n# aten::{MM}\nx = 1\n",
        {4: [MM]},
        f"# why\n# aten::{MM}\nkernel(n)(f)\nx = 1\n",
    ),
    "no kernels": (f"# aten::{MM}\nx = 1\n", {}, "x = 1\n"),
    "other comments and strings": (
        '# aten has it\n#     indented\nx = """\n# aten::mm()\n"""\nif x:\n    # aten::mm() is meant\n    pass\n',
        {},
        '# aten has it\n#     indented\nx = """\n# aten::mm()\n"""\nif x:\n    # aten::mm() is meant\n    pass\n',
    ),
}


@pytest.mark.parametrize("case", SCHEMA_LINES)
def test_schema_lines(case: str) -> None:
    text, sites, expected = SCHEMA_LINES[case]
    annotated = kernel_schemas.annotate(text, sites)
    assert annotated == expected
    lines = [line for line in annotated.splitlines() if "kernel(" in line]
    moved = {
        annotated.splitlines().index(line) + 1: schemas for line, schemas in zip(lines, sites.values(), strict=True)
    }
    assert kernel_schemas.annotate(annotated, moved) == expected
    ast.parse(annotated)


def test_a_site_that_is_no_longer_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no statement on line 9"):
        kernel_schemas.annotate("x = 1\n", {9: [MM]})


def test_check_fails_on_stale_schema_lines_and_refresh_mends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "matmul.py"
    text = f'# aten::{MM}\n@kernel("mm")\ndef mm(self, mat2): ...\n'
    path.write_text(text.replace("mat2) -> Tensor\n", "mat3) -> Tensor\n"), encoding="utf-8")
    monkeypatch.setattr(cli, "_generate", lambda directory: [(path, text)])
    assert cli.main(["check"]) == 1
    assert "-# aten::mm(Tensor self, Tensor mat3) -> Tensor" in capsys.readouterr().out
    assert cli.main(["refresh"]) == 0
    assert path.read_text(encoding="utf-8") == text
    assert cli.main(["check"]) == 0


@pytest.mark.parametrize("name", TABLES)
def test_lines_round_trip(name: str) -> None:
    lines = [x for x in (SCHEMA_DIR / name).read_text(encoding="utf-8").splitlines() if not x.startswith("#")]
    assert lines == sorted(lines)
    assert [OpSpec.from_line(line).to_line() for line in lines] == lines
    assert [spec.to_line() for spec in read(SCHEMA_DIR / name)] == lines
    assert len({line.partition("(")[0] for line in lines}) == len(lines)


def test_schemas_parse_as_what_they_were_read_from() -> None:
    for spec in (*FUNCTIONAL.values(), *VARIANTS.values()):
        packet, _, suffix = spec.overload.partition(".")
        aten = getattr(getattr(torch.ops.aten, packet), suffix or "default")._schema
        assert [(a.name, a.has_default, a.kwarg_only) for a in spec.arguments] == [
            (a.name, a.has_default_value(), a.kwarg_only) for a in aten.arguments
        ], spec.overload
        assert len(spec.returns) == len(aten.returns), spec.overload


def test_functional_schemas_have_no_alias_marks() -> None:
    marked = [s.overload for s in FUNCTIONAL.values() if any(a.alias_info for a in s.parsed.arguments)]
    assert not marked


def test_differentiable_arguments_are_tensors_of_the_schema() -> None:
    for spec in FUNCTIONAL.values():
        tensors = {a.name for a in spec.arguments if a.is_tensor}
        assert set(spec.differentiable) <= tensors, spec.overload
        assert all(i < len(spec.returns) for i in spec.nondifferentiable_outputs), spec.overload


def test_bases_of_variants_exist() -> None:
    assert {s.base for s in VARIANTS.values()} <= FUNCTIONAL.keys() | COMPOSITE.keys()
    assert {s.kind for s in VARIANTS.values()} == {"inplace", "out"}


def test_no_overload_with_a_kernel_is_excluded() -> None:
    assert {k: r for k in registry.KERNELS if k in FUNCTIONAL and (r := exclusions.reason_of(k))} == {}


def test_no_core_overload_is_excluded() -> None:
    core = [name for name, spec in FUNCTIONAL.items() if "core" in spec.tags]
    assert [name for name in core if exclusions.reason_of(name)] == []


def test_no_exclusion_is_stale() -> None:
    assert exclusions.stale([*FUNCTIONAL, *COMPOSITE]) == []
    assert exclusions.stale(["add.Tensor"]) != []


def test_no_overload_is_excluded_twice() -> None:
    for group, patterns in exclusions.EXCLUSIONS.items():
        others = [p for other, ps in exclusions.EXCLUSIONS.items() if other != group for p in ps]
        both = [n for n in FUNCTIONAL if exclusions.matches(n, patterns) and exclusions.matches(n, others)]
        assert both == []


@pytest.fixture(scope="module")
def fresh() -> dict[str, coverage.Row]:
    return {row.overload: row for row in coverage.functional_rows()}


def test_coverage_only_grows(fresh: dict[str, coverage.Row]) -> None:
    committed = coverage.read_tsv((coverage.DOCS / "coverage.tsv").read_text(encoding="utf-8"))
    assert coverage.losses(committed, fresh.values()) == []
    if committed != list(fresh.values()):
        pytest.fail("docs/coverage.tsv is out of date: run `make coverage` and commit it", pytrace=False)


def test_a_lost_kernel_is_a_loss(fresh: dict[str, coverage.Row]) -> None:
    cells = ("kernels/activation.py", "aten", "vjp", "relu_ relu.out", "tests/a.py", "-")
    before = coverage.Row("relu", "all", "core", *cells)
    without_kernel = coverage.Row("relu", "all", "core", "-", "aten", "-", "-", "-", "-")
    assert coverage.losses([before], [before]) == []
    assert coverage.losses([without_kernel], [before]) == []
    gone = [column for column in coverage.COUNTED if column != "fake"]
    assert coverage.losses([before], [without_kernel]) == [f"relu: {column} is gone" for column in gone]
    assert coverage.losses([before], []) == ["relu: the overload is gone"]


def test_coverage_tables_round_trip(fresh: dict[str, coverage.Row], tmp_path: Path) -> None:
    rows = list(fresh.values())
    assert coverage.read_tsv(coverage.to_tsv(rows)) == rows
    assert coverage.main(tmp_path) == 0
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert coverage.main(tmp_path) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert first.keys() == {"coverage.md", "coverage.tsv"}


def test_coverage_names_files_that_are_there(fresh: dict[str, coverage.Row]) -> None:
    text = coverage.to_markdown(list(fresh.values()))
    targets = dict(re.findall(r"^\[(\S+)\]: (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"\[(\S+\.py)\]", text)) == targets.keys()
    assert [target for target in targets.values() if not (coverage.DOCS / target).is_file()] == []
    assert [file for file in re.findall(r"`(\S+\.py)`", text) if not (ROOT / file).is_file()] == []
    assert fresh["convolution"].kernel == "kernels/convolution.py"
    assert fresh["bernoulli.p"].tested == "tests/kernels/test_randomness.py"


def test_rows_say_which_releases_have_the_overload(fresh: dict[str, coverage.Row]) -> None:
    found = {name: fresh[name].torch for name in ("add.Tensor", "cholesky", "linalg_polar", "_philox_randint")}
    assert list(found.values()) == ["all", "to 2.13", "2.14 on", "2.15 on"]
    assert {name for name, row in fresh.items() if row.torch == "all"} <= (FUNCTIONAL | COMPOSITE).keys()


NAMED = {
    "OPS.add.Tensor(x)": {"add.Tensor"},
    "torch.ops.jaten.relu.default(x)": {"relu"},
    "aten.relu(x).sum()": {"relu"},
    '["mul.Tensor", "_unique", "random", "aten::random", "mylib::f_g"]': {"mul.Tensor", "_unique", "random"},
    "random.random(), x.add_(1), torch.relu(x), f(x).relu": set(),
}


@pytest.mark.parametrize("source", NAMED)
def test_overloads_that_a_test_names(source: str) -> None:
    found = {name for name in tested.named_overloads(ast.parse(source)) if name in FUNCTIONAL}
    assert found == NAMED[source]


def test_test_of_an_overload() -> None:
    kernel = Path(registry.KERNELS["bernoulli.p"].where.rpartition(":")[0])
    assert tested.test_of("add.Tensor", kernel) == tested.SAMPLES
    named = tested.TESTS / "kernels" / "test_randomness.py"
    assert tested.test_of("bernoulli.p", kernel.with_name("randomness.py")) == named
    assert tested.test_of("there is none", kernel) is None


def test_core_overloads_are_complete(fresh: dict[str, coverage.Row]) -> None:
    rows = coverage.core_rows(list(fresh.values()))
    assert len(rows) == len(coverage.core_overloads()) > 150
    lacking = {r.overload for r in rows if coverage.MISSING in (r.kernel, r.fake, r.gradient)}
    assert not lacking


def test_reached_overloads_exist() -> None:
    names = [x for x in reach.REACHED.read_text(encoding="utf-8").splitlines() if not x.startswith("#")]
    assert names == sorted(names) and set(names) <= FIRST.keys()


@pytest.mark.exhaustive
def test_rows_are_refreshed_without_the_package(tmp_path: Path) -> None:
    """A syntax error in jaten_ops must not keep anybody from refreshing the rows that may mend it."""
    for name in ("tools", "jaten_ops"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "jaten_ops" / "errors.py").write_text("this is no Python\n", encoding="utf-8")
    rows = tmp_path / "jaten_ops" / "schema" / FILES[0]
    committed = rows.read_text(encoding="utf-8")
    rows.write_text("", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "tools.codegen", "refresh"]
    env = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    refreshed = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "SyntaxError" in refreshed.stderr, "the schema lines of kernels need the package"
    assert rows.read_text(encoding="utf-8") == committed


class _Page(HTMLParser):
    """The elements of a page, with the errors that a browser would mend in silence."""

    VOID = frozenset({"meta", "input", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.errors: list[str] = []
        self.heads: list[str] = []
        self.wanted: set[str] = set()
        self.feed(text)
        self.close()
        self.errors += [f"<{tag}> is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.wanted |= {value or "" for name, value in attrs if name in ("src", "href")}
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.errors.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self._open[-2:] == ["tr", "th"]:
            self.heads.append(data)

    def handle_comment(self, data: str) -> None:
        self.errors.append(f"<!--{data}--> is not filled in")


_REPORT = {
    "torch": "2.13.0",
    "jax": "0.10.2",
    "date": "2000-01-01T00:00:00+00:00",
    "most": None,
    "items": [
        {"check": "values", "name": "add", "dtype": "float32", "status": "passed", "seconds": 1.0},
        {"check": "jvp", "name": "<b>", "dtype": "float64", "status": "xfail", "reason": "</script>", "seconds": 1.0},
        {
            "check": "opcheck",
            "name": "add.Tensor",
            "dtype": "float32",
            "status": "failed",
            "failures": ["add.Tensor(float32[2]): a < b & c"],
            "overloads": ["add.Tensor"],
            "seconds": 1.0,
        },
    ],
}


def test_page_has_every_overload_and_item(tmp_path: Path) -> None:
    output, report, summary = tmp_path / "coverage.html", tmp_path / "sweep.json", tmp_path / "sweep.md"
    report.write_text(json.dumps(_REPORT), encoding="utf-8")
    arguments = ["coverage", "--html", "--output", str(output), "--summary", str(summary)]
    assert cli.main(arguments) == 0
    assert not summary.exists()
    functional = {name for name, spec in (FIRST | FUNCTIONAL | COMPOSITE).items() if not spec.parsed.is_mutable}
    assert functional <= set(_Page(output.read_text(encoding="utf-8")).heads)
    assert cli.main([*arguments, "--report", str(report)]) == 0
    page = _Page(output.read_text(encoding="utf-8"))
    assert page.errors == [] and page.wanted == set()
    assert functional | {"add", "<b>"} <= set(page.heads)
    text = output.read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 2
    assert re.search(r'<tr [^>]*data-kernel="kernels/convolution.py"[^>]*><th>convolution</th>', text)
    assert "| all | 1 | 1 | 1 | 0 |" in summary.read_text(encoding="utf-8")


def test_a_page_that_is_not_well_formed_is_seen() -> None:
    assert _Page("<p><b>x</p></b>").errors and _Page("<p>").errors and _Page("<!-- totals -->").errors
