"""Freed memory that the C library keeps."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._dynamo

from jaten_ops.xla import executables, malloc

_PROGRAM = """
import torch, jaten_ops
from jaten_ops.xla import malloc
asked = []
retain = malloc.retain.__wrapped__
malloc.retain = lambda: asked.append(retain())
{use}
print(any(asked), malloc.retain is not None)
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


glibc_only = pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""),
    reason="only glibc has these settings",
)


@glibc_only
def test_it_takes_the_settings() -> None:
    assert malloc.retain.__wrapped__() is True


def test_a_graph_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(malloc, "retain", lambda: asked.append(True))
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="jaten")(torch.ones(2))
    assert asked


@pytest.mark.exhaustive
@glibc_only
@pytest.mark.parametrize("use", USES)
def test_it_is_told_at_the_first_use(use: str) -> None:
    assert _run(USES[use]) == str(use != "the import")


OF_USERS = [
    ("JATEN_MALLOC", "0"), ("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.top_pad=131072"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), OF_USERS)
def test_the_user_has_the_last_word(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert malloc.retain.__wrapped__() is False


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "value"), OF_USERS)
def test_the_user_has_the_last_word_in_a_new_process(name: str, value: str) -> None:
    assert _run(USES["an operator"], **{name: value}) == "False"


def _long_lived(x: jax.Array) -> jax.Array:
    """Eight arrays of 16 MiB that are all needed twice."""
    products = [jnp.dot(x * i, x.T) for i in range(1, 9)]
    total = sum(p @ x for p in products)
    return sum(p.T @ total for p in products)


@glibc_only
@pytest.mark.exhaustive
def test_temporary_memory_is_kept_between_calls() -> None:
    resource = pytest.importorskip("resource")
    malloc.retain()
    x = jnp.ones((2048, 4))
    run, _ = executables.compiled(jax.jit(_long_lived).lower(x))
    assert run.memory_analysis().temp_size_in_bytes > 64 * 2**20
    faults = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run(x).block_until_ready()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) * resource.getpagesize() < 2**20
