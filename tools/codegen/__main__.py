"""`python -m tools.codegen refresh | check | coverage [--html [--report build/sweep.json]]`."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from .operators import read_composites, read_functional, read_variants
from .rows import ROOT, SCHEMA_DIR, render


def _generate(directory: Path) -> Iterator[tuple[Path, str]]:
    """Each generated file and its text. The rows come first: the package reads them when it is imported."""
    functional = read_functional()
    composed = [spec for spec in read_composites(functional) if not spec.parsed.is_mutable]
    variants = read_variants(functional + composed)
    # overloads that write and have a functional base are variants of it
    tables = {"functional": functional, "variants": variants, "composite": read_composites(functional + variants)}
    yield from ((directory / name, text) for name, text in render(tables, directory).items())
    from .kernel_schemas import annotated  # noqa: PLC0415  # imports jaten_ops, which the rows must not need

    yield from annotated().items()


def refresh(directory: Path) -> int:
    """Writes the generated files and the schema lines of kernels that have changed."""
    for path, text in _generate(directory):
        old = path.read_text(encoding="utf-8") if path.exists() else None
        if old != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.name}: written")
    print("The generated rows and schema lines match the installed torch.")
    return 0


def check(directory: Path) -> int:
    """Compares the generated files and the schema lines of kernels with the installed torch; 1 if they differ."""
    drift = False
    for path, text in _generate(directory):
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        diff = list(difflib.unified_diff(old.splitlines(), text.splitlines(), path.name, "installed torch", n=0))
        if diff:
            drift = True
            print("\n".join(diff[:40]))
    if drift:
        print("These rows or schema lines do not match the installed torch. Fix: python -m tools.codegen refresh")
    else:
        print("The generated rows and schema lines match the installed torch.")
    return int(drift)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.codegen", description=__doc__)
    parser.add_argument("command", choices=["refresh", "check", "coverage"])
    parser.add_argument("--directory", type=Path, default=SCHEMA_DIR, help="where the generated rows lie")
    html = parser.add_argument_group("coverage")
    html.add_argument("--html", action="store_true", help="write a page in place of the tables of docs/")
    html.add_argument("--output", type=Path, default=ROOT / "build" / "coverage.html", help="the page")
    html.add_argument("--report", type=Path, nargs="+", default=[], help="what `python -m tests.sweep` wrote")
    html.add_argument("--summary", type=Path, default=ROOT / "docs" / "sweep.md", help="the totals of the report")
    options = parser.parse_args(arguments)
    if options.command == "coverage" and options.html:
        from .page import main as page  # noqa: PLC0415  # imports jaten_ops, which the others must not need

        return page(options.output, options.report, options.summary)
    if options.command == "coverage":
        from .coverage import main as coverage  # noqa: PLC0415  # as above

        return coverage()
    return {"refresh": refresh, "check": check}[options.command](options.directory)


if __name__ == "__main__":
    sys.exit(main())
