"""`make plots`, or `python -m tools.tutorial_plots [PAGE ...]`: runs tutorials and keeps the plots that they draw.

The code of a page in docs/tutorials/ is one program, as for the tests. It saves its plot under the name by which the
page shows it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"


def program_of(page: Path) -> str:
    """The blocks of Python code of a page, one after the other."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL))


def plots_of(page: Path) -> list[str]:
    """The names of the plots that a page shows."""
    return re.findall(r"^!\[[^\]]*\]\((\w+\.svg)\)$", page.read_text("utf-8"), re.MULTILINE)


def draw(page: Path) -> None:
    """Runs the code of a page, and copies its plots beside it."""
    look = {"MATPLOTLIBRC": str(FOLDER / "matplotlibrc"), "SOURCE_DATE_EPOCH": "0"}  # no date in the files
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", program_of(page)], cwd=folder, env=os.environ | look, check=True)
        for name in plots_of(page):
            shutil.copy(Path(folder) / name, FOLDER / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="names of pages, as `vision`; all that show plots if none is given")
    names = parser.parse_args().pages
    for page in sorted(FOLDER.glob("*.md")):
        if page.stem in names or (not names and plots_of(page)):
            print(page.stem)
            draw(page)


if __name__ == "__main__":
    main()
