"""A Sphinx extension: the stage of each public name, under its signature in the reference and as a role in pages."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from jaten_ops.stages import STAGES


def add_stage(_app: Sphinx, _kind: str, name: str, _documented: Any, _options: Any, lines: list[str]) -> None:
    """Puts the stage of a name before its docstring."""
    if name in STAGES:
        lines[:0] = [f"*Stage: {STAGES[name]}.*", ""]


def stage_role(
    _name: str, _raw: str, text: str, _line: int, _inliner: Any, _options: Any = None, _content: Any = None
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """The text of `{stage}` with a name of `STAGES`."""
    return [nodes.Text(STAGES[text])], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", add_stage)
    app.add_role("stage", stage_role)
    return {"parallel_read_safe": True}
