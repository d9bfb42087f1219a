"""A Sphinx extension: docstrings as the reference shows them, with the stage of each public name.

The stages also stand in a table of all names, and are had by a role in pages.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from jaten_ops.stages import STAGES


def with_ends(text: str) -> str:
    """Docstring text in which reStructuredText sees that names in backticks end before a letter: the `Tensor`s."""
    return re.sub(r"(``.+?``|`[^`]+`)(\w?)", lambda found: found[1] + (f"\\ {found[2]}" if found[2] else ""), text)


def edit(_app: Sphinx, _kind: str, name: str, _documented: Any, _options: Any, lines: list[str]) -> None:
    """Ends names in backticks, and puts the stage of a public name before its docstring."""
    lines[:] = with_ends("\n".join(lines)).split("\n")
    if name in STAGES:
        lines[:0] = [f"*Stage: {STAGES[name]}.*", ""]


def stage_role(
    _name: str, _raw: str, text: str, _line: int, _inliner: Any, _options: Any = None, _content: Any = None
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """The text of `{stage}` with a name of `STAGES`."""
    return [nodes.Text(STAGES[text])], []


def _first_line(name: str) -> str:
    """The first line of the docstring of a public name."""
    return with_ends((inspect.getdoc(pkgutil.resolve_name(name)) or "").partition("\n")[0])


class PublicNames(SphinxDirective):
    """The directive `public-names`, a table of all names with what each is and its stage."""

    def run(self) -> list[nodes.Node]:
        rows = [("name", "", "stage")]
        rows += [(f":py:obj:`{n}`", _first_line(n), stage) for n, stage in STAGES.items() if "[" not in n]
        lines = [".. list-table::", "   :header-rows: 1", "   :widths: auto", ""]
        lines += [f"   {'  ' if at else '* '}- {cell}" for row in rows for at, cell in enumerate(row)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", edit)
    app.add_role("stage", stage_role)
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
