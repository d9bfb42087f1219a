"""The plots of the tutorials, and the programs that draw them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import tutorial_plots

PAGES = sorted(tutorial_plots.FOLDER.glob("*.md"))


def test_plots_that_pages_show_are_saved_by_their_code() -> None:
    shown = {page.stem: tutorial_plots.plots_of(page) for page in PAGES}
    assert len([names for names in shown.values() if names]) == 6
    for page in PAGES:
        for name in shown[page.stem]:
            assert f'savefig("{name}")' in tutorial_plots.program_of(page)
            assert (tutorial_plots.FOLDER / name).exists()


def test_plots_are_copied_beside_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tutorial_plots, "FOLDER", tmp_path)
    page = tmp_path / "page.md"
    page.write_text('```python\nopen("a.svg", "w").write("x")\n```\n\n![a](a.svg)\n', encoding="utf-8")
    tutorial_plots.draw(page)
    assert (tmp_path / "a.svg").read_text() == "x"
