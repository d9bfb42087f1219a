"""Programs on plain CPU tensors answer with jaten imported as they do without it: first, or between two runs."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from .programs import plain_programs

WHEN = [pytest.param("first", marks=pytest.mark.exhaustive), "between"]  # which also begins without jaten
# Inductor beside jaten is also in tests/test_import.py; here its C++ compiler takes longer than all the others
ROWS = [
    pytest.param(name, marks=pytest.mark.exhaustive) if name == "compiled_by_inductor" else name
    for name in plain_programs.PROGRAMS
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """The outcomes of the programs that are tested, in a process of their own."""
    tested = {item.name for item in request.session.items}
    names = [name for name in plain_programs.PROGRAMS if any(f"[{name}-" in test for test in tested)]
    folder = str(tmp_path_factory.mktemp("inductor"))  # shared, so that its code is compiled once

    @functools.cache
    def run(when: str) -> dict[str, Any]:
        command = [sys.executable, "-P", plain_programs.__file__, when, *names]
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("program", ROWS)
def test_as_without_jaten(program: str, when: str, run: Any) -> None:
    turn = 0 if when == "first" else 1  # some programs warn once
    plain, other = (run(w)["outcomes"][turn][program] for w in ("never", when))
    assert not str(plain["answer"]).startswith("Traceback"), plain["answer"]
    assert other == plain


@pytest.mark.parametrize("when", WHEN)
def test_jax_is_not_started(when: str, run: Any) -> None:
    """On a GPU it would take memory, and `jax.distributed` can be set up only before."""
    assert run(when)["started"] is False
