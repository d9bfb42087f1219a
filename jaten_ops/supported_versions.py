"""The versions of torch and JAX that jaten is for, and a warning about others."""

from __future__ import annotations

import warnings

import jax
import torch

from .schema.releases import release_of

SUPPORTED = {"torch": ("2.13", "2.15"), "jax": ("0.10", "0.12")}
"""The oldest and the newest release of each; pyproject.toml has the same bounds, docs/versions.md what was run."""


def warning_of(versions: dict[str, str]) -> str | None:
    """A text that names the versions outside of these; None if there are none."""
    found = []
    for name, (oldest, newest) in SUPPORTED.items():
        if not release_of(oldest) <= release_of(versions[name]) <= release_of(newest):
            found.append(f"{name} {versions[name]} (supported: {oldest} to {newest})")
    if not found:
        return None
    return (
        f"jaten_ops is not for {' and '.join(found)}. It works as far as what it needs has not moved;"
        " what has is off, and raises UnsupportedVersionError when it is used. Fix: install a supported version, or"
        " upgrade jaten-ops"
    )


def warn() -> None:
    """Warns once, with the line that imports jaten_ops, if a version is not supported."""
    text = warning_of({"torch": torch.__version__, "jax": jax.__version__})
    if text is not None:
        warnings.warn(text, stacklevel=3)
