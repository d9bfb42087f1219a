"""The cost of steps over meshes that are not there: as measured over eight devices, and of models of any size."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
import transformers
from jax.sharding import AbstractMesh
from torch import Tensor, nn
from torch.distributed.tensor import Shard

import jaten_ops
from benchmarks import mesh_llama
from jaten_ops import distributed
from jaten_ops.distributed import Traffic
from jaten_ops.distributed.estimates import Estimate
from jaten_ops.errors import UnsupportedInputError

from ..harness import mesh_process
from ..harness.crossings import crossed_for
from ..programs.mesh_estimates import ENDS
from ..programs.mesh_models import MODELS, OPTIMIZERS, PLANS

MESH = AbstractMesh((4, 2), ("data", "model"))
OFTEN = ("mlp",)


@pytest.mark.exhaustive
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "plan", "optimizer", "gradients"), crossed_for(OFTEN, MODELS, PLANS, OPTIMIZERS, ENDS)
)
def test_an_estimate_is_what_xla_says_of_the_step_over_devices(
    name: str, plan: str, optimizer: str, gradients: str
) -> None:
    found = mesh_process.found("estimates", name, plan, optimizer, gradients)
    assert found["absent"] == found["measured"]
    assert found["there"] == found["measured"]


def _part(tensor: Any) -> int:
    """The bytes of a tensor on one device."""
    return torch.empty(tensor.sharding.shard_shape(tuple(tensor.shape)), dtype=tensor.dtype, device="meta").nbytes


@pytest.mark.exhaustive
@pytest.mark.parametrize("layers", [2, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_a_large_model_over_256_devices(layers: int) -> None:
    mesh = AbstractMesh((16, 16), ("data", "model"))
    model = mesh_llama.llama(mesh, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = mesh_llama.some_tokens(mesh, 64, 1024)
    found = distributed.estimate(mesh_llama.training_step(model, optimizer), tokens, mesh=mesh)
    parameters, buffers = [*model.parameters()], [*model.buffers()]
    states = 2 * sum(map(_part, parameters)) + 4 * len(parameters)  # two moments and a count
    least = sum(map(_part, parameters)) + states + _part(tokens)
    # and the numbers of the optimizer; of the buffers what the model reads
    assert least <= found.arguments <= least + sum(map(_part, buffers)) + 64
    assert found.collectives["all-gather"].number > 7 * layers  # FSDP gathers each matrix
    assert found.total < 2**30 + 3 * layers * 2**30
    assert not optimizer.state


# the sizes, the layers, the mesh, and the shape of the tokens
SMALL = (mesh_llama.SMALL, 2, (2, 4), (4, 64))
LARGE = (mesh_llama.SIZES_OF_8B, 4, (8, 8), (16, 1024))
_SIZES = [pytest.param(*given, marks=pytest.mark.exhaustive) for given in (SMALL, LARGE)]


@pytest.mark.parametrize(("sizes", "layers", "axes", "shape"), _SIZES, ids=("small", "sizes of 8B"))
def test_a_step_needs_no_more_than_in_plain_jax(
    sizes: dict[str, int], layers: int, axes: tuple[int, int], shape: tuple[int, int]
) -> None:
    ours, by_hand = mesh_llama.compared(sizes, layers, axes, *shape)
    assert ours.arguments == pytest.approx(by_hand.arguments, abs=2**14)  # torch counts steps for each parameter
    assert ours.temporaries <= 1.01 * by_hand.temporaries  # 1.001 for the small sizes, below 1 for the others
    for kind, (_, size) in ours.collectives.items():
        assert size <= 1.01 * by_hand.collectives[kind].bytes + 2**12, kind  # besides, sums of single numbers


@pytest.mark.exhaustive
def test_plain_jax_computes_the_same() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, num_hidden_layers=1)  # type: ignore[arg-type]  # its other parameters are no numbers
    model, tokens = transformers.LlamaForCausalLM(config), torch.randint(32, (2, 5))
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    found = mesh_llama.loss_by_hand(config, weights, tokens.numpy())
    assert float(found) == pytest.approx(model(input_ids=tokens, labels=tokens).loss.item(), rel=1e-5)


@pytest.mark.exhaustive
def test_checkpoints_are_computed_again_where_their_gradients_are() -> None:
    mesh = AbstractMesh((2, 4), ("data", "model"))
    tokens, found = mesh_llama.some_tokens(mesh, 8, 128), []
    for checkpointed in (False, True):
        model: Any = mesh_llama.llama(mesh, 6, mesh_llama.SMALL).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        found.append(mesh_llama.of_jaten(model, tokens, mesh).temporaries)
    without, temporaries = found
    assert temporaries < 0.6 * without  # of each layer but one only what it takes is kept


def _parts() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.5), nn.Linear(128, 64))
    distributed.fully_shard(model, MESH)
    batch: Tensor = distributed.distribute_batch(torch.ones(8, 64), MESH)
    return model, batch


# ways of an optimizer, given the model, to be a part of a step: each returns the step
def _plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    scaler = torch.amp.GradScaler("jax")  # type: ignore[attr-defined]  # mypy takes the older class

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _found_late(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    run = functools.partial(getattr, optimizer, "step")

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        run()()
        model.zero_grad()
        return loss.detach()

    return step


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", [_plain, _scaled, _found_late], ids=lambda way: way.__name__.removeprefix("_"))
def test_states_that_are_not_there_count(way: Callable[..., Any]) -> None:
    model, batch = _parts()
    optimizer = torch.optim.AdamW(model.parameters())
    found = distributed.estimate(way(model, optimizer), batch, mesh=MESH)
    least = 3 * sum(map(_part, model.parameters())) + _part(batch)
    assert least < found.arguments < least + 128
    assert not optimizer.state


def test_nothing_changes() -> None:
    model, batch = _parts()
    optimizer, seen = torch.optim.Adam(model.parameters(), lr=0.5), [0]
    memory = torch.zeros(3)

    def step(x: Tensor) -> Tensor:
        loss = model(x + torch.rand(8, 64)).square().mean()  # drawn on the CPU
        loss.backward()
        optimizer.step()
        seen.append(len(seen))
        memory.add_(1)
        model.last = loss  # type: ignore[assignment]  # it is kept from one call to the next
        return loss

    before, shardings = torch.get_rng_state(), [p.sharding for p in model.parameters()]  # type: ignore[attr-defined]
    distributed.estimate(step, batch, mesh=MESH)
    assert not optimizer.state and seen == [0] and not memory.any() and not hasattr(model, "last")
    assert all(p.grad is None and p.is_leaf for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), before)
    assert [p.sharding for p in model.parameters()] == shardings  # type: ignore[attr-defined]
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_a_model_with_values_keeps_them_where_they_are() -> None:
    model = nn.Linear(64, 64).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = jaten_ops.compile_step(_plain(model, optimizer))
    x = torch.ones(8, 64)
    expected = step(x).item()
    weight, momentum = model.weight.clone(), optimizer.state[model.weight]["momentum_buffer"].clone()
    found = distributed.estimate(step, x, mesh=MESH)
    assert found.arguments >= 2 * 4 * 65 * 64 + x.nbytes  # copied to each device
    assert torch.equal(model.weight, weight) and len(model.weight.sharding.device_set) == 1  # type: ignore[union-attr,operator]
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], momentum)
    assert step(x).item() < expected


def test_arguments_of_any_device() -> None:
    model, _ = _parts()
    model.eval()
    found = [
        distributed.estimate(model, torch.ones(8, 64, device=device), mesh=MESH) for device in ("cpu", "meta", "jax")
    ]
    assert found[0] == found[1] == found[2]
    placed = distributed.estimate(model, distributed.distribute_batch(torch.ones(8, 64), MESH), mesh=MESH)
    assert found[0].arguments - placed.arguments == 8 * 64 * 4 * 3 // 4


def test_values_are_placed_within_the_step() -> None:
    q, k, v = (distributed.distribute_batch(torch.ones(4, 2, 16, 8), MESH) for _ in range(3))
    ring = functools.partial(distributed.context_parallel_attention, mesh=MESH, axis="model")
    found = distributed.estimate(ring, q, k, v, mesh=MESH)
    assert found.collectives["collective-permute"].number

    def placed(x: Tensor) -> Tensor:
        return distributed.constrain(x, MESH, {"data": Shard(0)}) * 2

    part = distributed.estimate(placed, torch.ones(16, 16, device="jax"), mesh=MESH)
    assert part.arguments == 1024 and part.outputs == 256


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 2048])
def test_meshes_of_other_sizes(size: int) -> None:
    mesh = AbstractMesh((size,), ("data",))
    x = distributed.distribute_batch(torch.empty(4096, 2), mesh)
    found = distributed.estimate(lambda x: x.sum(), x, mesh=mesh)
    assert found.arguments == 4096 * 2 * 4 // size
    assert found.collectives["all-reduce"].number == (size > 1)


def _wrong(name: str) -> Any:
    model, batch = _parts()
    calls: dict[str, Callable[[], Any]] = {
        "reads": lambda: distributed.estimate(lambda x: x.sum().item(), batch, mesh=MESH),
        "decides": lambda: distributed.estimate(lambda x: x if x.sum() > 1 else -x, batch, mesh=MESH),
        "another mesh": lambda: distributed.estimate(model, batch, mesh=AbstractMesh((16,), ("data",))),
        "a mesh of devices": lambda: distributed.estimate(model, batch, mesh=distributed.make_mesh(data=-1)),
        "too many": lambda: distributed.estimate(torch.sum, batch, mesh=AbstractMesh((4096,), ("data",))),
        "unmoved": lambda: distributed.estimate(nn.Linear(64, 64), batch, mesh=MESH),
        "no axis": lambda: distributed.fully_shard(nn.Linear(4, 4), MESH, axis="expert"),
        "no axis of a batch": lambda: distributed.distribute_batch(torch.ones(4), MESH, axis="expert"),
    }
    return calls[name]()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reads", "reads the value"),
        ("decides", "reads the value"),
        ("another mesh", "that of the step's tensors"),
        ("a mesh of devices", "that of the step's tensors"),
        ("too many", "at most 2,048"),
        ("unmoved", "one on cpu"),
        ("no axis", "'expert'"),
        ("no axis of a batch", "'expert'"),
    ],
)
def test_what_cannot_be_estimated(name: str, words: str) -> None:
    with pytest.raises(UnsupportedInputError, match=re.escape(words)):
        _wrong(name)


def test_two_meshes_in_one_step() -> None:
    other = distributed.distribute_batch(torch.ones(16, 64), AbstractMesh((16,), ("data",)))
    model, _ = _parts()
    with pytest.raises(RuntimeError, match="same mesh"):
        distributed.estimate(model, other, mesh=MESH)


def test_the_text_of_an_estimate() -> None:
    found = Estimate(3 * 2**20, 12, 5 * 2**30, {"all-reduce": Traffic(2, 2048), "all-gather": Traffic(0, 0)})
    assert repr(found).splitlines() == [
        "on each device",
        "arguments:                 3 MiB",
        "outputs:                    12 B",
        "temporaries:             5.0 GiB",
        "total:                   5.0 GiB",
        "all-reduce:                2 KiB in 2",
    ]
    assert found.total == 3 * 2**20 + 12 + 5 * 2**30


def test_devices_of_jax_are_as_before() -> None:
    model, batch = _parts()
    before = jax.devices()
    distributed.estimate(model.eval(), batch, mesh=MESH)
    assert jax.devices() == before
    assert torch.ones(2, device="jax").add(0.37).sharding.device_set == {before[0]}  # type: ignore[attr-defined]  # on the device
