"""The versions of torch and JAX that jaten is for, and a warning about others."""

from __future__ import annotations

import re
import warnings

import jax
import torch

SUPPORTED = {"torch": ("2.13", "2.15"), "jax": ("0.10", "0.12")}
"""The oldest and the newest release of each; pyproject.toml has the same bounds, docs/versions.md what was run."""


def _release(version: str) -> tuple[int, int]:
    """The two numbers that tell releases apart whose private names differ: (2, 13) of "2.13.0+cpu"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def warning_of(versions: dict[str, str]) -> str | None:
    """A text that names the versions outside of these; None if there are none."""
    found = []
    for name, (oldest, newest) in SUPPORTED.items():
        if not _release(oldest) <= _release(versions[name]) <= _release(newest):
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
