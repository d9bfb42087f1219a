"""A Sphinx extension: the directive `house-matrix`, a picture of which room of the package imports which.

Rows and columns are the rooms of tests/rooms.py, low to high. A dot stands where the room of the row imports that of
the column, so that all dots are below the diagonal.
"""

from __future__ import annotations

import functools
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from tests import architecture, rooms

ROOT = Path(__file__).resolve().parents[1]
STEP, LEFT, TOP = 14, 128, 116  # of the grid, in the units of the picture


def _room(module: str) -> str:
    return module.partition(".")[0]


@functools.cache
def imports_of_rooms() -> set[tuple[str, str]]:
    """Pairs of rooms, of which the first imports the second."""
    modules = architecture.read(ROOT)
    names = {module.name for module in modules}
    found = set()
    for module in modules:
        for each in architecture.imports(module):
            target = architecture.imported(each, names)
            if target and _room(target) != _room(module.inner):
                found.add((_room(module.inner), _room(target)))
    return found


def drawn() -> str:
    """The picture, as SVG in the colours of the theme."""
    order = list(rooms.ROOMS)
    at = {room: index for index, room in enumerate(order)}
    size = STEP * len(order)
    parts = []
    for room, index in at.items():
        y, x = TOP + STEP * index, LEFT + STEP * index
        parts.append(f'<text x="{LEFT - 6}" y="{y + 10}" text-anchor="end">{room}</text>')
        parts.append(f'<text transform="translate({x + 10} {TOP - 6}) rotate(-90)">{room}</text>')
        parts.append(f'<path class="line" d="M{LEFT} {y}h{size}M{x} {TOP}v{size}"/>')
        parts.append(f'<rect class="own" x="{x}" y="{y}" width="{STEP}" height="{STEP}"/>')
    for importer, imported in sorted(imports_of_rooms()):
        x, y = LEFT + STEP * at[imported] + STEP // 2, TOP + STEP * at[importer] + STEP // 2
        parts.append(f'<circle cx="{x}" cy="{y}" r="4"><title>{importer} imports {imported}</title></circle>')
    label = "Which room of the package imports which: all dots are below the diagonal"
    return (
        f'<svg class="house" role="img" aria-label="{label}" viewBox="0 0 {LEFT + size + 4} {TOP + size + 4}">'
        + "".join(parts)
        + "</svg>"
    )


class HouseMatrix(Directive):
    """The directive, which takes nothing."""

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", drawn(), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("house-matrix", HouseMatrix)
    return {"parallel_read_safe": True}
