"""Every source file of the package is part of the key."""

from __future__ import annotations

import sys
from pathlib import Path

import jaten_ops  # noqa: F401  # all of it is loaded
from jaten_ops.xla import fingerprint


def test_the_sources_of_all_modules_are_in_the_key() -> None:
    known = {path.resolve() for path in fingerprint._files(fingerprint._folders())}
    loaded = {name: m.__file__ for name, m in sys.modules.items() if name.partition(".")[0] == "jaten_ops"}
    missing = [name for name, file in loaded.items() if file and Path(file).resolve() not in known]
    assert len(loaded) > 100 and missing == []
