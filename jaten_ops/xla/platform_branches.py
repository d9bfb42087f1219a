"""Choices by platform in a program that JAX has traced."""

from __future__ import annotations

from typing import Any

from jax.extend import core


def cpu_branch(equation: Any) -> core.ClosedJaxpr | None:
    """The CPU's program of a traced choice by platform, a function of all its operands but the first; else None."""
    # TestCpuBranch fails if JAX names its parameter otherwise
    platforms = equation.params.get("branches_platforms") if equation.primitive.name == "cond" else None
    if platforms is None:
        return None
    branches = zip(platforms, equation.params["branches"], strict=True)
    return next(branch for names, branch in branches if names is None or "cpu" in names)
