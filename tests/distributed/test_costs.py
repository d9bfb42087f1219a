"""The collectives of compiled programs: of a text whose collectives are known, and beside plain JAX's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jaten_ops
from jaten_ops.distributed import collectives
from jaten_ops.distributed.costs import KINDS, traffic_of

from ..harness import mesh_process
from ..programs import mesh_partitioned

# the line of a program, its kind, its bytes
LINES = {
    "one array": ("%a = f32[8,16]{1,0} all-reduce(%x), channel_id=1, to_apply=%add", "all-reduce", 512),
    "several": ("%a = (f32[8]{0}, bf16[4,2]{1,0}) all-reduce(%x, %y), channel_id=1", "all-reduce", 48),
    "a scalar": ("%a = pred[] all-reduce(%x), channel_id=1", "all-reduce", 1),
    "gathered": ("ROOT %a = s64[8,4]{1,0} all-gather(s64[1,4]{1,0} %x), dimensions={0}", "all-gather", 256),
    "scattered": ("%a = f32[2]{0} reduce-scatter(f32[16]{0} %x), dimensions={0}", "reduce-scatter", 64),
    "started": ("%a = (f32[2]{0}, f32[16]{0}) all-gather-start(f32[2]{0} %x), dimensions={0}", "all-gather", 64),
    "exchanged": ("%a = f32[4,4]{1,0} all-to-all(%x), dimensions={1}", "all-to-all", 64),
    "passed on": ("%a = c64[4]{0} collective-permute(%x), source_target_pairs={{0,1}}", "collective-permute", 32),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_counted(name: str) -> None:
    line, kind, size = LINES[name]
    text = f'ENTRY %main {{\n  {line}\n  %b = f32[8]{{0}} add(%a, %a), metadata={{op_name="all-reduce(x)"}}\n}}'
    found = traffic_of(SimpleNamespace(as_text=lambda: text))  # type: ignore[arg-type]  # all that it is asked
    assert found == {k: (1, size) if k == kind else (0, 0) for k in KINDS}


def test_a_program_of_one_device_has_none() -> None:
    assert set(collectives(torch.sum, torch.ones(4, device="jax")).values()) == {(0, 0)}


def test_a_step_is_compiled_and_not_run() -> None:
    weight = torch.ones(3, device="jax", requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.5)
    seen: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (weight * x).sum()
        loss.backward()
        optimizer.step()
        seen.append(1)
        return loss

    compiled = jaten_ops.compile_step(step)
    compiled(torch.ones(3, device="jax"))

    def state() -> list[Any]:
        gradient = weight.grad
        assert gradient is not None
        return [weight.tolist(), gradient.tolist(), optimizer.state[weight]["exp_avg"].tolist(), list(seen)]

    before = state()
    collectives(compiled, torch.ones(3, device="jax"))
    assert state() == before


# the rows of `benchmarks.collectives`, which only the process with eight devices may import
OFTEN = ("FSDP", "tensor", "FSDP x tensor", "sequence", "experts, by indices", "encoder, data")
SELDOM = (
    "data", "data x tensor", "data x sequence", "experts, by a mask",
    "data x sequence, checkpoints", "encoder, FSDP", "convolutions, data", "convolutions, FSDP",
)  # fmt: skip
# the temporaries, beside those of plain JAX: torch's indices are int64, JAX's int32
LARGER = {"experts, by indices": 1.3}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("plan", [*OFTEN, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in SELDOM)])
def test_a_step_costs_what_plain_jax_does(plan: str) -> None:
    (found, size), (expected, size_by_hand) = mesh_process.found("collectives", plan)
    assert any(number for number, _ in expected.values())
    # XLA joins sums of values that it finds close to each other; and a check of indices is one more, of a few bytes
    sums, sums_by_hand = found.pop("all-reduce"), expected.pop("all-reduce")
    assert found == expected and sums[0] <= sums_by_hand[0] + 1
    assert sums[1] <= 1.01 * sums_by_hand[1]
    assert size <= LARGER.get(plan, 1.01) * size_by_hand


def test_the_packed_weight_of_attention_moves_and_no_values_do() -> None:
    (found, size), (expected, size_by_hand) = mesh_process.found("collectives", "encoder, data x tensor")
    # a device has rows of queries and of keys: plain JAX sends the results of others, jaten their parts of the weight
    assert found["all-gather"][1] <= expected["all-gather"][1]  # of biases
    moves = ("all-to-all", "collective-permute")
    assert sum(found[kind][1] for kind in moves) < sum(expected[kind][1] for kind in moves)
    assert sum(of_kind for _, of_kind in found.values()) < sum(of_kind for _, of_kind in expected.values())
    assert size <= 1.05 * size_by_hand


# operators along dimensions that are whole on each device: what is partitioned stays so, in both directions
OFTEN_OPERATORS = (
    "max_pool 2d", "max_pool, large windows 1d", "adaptive_max_pool 2d", "max_unpool 2d", "group_norm 2d",
    "grid_sample bilinear", "cross_entropy 2d", "scatter", "cumsum", "attention", "matmul", "linear, sequence",
    "instance_norm 2d", "multi_head_attention", "unfold along", "one_hot",
    "embedding_bag, weights",
)  # fmt: skip


def _operator(name: str) -> object:
    return pytest.param(name, marks=[] if name in OFTEN_OPERATORS else [pytest.mark.exhaustive])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*map(_operator, mesh_partitioned.ROWS)])
def test_nothing_partitioned_is_gathered(name: str) -> None:
    found = mesh_process.found("partitioned", name)
    assert not found["kinds"]
    assert found["sums"] <= found["allowed"]
