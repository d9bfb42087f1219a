"""Run as a script: torch has moved what jaten replaces, and programs use the features that need it.

Prints the outcomes of the programs as JSON: the error that each raises, or "" of one that raises none.
"""

from __future__ import annotations

import functools
import io
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.fx.experimental.proxy_tensor
import torch.nn.attention.flex_attention
import torch.nn.utils.parametrize
from torch import nn
from torch.autograd.variable import ImperativeEngine

GONE = ("torch._C:_accelerator_getAccelerator", "torch.autograd.variable:Variable._execution_engine")
OTHER_PARAMETERS = (
    *("torch.accelerator:memory_stats", "torch.accelerator:synchronize", "torch.utils:swap_tensors"),
    *("torch.nn.parameter:Parameter.__new__", "torch.nn.parameter:UninitializedParameter.__new__"),
    "torch.distributed.distributed_c10d:BackendConfig.__init__",
    "torch._subclasses.fake_tensor:FakeTensorMode.may_turn_const",
    "torch.fx.experimental.proxy_tensor:ProxyTorchDispatchMode.__torch_dispatch__",
    *("torch.jit._script:ScriptModule._apply", "torch.jit:load"),
    "torch.export.exported_program:ExportedProgram.run_decompositions",
    *("torch._higher_order_ops.utils:_collect_fake_inputs", "torch.nn.attention.flex_attention:_validate_device"),
    "torch:_TorchCompileInductorWrapper.__call__",
)


def _owner(what: str) -> tuple[Any, str]:
    module, _, path = what.partition(":")
    *classes, name = path.split(".")
    return functools.reduce(getattr, classes, sys.modules[module]), name


def _move() -> None:
    """Makes torch another version: attributes are gone, or take a parameter more."""
    torch.accelerator.current_accelerator = lambda check_available=False: None
    engine = ImperativeEngine()
    torch.autograd.graph._engine_run_backward = lambda outputs, *args, **kwargs: engine.run_backward(
        outputs, *args, **kwargs
    )
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward
    for what in GONE:
        delattr(*_owner(what))
    for what in OTHER_PARAMETERS:
        owner, name = _owner(what)
        known = getattr(owner, name)

        def of_another_version(*args: Any, known: Any = known, more: Any = None, **kwargs: Any) -> Any:
            return known(*args, **kwargs)

        setattr(owner, name, staticmethod(of_another_version) if name == "__new__" else of_another_version)


class Mine(nn.Parameter):
    pass


def _leaf() -> torch.Tensor:
    return torch.ones(3, device="jax", requires_grad=True)


def _record() -> None:
    torch.fx.experimental.proxy_tensor.make_fx(lambda x: x + 1)(torch.ones(3, device="jax"))


def _attend() -> None:
    x = torch.ones(1, 1, 4, 4, device="jax")
    torch.nn.attention.flex_attention.flex_attention(x, x, x)


def _choose() -> None:
    x = torch.ones(3, device="jax")
    torch.cond(torch.tensor(True, device="jax"), torch.sin, torch.cos, (x,))


def _reduce() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1, device="jax"))


def _train_on_cpu() -> None:
    """All of it works as it did."""
    module = torch.jit.script(nn.Linear(3, 3)).to("cpu")
    module(torch.ones(2, 3)).sum().backward()
    nn.LazyLinear(2)(torch.ones(1, 3))
    Mine(torch.ones(3))
    torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.ones(3),))
    torch.fx.experimental.proxy_tensor.make_fx(torch.sin)(torch.ones(3))
    torch.export.export(nn.Linear(3, 3), (torch.ones(2, 3),)).run_decompositions()
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(3))


# a program, and the attribute that its error names; none of one that works
USES: dict[str, tuple[Callable[[], Any], str]] = {
    "the accelerator": (lambda: torch.accelerator.current_accelerator(), ""),
    "memory": (lambda: torch.accelerator.memory_stats(), "torch.accelerator.memory_stats"),
    "waiting": (lambda: torch.accelerator.synchronize(), "torch.accelerator.synchronize"),
    "backward": (lambda: _leaf().sum().backward(), "Variable._execution_engine"),
    "backward from the CPU": (lambda: _leaf().mul(2).cpu().sum().backward(), "Variable._execution_engine"),
    "grad": (lambda: torch.autograd.grad((x := _leaf()).sum(), x), "Variable._execution_engine"),
    "flex_attention": (_attend, "flex_attention._validate_device"),
    "cond": (_choose, "_collect_fake_inputs"),
    "make_fx": (_record, "ProxyTorchDispatchMode.__torch_dispatch__"),
    "module.to": (lambda: nn.Linear(2, 2).to("jax"), "swap_tensors"),
    "a scripted module": (lambda: torch.jit.script(nn.Linear(2, 2)).to("jax"), "ScriptModule._apply"),
    "a subclass of Parameter": (lambda: Mine(torch.ones(3, device="jax")), "Parameter.__new__"),
    "a plain Parameter": (lambda: nn.Parameter(torch.ones(3, device="jax")), ""),
    "a lazy module": (lambda: nn.LazyLinear(2, device="jax"), "UninitializedParameter.__new__"),
    "all_reduce by a group that names gloo": (_reduce, ""),
    "jit.load": (lambda: torch.jit.load(io.BytesIO(), map_location="jax"), "torch.jit.load"),
    "export": (lambda: torch.export.export(nn.Identity(), (torch.ones(3, device="jax"),)), "may_turn_const"),
    "operators": (lambda: torch.ones(3, device="jax").mul(2).sum().item(), ""),
    "a compiled program": (lambda: torch.compile(torch.sin, backend="jaten")(torch.ones(3)), ""),
    "the CPU": (_train_on_cpu, ""),
}


def _outcome(use: Callable[[], Any]) -> str:
    try:
        use()
    except Exception as error:  # whatever it is, the test looks at it
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> dict[str, str]:
    """The outcome of each program."""
    warnings.simplefilter("ignore")
    _move()
    import jaten_ops  # noqa: F401, PLC0415  # what is tested

    return {name: _outcome(use) for name, (use, _) in USES.items()}


if __name__ == "__main__":
    print(json.dumps(main()))
