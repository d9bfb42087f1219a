"""Programs of plans for modules over a mesh of eight devices: each asserts what must hold."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, ClassVar
from unittest import mock

import jax
import torch
from jax.sharding import PartitionSpec
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

import jaten_ops
from jaten_ops import distributed

from .mesh_models import same
from .mesh_modules import PLAN, Block, assert_near, mesh_2_4, ways
from .mesh_programs import Programs
from .mesh_tensors import refused

P = PartitionSpec
PROGRAMS = Programs()


@PROGRAMS
def parts_are_sharded_before_the_whole() -> None:
    mesh = distributed.make_mesh(data=-1)
    plain = nn.Sequential(Block(), Block())
    ours: Any = copy.deepcopy(plain)
    for part in (*ours, ours, ours):
        distributed.fully_shard(part, mesh)
    names = [name for name, _ in plain.named_parameters()]
    x = torch.randn(8, 16)
    plain(x).square().mean().backward()
    for way, run in ways(ours).items():
        for _ in range(2):
            ours.zero_grad()
            run(distributed.distribute_batch(x, mesh))
        assert [name for name, p in ours.named_parameters() if p.is_leaf] == names, way
        for name in names:
            got, expected = ours.get_parameter(name), plain.get_parameter(name)
            assert torch.allclose(got.grad.cpu(), expected.grad, atol=1e-5) and same(got.grad, got), (way, name)


class Tied(nn.Module):
    """A model whose class has a plan with tied weights, and with parts that this configuration has not."""

    _tp_plan: ClassVar = {"head": "colwise_rep", "embedding": "embedding_rowwise", "layers.*.gate": "colwise"}

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))  # type: ignore[no-any-return]  # calls of modules have no types


@PROGRAMS
def plans_of_models_that_tie_weights() -> None:
    plain = Tied()
    ours = distributed.parallelize_module(copy.deepcopy(plain), mesh_2_4(), "auto")
    x = torch.randint(0, 16, (4, 6))
    for model in (plain, ours):
        model(x.to(next(model.parameters()).device)).square().mean().backward()
    weight = ours.embedding.weight
    assert ours.head.weight is weight and weight.placements == (Replicate(), Shard(0))  # type: ignore[union-attr]  # a tensor
    torch.testing.assert_close(weight.grad.cpu(), plain.head.weight.grad)  # type: ignore[union-attr]  # a tensor


@PROGRAMS
def parametrized_weights_are_not_computed_by_a_plan() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    refused(lambda: distributed.parallelize_module(layer, mesh_2_4(), RowwiseParallel()), "parametrizations.weight")
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@PROGRAMS
def modules_on_meta() -> None:
    with torch.device("meta"):
        unmade = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.Embedding(64, 16))
    ours: Any = distributed.fully_shard(unmade, distributed.make_mesh(data=-1))
    weight = ours[0].weight
    assert weight.device.type == "jax" and weight.placements == (Shard(0),)
    assert 0.9 / 4 < weight.abs().max() <= 1 / 4  # kaiming_uniform of 16 inputs
    assert torch.equal(ours[1].weight.cpu(), torch.ones(64)) and not ours[1].bias.any()
    assert 0.9 < ours[2].weight.std() < 1.1
    assert ours[0](torch.ones(8, 16, device="jax")).isfinite().all()
    with torch.device("meta"):
        block = Block()
    tensor = distributed.parallelize_module(block, mesh_2_4(), PLAN)
    assert tensor.up.weight.placements == (Replicate(), Shard(0))  # type: ignore[union-attr]
    assert tensor(torch.ones(8, 16, device="jax")).isfinite().all()


@PROGRAMS
def models_on_meta_give_values_their_own_way() -> None:
    """By `_init_weights`, as those of transformers; where there is no way, a log line names the modules."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    class Model(nn.Sequential):
        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, Scale):
                module.weight.fill_(3.0)

    mesh, log = distributed.make_mesh(data=-1), logging.getLogger("jaten_ops.distributed.module_plans")
    for cls, value, lines in ((Model, 3.0, 0), (nn.Sequential, 0.0, 1)):
        with torch.device("meta"):
            model = cls(Scale())
        with mock.patch.object(log, "warning") as warned:
            distributed.fully_shard(model, mesh)
        assert model[0].weight.tolist() == [value] * 64 and model[0].weight.placements == (Shard(0),)  # type: ignore[union-attr]
        assert warned.call_count == lines and all("Scale" in call.args for call in warned.call_args_list)


