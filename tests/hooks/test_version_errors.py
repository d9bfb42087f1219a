"""Features that are off because torch has moved what they need: the import works, and a use says what has moved."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ..harness import moved


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """The errors of the programs in a fresh process, whose torch is another."""
    done = subprocess.run([sys.executable, "-P", moved.__file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for what in (*moved.GONE, *moved.OTHER_PARAMETERS):
        assert what in done.stderr  # a line of the log says that the feature is off
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", moved.USES)
def test_a_use_says_what_has_moved(name: str, outcomes: dict[str, str]) -> None:
    expected, outcome = moved.USES[name][1], outcomes[name]
    if expected:
        assert outcome.startswith("UnsupportedVersionError: ") and expected in outcome and "Fix: " in outcome
    else:
        assert not outcome
