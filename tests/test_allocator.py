"""What the C library keeps of freed memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import torch, jaten_ops
from jaten_ops import allocator
asked = []
retain = allocator.retain.__wrapped__
allocator.retain = lambda: asked.append(retain())
{use}
print(any(asked), allocator.retain is not None)
"""
USES = {
    "an operator": "torch.ops.jaten.add.Tensor(torch.ones(2), torch.ones(2))",
    "a graph": "torch.compile(lambda x: x + 1, backend='jaten')(torch.ones(2))",
    "the import": "",
}


def _run(use: str, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "JATEN_MALLOC"))}
    command = [sys.executable, "-c", _PROGRAM.format(use=use)]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""),
    reason="only glibc has these settings",
)
@pytest.mark.parametrize("use", USES)
def test_it_is_told_at_the_first_use(use: str) -> None:
    assert _run(USES[use]) == str(use != "the import")


@pytest.mark.parametrize(
    ("name", "value"),
    [("JATEN_MALLOC", "0"), ("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.top_pad=131072")],
)
def test_the_user_has_the_last_word(name: str, value: str) -> None:
    assert _run(USES["an operator"], **{name: value}) == "False"
