"""`torch.export` of modules on the device, in the ways of its users, beside the same of modules on the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.export import Dim, ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import jaten_ops
from jaten_ops.errors import JatenError, UnsupportedInputError

from .harness.crossings import crossed
from .programs.exported_modules import MODULES
from .programs.module_uses import assert_same, batch
from .programs.stateful_modules import ROWS

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

SIZES = (ROWS, ROWS + 3, 4)
_OPEN = ({0: Dim("rows", min=3, max=64)},)


def _leaves(results: Any) -> list[Tensor]:
    return [torch.as_tensor(x).detach().cpu().clone() for x in tree_leaves(results) if x is not None]


def _called(call: Callable[..., Any], device: str, sizes: tuple[int, ...] = (ROWS, ROWS)) -> list[Tensor]:
    return [x for rows in sizes for x in _leaves(call(batch(device, rows)))]


def _exported(module: nn.Module, device: str, **options: Any) -> ExportedProgram:
    return torch.export.export(module, (batch(device),), **options)


def _loaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def strict(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_exported(module, device, strict=True).module(), device)


def open_sizes(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_exported(module, device, dynamic_shapes=_OPEN).module(), device, SIZES)


def open_sizes_and_strict(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_exported(module, device, dynamic_shapes=_OPEN, strict=True).module(), device, SIZES)


def sizes_found_by_torch(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_exported(module, device, dynamic_shapes=({0: Dim.AUTO},)).module(), device)


def decomposed(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_exported(module, device, dynamic_shapes=_OPEN).run_decompositions().module(), device, SIZES)


def decomposed_twice(module: nn.Module, device: str) -> list[Tensor]:
    program = _exported(module, device, dynamic_shapes=_OPEN).run_decompositions()
    return _called(_loaded(program.run_decompositions()).module(), device, SIZES)


def decomposed_without_gradients(module: nn.Module, device: str) -> list[Tensor]:
    with torch.no_grad():
        return _called(_exported(module, device).run_decompositions({}).module(), device)


def saved(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_loaded(_exported(module, device)).module(), device)


def decomposed_and_saved(module: nn.Module, device: str) -> list[Tensor]:
    program = _loaded(_exported(module, device, dynamic_shapes=_OPEN).run_decompositions())
    return _called(program.module(), device, SIZES)


def unflattened(module: nn.Module, device: str) -> list[Tensor]:
    return _called(torch.export.unflatten(_exported(module, device)), device)


def in_eval_mode(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_exported(module.eval(), device).module(), device)


def compiled(module: nn.Module, device: str) -> list[Tensor]:
    return _called(torch.compile(_exported(module, device).module(), backend="jaten"), device)


def compiled_for_sizes(module: nn.Module, device: str) -> list[Tensor]:
    program = _exported(module, device, dynamic_shapes=_OPEN).module()
    return _called(torch.compile(program, backend="jaten"), device, SIZES)


def trained(module: nn.Module, device: str) -> list[Tensor]:
    program = _exported(module, device).module()
    results = [x for x in tree_leaves(program(batch(device))) if isinstance(x, Tensor) and x.is_floating_point()]
    total = sum(x.sin().sum() for x in results)
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
    return _leaves([*results, *(p.grad for p in program.parameters() if p.grad is not None)])


def with_its_state(module: nn.Module, device: str) -> list[Tensor]:
    program = copy.deepcopy(_exported(module, device))
    return _leaves(list(program.state_dict.values())) + _called(program.module(), device)


def exported_again(module: nn.Module, device: str) -> list[Tensor]:
    return _called(_exported(_exported(module, device).module(), device).module(), device)


def graph_of_make_fx(module: nn.Module, device: str) -> list[Tensor]:
    return _called(make_fx(module, tracing_mode="symbolic")(batch(device)), device)


def moved_to_the_cpu(module: nn.Module, device: str) -> list[Tensor]:
    program = move_to_device_pass(_exported(module, device, dynamic_shapes=_OPEN), "cpu")
    return _called(program.module(), "cpu", SIZES)


def without_torch(module: nn.Module, device: str) -> list[Tensor]:
    program = _exported(module, device, dynamic_shapes=_OPEN)
    return _called(program.module() if device == "cpu" else jaten_ops.export(program).call, device, SIZES)


def decomposed_and_without_torch(module: nn.Module, device: str) -> list[Tensor]:
    program = _exported(module, device, dynamic_shapes=_OPEN).run_decompositions()
    return _called(program.module() if device == "cpu" else jaten_ops.export(program).call, device, SIZES)


WAYS = [
    strict, open_sizes, open_sizes_and_strict, sizes_found_by_torch, decomposed, decomposed_twice,
    decomposed_without_gradients, saved, decomposed_and_saved, unflattened, in_eval_mode, compiled, compiled_for_sizes,
    trained, with_its_state, exported_again, graph_of_make_fx, moved_to_the_cpu, without_torch,
    decomposed_and_without_torch,
]  # fmt: skip


REFUSED = {
    (name, way): says
    for name, says in {
        "trees": "a size that is open",
        "values": "one that the program computes",
        "selections": "a size that is open",
    }.items()
    for way in (without_torch, decomposed_and_without_torch)
}
"""The modules that need torch when they run, and the reason that the error gives."""


@pytest.mark.parametrize(("name", "way"), crossed(MODULES, WAYS, strength=1))
def test_programs_of_the_device_are_those_of_the_cpu(name: str, way: Callable[[nn.Module, str], list[Tensor]]) -> None:
    made = []
    for device in ("cpu", "jax"):
        torch.manual_seed(0)
        torch._dynamo.reset()
        module = MODULES[name]().double().to(device)
        try:
            made.append(way(module, device))
        except Exception as error:
            if (name, way) in REFUSED:
                assert isinstance(error, UnsupportedInputError) and REFUSED[name, way] in str(error)
                return
            if device == "jax" or isinstance(error, JatenError | BackendCompilerFailed):
                raise
            # there is nothing to compare with: torch itself refuses to export this module in this way
            pytest.skip(f"torch does not on the CPU: {type(error).__name__}")
    assert_same(made[1], made[0], 1e-6)