@PROGRAMS
def experts_over_an_axis_of_their_own() -> None:
    mesh = distributed.make_mesh(expert=8)

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(8, 16, 32))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bd,edh->beh", x, self.up)

    plain = Experts()
    ours = distributed.parallelize_module(copy.deepcopy(plain), mesh, {"up": P("expert")}, axis="expert")
    assert ours.up.placements == (Shard(0),)
    assert {s.data.shape for s in jaten_ops.to_jax(ours.up).addressable_shards} == {(1, 16, 32)}
    x = torch.randn(4, 16)
    ours(x.to("jax")).sum().backward()
    plain(x).sum().backward()
    assert torch.allclose(ours.up.grad.cpu(), plain.up.grad, atol=1e-4) and same(ours.up.grad, ours.up)


@PROGRAMS
def styles_of_torch() -> None:
    mesh = distributed.make_mesh(model=-1)
    plain, x = Block(), torch.randn(8, 4, 16)
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "drop": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    }
    ours = distributed.parallelize_module(copy.deepcopy(plain), mesh, plan)
    assert ours.up.weight.placements == ours.up.bias.placements == (Shard(0),)
    assert ours.down.weight.placements == (Shard(1),) and ours.down.bias.placements == (Replicate(),)
    expected = plain(x).square().mean()
    expected.backward()
    for way, run in ways(ours).items():
        ours.zero_grad()
        assert abs(run(x.to("jax")).item() - expected.item()) < 1e-5, way
        assert torch.allclose(ours.up.weight.grad.cpu(), plain.up.weight.grad, atol=1e-5), way
    single = distributed.parallelize_module(nn.Linear(8, 16), mesh, ColwiseParallel())
    assert single.weight.placements == (Shard(0),)


@PROGRAMS
def a_style_leaves_parameters_as_another_entry_says() -> None:
    entries = {
        "up": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Shard(1)),
        "up.weight": P("model"),
    }
    for names in (("up", "up.weight"), ("up.weight", "up")):
        plan = {name: entries[name] for name in names}
        ours = distributed.parallelize_module(Block(), distributed.make_mesh(model=-1), plan)
        assert ours.up.weight.placements == (Shard(0),), names


@PROGRAMS
def errors_of_plans() -> None:
    mesh = distributed.make_mesh(model=-1)

    def plan(entry: Any, axis: str = "model") -> Callable[[], Any]:
        return lambda: distributed.parallelize_module(Block(), mesh, entry, axis=axis)

    refused(plan(PLAN, "tensor"), "'tensor'", "model")
    refused(lambda: distributed.fully_shard(Block(), mesh), "'data'", "model")
    refused(plan({"ups": "colwise"}), "'ups'", "names no")
    refused(plan({"layers.*.up": "colwise"}), "'layers.*.up'")
    refused(plan({"up.weights": P("model")}), "'up.weights'", "parameter")
    refused(plan({"up.weight": P("data")}), "'data'")
    refused(plan({"up.weight": P(None, None, "model")}), "dimension 2")
    refused(plan({"up.bias": P("model", None)}), "dimension 1")
    refused(plan({"norm": "colwise"}), "LayerNorm")
    refused(plan({"up": "columns"}), "'columns'", "colwise")
    refused(plan({"up": 3}), "3")
    refused(plan("auto"), "tp_plan")
    module = Block()
    refused(lambda: distributed.parallelize_module(module, mesh, {"up": "colwise", "up.bias": P("model", None)}))
    assert all(p.device.type == "cpu" for p in module.parameters())  # nothing moved


@PROGRAMS
def sizes_of_meshes() -> None:
    for axes in ({}, {"data": 3}, {"data": 16}, {"data": -1, "model": -1}, {"data": 0}, {"data": -1, "model": 3}):
        refused(lambda axes=axes: distributed.make_mesh(**axes), "8")  # type: ignore[misc]
    assert distributed.make_mesh(data=-1, model=2).shape == {"data": 4, "model": 2}
    assert distributed.make_mesh(a=2, b=2, c=2).size == len(jax.devices()) == 8


@PROGRAMS
def a_plan_keeps_optimizers_and_shared_parameters() -> None:
    block = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    block[1].weight = block[0].weight
    plain, optimizer = copy.deepcopy(block), torch.optim.SGD(block.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    ours = distributed.parallelize_module(block, distributed.make_mesh(model=-1), {"0": "colwise"})
    assert ours[1].weight is ours[0].weight
    assert ours[0].weight.placements == (Shard(0),)
    x = torch.randn(8, 16)
    for module, update, given in ((ours, optimizer, x.to("jax")), (plain, theirs, x)):
        module(given).square().sum().backward()
        update.step()
    assert_near(ours, plain)
