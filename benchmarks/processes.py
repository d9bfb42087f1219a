"""Helpers of the programs that start other processes: empty caches, and JSON with its provenance."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import torchax

_INSTRUCTIONS = (
    ("amx_bf16", "AMX"),
    ("avx512_bf16", "AVX-512 with bfloat16"),
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
)  # Linux's names, the newest first


def caches(folder: Path) -> dict[str, str]:
    """Environment variables that put the compilers' caches into a folder."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JATEN_CACHE": "1",
        "JATEN_CACHE_DIR": str(folder / "jaten"),
        "XDG_CACHE_HOME": str(folder / "others"),
    }


def about(module: str, threads: int) -> dict[str, Any]:
    """The command that was given, and where it runs."""
    environment: dict[str, Any] = {
        "threads": threads,
        "processor": processor(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "jax": version("jax"),
        "platform": platform.platform(),
    }
    if (other := torchax.version()) is not None:
        environment["torchax"] = other
    return {"command": shlex.join(["python", "-m", module, *sys.argv[1:]]), "environment": environment}


def processor() -> str:
    """The name of the CPU, as Linux has it, with the instructions for vectors that tell those of one name apart."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return ", ".join([name, *next(([text] for flag, text in _INSTRUCTIONS if flag in flags), [])])


def write(file: Path, report: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_rounded(report), indent=1) + "\n", encoding="utf-8")


def _rounded(tree: Any) -> Any:
    """Five digits of each number: no clock has more."""
    if isinstance(tree, dict):
        return {key: _rounded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_rounded(value) for value in tree]
    return float(f"{tree:.5g}") if isinstance(tree, float) else tree
