"""Links from pages of the site to files of the repository."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx, of the extra `docs`")

from tools import source_pages


def test_readmes_that_are_pages_are_found() -> None:
    found = source_pages.included_whole()
    readme = source_pages.ROOT / "jaten_ops" / "arrays" / "README.md"
    assert found[readme] == source_pages.DOCS / "internals" / "values.md"


def test_links_of_an_included_file_lead_where_they_led() -> None:
    app = SimpleNamespace(srcdir=source_pages.DOCS, env=SimpleNamespace(docname="internals/house"))
    text = ["[a](docs/coverage.md), [b](jaten_ops/arrays/README.md), [c](https://a.b), [d](no/such.md)"]
    source_pages.move_links(app, Path("../CONTRIBUTING.md"), "internals/house", text)
    assert text == ["[a](../coverage.md), [b](values.md), [c](https://a.b), [d](no/such.md)"]


def test_a_file_has_a_page_of_its_path() -> None:
    file = source_pages.ROOT / "jaten_ops" / "errors.py"
    assert source_pages.page_name(file) == "source/jaten_ops/errors.py"
