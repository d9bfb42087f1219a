"""Exported programs give what torch gives: in this process, and loaded in one without torch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import jaten_ops
from jaten_ops.errors import MissingKernelError, UnsupportedInputError

from ..programs import loads_exported
from ..programs.exported import BATCH, PROGRAMS, Program

ALL = ("cpu", "cuda", "tpu")
FORMS = {"static": (False, None), "open sizes": (True, ALL)}
ALSO_STATIC = ("images", "language")  # the CPU's own lowerings are in programs for a CPU with sizes that are known
ROWS = [
    (name, "open sizes" if program.dynamic is not None else "static") for name, program in PROGRAMS.items()
] + [(name, "static") for name in ALSO_STATIC]  # fmt: skip


@functools.cache
def _subject(name: str) -> Any:
    torch.manual_seed(0)
    made = PROGRAMS[name].make()
    return made.eval() if isinstance(made, nn.Module) else made


@functools.cache
def _exported(name: str, form: str) -> Any:
    program = PROGRAMS[name]
    is_open, platforms = FORMS[form]
    dynamic = program.dynamic if is_open else None
    return jaten_ops.export(
        _subject(name), program.args, program.kwargs, dynamic_shapes=dynamic, platforms=platforms
    )  # fmt: skip


def _calls(program: Program, form: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    own = program.args, program.kwargs
    return [own, program.other] if FORMS[form][0] and program.other is not None else [own]


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree)  # in one order, whether a dict is of JAX or of torch


def _compare(found: Any, expected: Any) -> None:
    pairs = list(zip(_leaves(found), _leaves(expected), strict=True))
    assert pairs
    for one, other in pairs:
        exact = not other.is_floating_point()
        low = other.dtype.itemsize == 2
        tolerance = 0.0 if exact else 2e-2 if low else 2e-5
        np.testing.assert_allclose(np.asarray(one, "float64"), other.double().numpy(), tolerance, tolerance)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "form"), ROWS)
def test_calls_give_what_torch_gives(name: str, form: str) -> None:
    program, exported = PROGRAMS[name], _exported(name, form)
    for args, kwargs in _calls(program, form):
        with torch.no_grad():
            expected = _subject(name)(*args, **kwargs)
        found = exported.call(*args, **kwargs)
        assert [x.dtype for x in _leaves(found)] == [x.dtype for x in _leaves(expected)]
        _compare(pytree.tree_map_only(torch.Tensor, lambda t: t.double(), found), expected)


@pytest.fixture(scope="module")
def loaded(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, str], list[Any]]:
    """The results of the programs that are tested, in one process without torch."""
    root = tmp_path_factory.mktemp("exported")
    asked = {item.name for item in request.session.items}
    rows = [row for row in ROWS if f"{test_a_process_without_torch_gives_the_same.__name__}[{'-'.join(row)}]" in asked]
    for name, form in rows:
        folder = root / f"{name}, {form}"
        _exported(name, form).save(folder)
        calls = pytree.tree_map_only(torch.Tensor, _as_numpy, _calls(PROGRAMS[name], form))
        (folder / "calls.pickle").write_bytes(pickle.dumps(calls))
    command = [sys.executable, "-P", loads_exported.__file__, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        (name, form): pickle.loads((root / f"{name}, {form}" / "results.pickle").read_bytes()) for name, form in rows
    }


def _as_numpy(tensor: torch.Tensor) -> Any:
    return tensor.float().numpy().astype("bfloat16") if tensor.dtype == torch.bfloat16 else tensor.numpy()


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("name", "form"), ROWS)
def test_a_process_without_torch_gives_the_same(name: str, form: str, loaded: dict[Any, list[Any]]) -> None:
    for (args, kwargs), found in zip(_calls(PROGRAMS[name], form), loaded[name, form], strict=True):
        with torch.no_grad():
            _compare(found, _subject(name)(*args, **kwargs))


@pytest.mark.exhaustive
def test_the_state_is_what_is_read_once() -> None:
    signature = _exported("language", "static").signature
    assert signature["state"].count("tokens.weight") + signature["state"].count("head.weight") == 1
    assert not [name for name in _exported("images", "static").signature["state"] if "num_batches" in name]
    shapes = [array["shape"] for array in _exported("language", "open sizes").signature["arrays"]]
    assert shapes == [["batch", "length"]]


def test_a_program_for_several_platforms_calls_no_library_of_one() -> None:
    text = _exported("images", "open sizes").stablehlo
    assert set(re.findall(r"custom_call @(\w+)", text)) == {"shape_assertion"}


class _Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x.sum()
        out: torch.Tensor = self.norm(x) * self.count
        return out


def test_buffers_are_updated_at_each_call() -> None:
    module = _Counts()
    plain, exported = copy.deepcopy(module), jaten_ops.export(module, (torch.ones(3, 4),))
    assert module.count == 0 and set(exported.signature["updated"]) >= {"count", "norm.running_mean"}
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(exported.call(x), plain(x).detach())


def test_random_programs_take_a_seed() -> None:
    exported = jaten_ops.export(nn.Dropout(0.5), (torch.ones(1000),))
    one, other, again = (exported.call(torch.ones(1000), seed=s) for s in (0, 1, 0))
    assert torch.equal(one, again) and not torch.equal(one, other) and set(one.tolist()) == {0.0, 2.0}
    with pytest.raises(TypeError, match="needs one"):
        exported.call(torch.ones(1000))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_programs_of_torch_export_and_of_the_device(device: str) -> None:
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    expected = model(x).detach()
    if device == "cpu":
        exported = jaten_ops.export(torch.export.export(model, (x,), dynamic_shapes=({0: BATCH},)))
        torch.testing.assert_close(exported.call(torch.cat([x, x]))[:3], expected)
    else:
        exported = jaten_ops.export(model.to("jax"), (x.to("jax"),))
    torch.testing.assert_close(exported.call(x), expected)


jaten_ops.op("jaten_exported::swish(Tensor x, float beta=1.0) -> Tensor")(lambda x, beta: x * jax.nn.sigmoid(beta * x))


def _of_a_user(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.jaten_exported.swish(x, 1.5) + jaten_ops.call_jax(jax.numpy.cumsum, x, axis=1)
    return found


def _with_branches(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    return chosen, torch.linalg.svdvals(x)


def _resized(x: torch.Tensor) -> torch.Tensor:
    """Calls operators that torch composes of others, and keeps."""
    images = x[:, None, None, :]
    larger: torch.Tensor = torch.cond(
        x.sum() > 0,
        lambda x: nn.functional.interpolate(x, scale_factor=(1, 2), mode="bilinear"),
        lambda x: nn.functional.interpolate(x, scale_factor=(1, 2)), (images,),
    )  # fmt: skip
    return larger


@pytest.mark.sampled(2)
@pytest.mark.parametrize("platforms", [None, ALL])
@pytest.mark.parametrize("fn", [_of_a_user, _with_branches, _resized])
def test_operators_of_users_branches_and_libraries(fn: Any, platforms: Any) -> None:
    dynamic = ({0: BATCH},) if fn is not _with_branches else None
    exported = jaten_ops.export(fn, (torch.randn(3, 4),), dynamic_shapes=dynamic, platforms=platforms)
    for x in (torch.randn(3, 4), torch.rand(5, 4) if dynamic else -torch.rand(3, 4)):
        _compare(pytree.tree_map_only(torch.Tensor, lambda t: t.double(), exported.call(x)), fn(x))


def _step() -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (model(x) - y).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}

    return step, model, optimizer


def test_a_step_trains_as_it_does_here() -> None:
    step, _, optimizer = _step()
    compiled = jaten_ops.compile_step(step)
    x, y = torch.randn(6, 4, device="jax"), torch.randn(6, 2, device="jax")
    compiled(x, y)
    exported = jaten_ops.export(compiled, (x, y), training=True, platforms=ALL)
    assert {"model.0.weight", "optimizer.state.0.exp_avg", "model.1.running_mean"} <= set(exported.signature["state"])
    assert exported.signature["hyperparameters"][0] == "lr"
    optimizer.param_groups[0]["lr"] = 1e-2
    losses = [(compiled(x, y)["loss"].item(), exported.call(x.cpu(), y.cpu())["loss"].item()) for _ in range(4)]
    for one, other in losses:
        assert one == pytest.approx(other, rel=1e-5)
    assert losses[0] > losses[-1]


STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "not called": ({}, "no state yet"),
    "not for training": ({"training": False}, "training=True and what compile_step returned"),
    "open sizes": ({"dynamic_shapes": ({0: BATCH}, {0: BATCH})}, "known sizes"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_cannot_be_exported(name: str) -> None:
    options, text = STEPS[name]
    step, x, y = jaten_ops.compile_step(_step()[0]), torch.ones(6, 4, device="jax"), torch.ones(6, 2, device="jax")
    with pytest.raises((UnsupportedInputError, RuntimeError), match=text):
        jaten_ops.export(step, (x, y), **{"training": True, **options})


def test_a_step_that_leaves_gradients_is_refused() -> None:
    model = nn.Linear(4, 2).to("jax")
    step = jaten_ops.compile_step(lambda x: model(x).sum().backward())
    step(torch.ones(3, 4, device="jax"))
    model.weight.grad = model.bias.grad = None
    with pytest.raises(UnsupportedInputError, match="leaves gradients"):
        jaten_ops.export(step, (torch.ones(3, 4, device="jax"),), training=True)


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "a size": ((torch.ones(3, 5),), {}, r"input: expected the shape \['batch', 4\], got \[3, 5\]"),
    "a rank": ((torch.ones(4),), {}, "expected the shape"),
    "a dtype": ((torch.ones(3, 4, dtype=torch.int64),), {}, "input: expected float32, got int64"),
    "too many": ((torch.ones(3, 4), 1), {}, "expected 1 values, got 2"),
    "a name": ((torch.ones(3, 4),), {"y": 1}, "expected the names"),
    "a seed": ((torch.ones(3, 4),), {"seed": 1}, "draws no random numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name: str) -> None:
    args, kwargs, text = WRONG[name]
    with pytest.raises(TypeError, match=text):
        _exported("perceptron", "open sizes").call(*args, **kwargs)


@dataclasses.dataclass
class Pair:
    """A dataclass as users register one."""

    x: torch.Tensor
    scale: int = 2


torch.export.register_dataclass(Pair)


def test_dataclasses_are_arguments() -> None:
    exported = jaten_ops.export(lambda pair, y=None: pair.x * pair.scale + 1, (Pair(torch.ones(2)),))
    assert exported.call(Pair(torch.arange(2.0))).tolist() == [1, 3]
    assert exported.call({"x": torch.arange(2.0), "scale": 2}).tolist() == [1, 3]  # as a process without torch has it
    with pytest.raises(TypeError, match="scale: expected 2, as exported, got 3"):
        exported.call(Pair(torch.ones(2), 3))


@pytest.mark.parametrize("constant", [None, 2], ids=["none", "number"])
def test_an_array_in_the_place_of_a_constant_is_named(constant: int | None) -> None:
    exported = jaten_ops.export(lambda x, y: x + 1, (torch.ones(2), constant))
    with pytest.raises(TypeError, match=f"expected {constant}, as exported, got"):
        exported.call(torch.ones(2), torch.ones(2))


def _writes(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def _of_values(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "a write to an argument": (_writes, None, "writes to x.*returns the new value"),
    "a size that depends on values": (_of_values, None, "depends on values.*index"),
    "an operator that needs sizes": (
        lambda x: nn.functional.avg_pool1d(x, 2), ({1: torch.export.Dim("n", min=4, max=64)},),
        "avg_pool.*dynamic_shapes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_named(name: str) -> None:
    fn, dynamic, text = REFUSED[name]
    with pytest.raises((UnsupportedInputError, MissingKernelError), match=text):
        jaten_ops.export(fn, (torch.randn(3, 8),), dynamic_shapes=dynamic)


def test_complex_weights_cannot_be_saved(tmp_path: Path) -> None:
    weight = torch.ones(3, dtype=torch.complex64)
    with pytest.raises(UnsupportedInputError, match=r"complex64"):
        jaten_ops.export(lambda x: x * weight, (torch.ones(3),)).save(tmp_path / "program")
