"""A Sphinx extension: links from pages of the site to files of the repository, and pages that show these files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FOLDER = "source"
"""The folder of the site that has these pages."""

LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".ops": "text", ".json": "json", ".tsv": "text"}


def page_name(file: Path) -> str:
    """The name of the page that shows a file, without `.html`."""
    return f"{FOLDER}/{file.relative_to(ROOT).as_posix()}"


def included_whole() -> dict[Path, Path]:
    """For each README that a page includes whole, the page: links to the one lead to the other."""
    found = {}
    for page in DOCS.rglob("*.md"):
        if included := re.match(r"```\{include\} (\S+README\.md)\n```", page.read_text(encoding="utf-8")):
            found[(page.parent / included[1]).resolve()] = page
    return found


def move_links(app: Sphinx, path: Path, _document: str, content: list[str]) -> None:
    """Makes links of a file that a page includes, which are relative to the file, relative to the page."""
    folder, page = Path(app.srcdir, path).resolve().parent, Path(app.srcdir, app.env.docname).parent
    pages_of = included_whole()

    def moved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        return f"]({os.path.relpath(pages_of.get(target, target), page)}" if target.exists() else link[0]

    content[0] = re.sub(r"\]\(([\w./]+)", moved, content[0])


def link_to_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Turns links to files outside of the site, which Sphinx would offer as downloads, into links to their pages."""
    document = Path(app.env.doc2path(app.env.docname)).parent
    depth = "../" * app.env.docname.count("/")
    for link in list(doctree.findall(addnodes.download_reference)):
        file = Path(os.path.normpath(document / link["reftarget"]))
        if file.suffix not in LANGUAGES:
            continue
        app.shown_files.add(file)  # type: ignore[attr-defined]
        link.replace_self(nodes.reference("", "", *link.children, refuri=f"{depth}{page_name(file)}.html"))


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages, as Sphinx takes them: name, values of the template, template."""
    for file in sorted(app.shown_files):  # type: ignore[attr-defined]
        text = file.read_text(encoding="utf-8")
        code = app.builder.highlighter.highlight_block(text, LANGUAGES[file.suffix])  # type: ignore[attr-defined]
        title = file.relative_to(ROOT).as_posix()
        yield page_name(file), {"title": title, "body": f"<h1>{title}</h1>{code}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.shown_files = set()  # type: ignore[attr-defined]
    app.connect("include-read", move_links)
    app.connect("doctree-read", link_to_pages, priority=400)  # before Sphinx collects what can be downloaded
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": False}
