"""Programs on plain CPU tensors answer with jaten imported as they do without it: first, or between two runs."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from . import plain_programs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The outcomes of all programs in a process of their own."""
    folder = str(tmp_path_factory.mktemp("inductor"))  # shared, so that its code is compiled once

    @functools.cache
    def run(when: str) -> dict[str, Any]:
        command = [sys.executable, "-P", plain_programs.__file__, when]
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.mark.parametrize("when", ["first", "between"])
@pytest.mark.parametrize("program", plain_programs.PROGRAMS)
def test_as_without_jaten(program: str, when: str, run: Any) -> None:
    plain, other = run("never"), run(when)
    for turn in ("first", "second"):
        assert not str(plain[turn][program]["answer"]).startswith("Traceback"), plain[turn][program]["answer"]
        assert other[turn][program] == plain[turn][program]
