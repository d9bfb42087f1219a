"""The page of what importing jaten changes is that of the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaten_ops.hooks.patches import PATCHES
from jaten_ops.hooks.private_names import NAMES
from tools import patches


@pytest.mark.exhaustive  # `make check` looks, too
def test_the_page_is_up_to_date() -> None:
    assert patches.main(check=True) == 0, "Fix: python -m tools.patches"


def test_the_page_has_every_row() -> None:
    text = patches.render()
    assert all(f"`{name.replace(':', '.')}`" in text for name in (*PATCHES, *NAMES))


def test_a_stale_page_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("old", encoding="utf-8")
    assert patches.main(page, check=True) == 1 and "Fix: python -m tools.patches" in capsys.readouterr().out
    assert patches.main(page) == 0
    assert patches.main(page, check=True) == 0
