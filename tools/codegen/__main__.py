"""`python -m tools.codegen refresh | check | coverage`."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from .operators import read_functional, read_variants
from .rows import SCHEMA_DIR, render


def _generate(directory: Path) -> dict[Path, str]:
    functional = read_functional()
    return {
        directory / "functional.ops": render(functional),
        directory / "variants.ops": render(read_variants(functional)),
    }


def refresh(directory: Path) -> int:
    """Writes the generated files that have changed."""
    for path, text in _generate(directory).items():
        old = path.read_text(encoding="utf-8") if path.exists() else None
        if old != text:
            path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {'unchanged' if old == text else 'written'}, {text.count(chr(10)) - 2} overloads")
    return 0


def check(directory: Path) -> int:
    """Compares the generated files with the installed torch; 1 if they differ."""
    drift = False
    for path, text in _generate(directory).items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        diff = list(difflib.unified_diff(old.splitlines(), text.splitlines(), path.name, "installed torch", n=0))
        if diff:
            drift = True
            print("\n".join(diff[:40]))
    if drift:
        print("The generated rows do not match the installed torch: run `python -m tools.codegen refresh`.")
    else:
        print("The generated rows match the installed torch.")
    return int(drift)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.codegen", description=__doc__)
    parser.add_argument("command", choices=["refresh", "check", "coverage"])
    parser.add_argument("--directory", type=Path, default=SCHEMA_DIR, help="where the generated rows lie")
    options = parser.parse_args(arguments)
    if options.command == "coverage":
        from .coverage import main as coverage  # noqa: PLC0415  # imports jaten_ops, which the others must not need

        return coverage()
    return {"refresh": refresh, "check": check}[options.command](options.directory)


if __name__ == "__main__":
    sys.exit(main())
