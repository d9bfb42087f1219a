"""Modules over a mesh of eight devices, trained beside plain torch on the CPU."""

from __future__ import annotations

import pytest

from ..harness import mesh_process
from ..harness.crossings import crossed, crossed_for
from ..programs import mesh_loops, mesh_modules, mesh_plans
from ..programs.mesh_models import MODELS, OPTIMIZERS, PLANS, WAYS

# Partitioned sums have another order: a loss differs in its last digits, and five steps multiply that in parameters.
LOSS, PARAMETER = 1e-4, 1e-3

# The share of parameters and states on a device, times the devices. In models as small as these, what is not worth
# partitioning weighs something; the program `bytes_a_device` has a larger one.
SHARE = 1.3


# Of these models a few rows always run; the others take longer to compile.
OFTEN = ("mlp", "llama", "sequence", "experts")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "plan", "way", "optimizer"), crossed_for(OFTEN, MODELS, PLANS, WAYS, OPTIMIZERS))
def test_training(name: str, plan: str, way: str, optimizer: str) -> None:
    found = mesh_process.found("training", name, plan, way, optimizer)
    assert found["losses"] == pytest.approx(found["expected"], rel=LOSS)
    assert found["evaluated"][0] == pytest.approx(found["evaluated"][1], rel=PARAMETER)
    assert found["worst"]["off"] < PARAMETER, found["worst"]
    assert found["compiled"][2:] == [0, 0, 0]
    assert not found["moved"]
    assert not found["gradients elsewhere"]
    assert not found["states elsewhere"]
    assert bool(found["partitioned"]) is (plan != "data")
    if plan == "fsdp":
        assert found["share"] <= SHARE


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", mesh_modules.PROGRAMS)
def test_modules(name: str) -> None:
    mesh_process.found("modules", name)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in mesh_plans.PROGRAMS if name != "sizes_of_meshes"])
def test_plans(name: str) -> None:
    mesh_process.found("plans", name)


@pytest.mark.exhaustive
@pytest.mark.sampled(7)
@pytest.mark.parametrize(("form", "way"), crossed(mesh_loops.FORMS, mesh_loops.WAYS))
def test_loops_and_checkpoints(form: str, way: str) -> None:
    mesh_process.found("loops trained", form, way)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", mesh_loops.PROGRAMS)
def test_loops(name: str) -> None:
    mesh_process.found("loops", name)
