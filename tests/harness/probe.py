"""Run as a script in a fresh interpreter: prints what importing and using jaten_ops changes, as JSON.

`python tests/harness/probe.py` compares before and after; `python tests/harness/probe.py foreign` lets another backend
have the PrivateUse1 slot first.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax._src import xla_bridge
from torch.utils import backend_registration


def _dispatch() -> dict[str, dict[str, str]]:
    """For each operator the kernel of every dispatch key, except the keys of the device jax."""
    table = {}
    for name in torch._C._dispatch_get_all_op_names():
        lines = (line.partition(": ") for line in torch._C._dispatch_dump_table(name).splitlines())
        table[name] = {key: kernel for key, _, kernel in lines if "PrivateUse1" not in key}
    return table


def _torch_state() -> dict[str, Any]:
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "generator": torch.get_rng_state().sum().item(),
    }


def _process_state() -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "warning filters": [repr(f) for f in warnings.filters],
        "recursion limit": sys.getrecursionlimit(),
        "excepthook": repr(sys.excepthook),
    }


def _jax_config() -> dict[str, str]:
    return {name: repr(value) for name, value in jax.config.values.items()}


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The keys whose values differ, or that are new or gone."""
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))


def _attributes(cls: type) -> dict[str, int]:
    return {name: id(value) for name, value in vars(cls).items()}


def compare() -> dict[str, Any]:
    """Takes the state before the import, after it, and after a call and a compilation."""
    dispatch, state, process, config = _dispatch(), _torch_state(), _process_state(), _jax_config()
    tensor, module, modules = _attributes(torch.Tensor), _attributes(torch.nn.Module), set(sys.modules)

    import jaten_ops  # noqa: F401, PLC0415  # what is measured

    after = _dispatch()
    answer: dict[str, Any] = {
        "aten operators changed": _changed(dispatch, {n: k for n, k in after.items() if not n.startswith("jaten")}),
        "torch changed": _changed(state, _torch_state()),
        "process changed": _changed(process, _process_state()),
        "jax config changed": _changed(config, _jax_config()),
        "jax backends started": xla_bridge.backends_are_initialized(),
        "tensor attributes changed": _changed(tensor, _attributes(torch.Tensor)),
        "module attributes changed": _changed(module, _attributes(torch.nn.Module)),
        "modules": sorted(m for m in set(sys.modules) - modules if not m.startswith("jaten_ops")),
    }
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    torch.ops.jaten.mul.Tensor(x, x).sum().backward()
    torch.compile(lambda x: (x * x).sum(), backend="jaten")(x).backward()
    answer["jax config changed by use"] = _changed(config, _jax_config())
    answer["torch changed by use"] = _changed(state, _torch_state())
    answer["arrays outside"] = str(jax.numpy.ones(2).dtype)
    return answer


def _outcome(fn: Callable[[], Any]) -> str:
    try:
        return repr(fn())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def foreign() -> dict[str, Any]:
    """Features that work when another backend has taken the PrivateUse1 slot before jaten_ops is imported."""
    backend_registration._setup_privateuseone_for_python_backend("foo")

    import jaten_ops  # noqa: PLC0415  # after the other backend
    from jaten_ops.device import privateuse1  # noqa: PLC0415

    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: (x * x).sum(), backend="jaten")(x).backward()
    return {
        "owner": torch._C._get_privateuse1_backend_name(),
        "fallback of jaten": "jaten_ops" in torch._C._dispatch_dump_table("aten::add.Tensor"),
        "direct": torch.ops.jaten.add.Tensor(torch.ones(2), torch.ones(2)).tolist(),
        "gradient of compiled": x.grad.tolist() if x.grad is not None else None,
        "require": _outcome(privateuse1.require_slot),
        "tensor": _outcome(lambda: jaten_ops.Tensor(torch.ones(2))),
        "to": _outcome(lambda: torch.ones(2).to("jax")),
    }


if __name__ == "__main__":
    print(json.dumps((foreign if "foreign" in sys.argv else compare)()))
