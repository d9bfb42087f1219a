"""Meshes of eight devices."""

from __future__ import annotations

from ..harness import mesh_process


def test_sizes() -> None:
    mesh_process.found("plans", "sizes_of_meshes")
