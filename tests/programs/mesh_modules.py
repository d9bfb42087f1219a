"""Programs of modules and optimizers over a mesh of eight devices: each asserts what must hold."""

from __future__ import annotations

import copy
import inspect
import io
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch._dynamo.testing
import torch.nn.functional as F
from jax.sharding import PartitionSpec
from torch import Tensor, nn

import jaten_ops
from jaten_ops import distributed

from .mesh_models import bytes_on_fullest, counted, same
from .mesh_programs import Programs

P = PartitionSpec
PROGRAMS = Programs()


class Block(nn.Module):
    """A norm, two matrices and a dropout, with a buffer that counts calls."""

    calls: Tensor

    def __init__(self, p: float = 0.0, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(p)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden: Tensor = self.drop(self.down(F.gelu(self.up(self.norm(x)))))
        return x + hidden


def mesh_2_4() -> Any:
    return distributed.make_mesh(data=2, model=4)


PLAN = {"up": "colwise", "down": "rowwise"}


def split(module: nn.Module) -> nn.Module:
    """A block partitioned over both axes of the mesh."""
    return distributed.fully_shard(distributed.parallelize_module(module, mesh_2_4(), PLAN), mesh_2_4())


def batch(n: int = 8) -> tuple[Tensor, Any]:
    x = torch.randn(n, 16)
    return x, distributed.distribute_batch(x, mesh_2_4())


def ways(module: nn.Module) -> dict[str, Callable[..., Tensor]]:
    """A module's gradients by each way, as functions of a batch."""
    compiled = torch.compile(module, backend="jaten")

    def step(x: Tensor) -> Tensor:
        loss = module(x).square().mean()
        loss.backward()
        return loss.detach()

    def compiled_graph(x: Tensor) -> Tensor:
        loss: Tensor = compiled(x).square().mean()
        loss.backward()
        return loss.detach()

    return {"eager": step, "compile": compiled_graph, "step": jaten_ops.compile_step(step, module)}


def assert_near(got: nn.Module, expected: nn.Module, atol: float = 1e-5) -> None:
    theirs = expected.state_dict()
    for name, tensor in got.state_dict().items():
        assert torch.allclose(tensor.cpu(), theirs[name], atol=atol), name


@PROGRAMS
def dropout_has_the_mask_of_one_device() -> None:
    whole, x = nn.Dropout(0.5), torch.ones(8, 64)
    one = x.to("jax")
    for placements in (P("data"), P("data", "model"), None):
        ours = distributed.distribute_tensor(x, mesh_2_4(), placements)
        for way in ("eager", "compile", "step"):
            torch._dynamo.reset()
            call: Any = whole
            if way != "eager":
                call = torch.compile(whole, backend="jaten") if way == "compile" else jaten_ops.compile_step(whole)
            results = []
            for given in (one, ours):
                call(given)  # compiled
                torch.manual_seed(7)
                results.append(call(given).cpu())
            assert torch.equal(*results), (way, placements)
            assert len({tuple(row.tolist()) for row in results[0]}) == 8, "rows have one mask"


@PROGRAMS
def batches_that_no_axis_divides() -> None:
    plain = Block()
    ours = split(copy.deepcopy(plain))
    for n in (10, 1):
        x, given = batch(n)
        for way, run in ways(ours).items():
            plain.zero_grad(), ours.zero_grad()
            expected = plain(x).square().mean()
            expected.backward()
            assert abs(run(given).item() - expected.item()) < 1e-5, (way, n)
            for name, parameter in plain.named_parameters():
                got = ours.get_parameter(name)
                assert torch.allclose(got.grad.cpu(), parameter.grad, atol=1e-5), (way, n, name)
                assert same(got.grad, got), (way, n, name)


@PROGRAMS
def state_dicts() -> None:
    plain, other = Block(), Block()
    ours = split(copy.deepcopy(plain))
    assert_near(ours, plain)
    before = {n: p.sharding for n, p in ours.named_parameters()}
    for state in (other.state_dict(), split(copy.deepcopy(other)).state_dict(), other.to("jax").state_dict()):
        ours.load_state_dict(plain.state_dict())
        ours.load_state_dict(state)
        assert_near(ours, copy.deepcopy(other).cpu())
        assert {n: p.sharding for n, p in ours.named_parameters()} == before
    plain.load_state_dict(ours.state_dict())
    assert_near(ours, plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for saved in (ours.state_dict(), ours):
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=not isinstance(saved, nn.Module))
            state = loaded.state_dict() if isinstance(loaded, nn.Module) else loaded
            for name, tensor in plain.state_dict().items():
                assert torch.equal(state[name].cpu(), tensor), name
    file.seek(0)
    state = torch.load(file, map_location="cpu", weights_only=False).state_dict()
    assert torch.equal(state["up.weight"], plain.up.weight)


@PROGRAMS
def optimizers_are_saved_and_loaded() -> None:
    x, given = batch()
    plain = Block()
    first = split(copy.deepcopy(plain))
    second = split(copy.deepcopy(plain))

    def trained(module: nn.Module, optimizer: Any, x: Tensor, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

    one = torch.optim.AdamW(first.parameters(), lr=1e-2, eps=1e-3)
    two = torch.optim.AdamW(second.parameters(), lr=1e-2, eps=1e-3)
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-3)
    trained(first, one, given, 2)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": one.state_dict()}, file)
    for where in (None, "cpu"):
        file.seek(0)
        state = torch.load(file, map_location=where)
        second.load_state_dict(state["model"])
        two.load_state_dict(state["optimizer"])
        trained(second, two, given, 2)
        for p in second.parameters():
            for name, value in two.state[p].items():
                assert value.dim() == 0 or same(value, p), (where, name)
    trained(plain, theirs, x, 2)
    theirs.load_state_dict(copy.deepcopy(theirs.state_dict()))
    trained(plain, theirs, x, 2)
    assert_near(second, plain, 1e-4)
    plain_state = two.state_dict()["state"][0]["exp_avg"]
    assert torch.allclose(plain_state.cpu(), theirs.state_dict()["state"][0]["exp_avg"], atol=1e-4)


@PROGRAMS
def bytes_a_device() -> None:
    plain = nn.Sequential(Block(width=128), Block(width=128))
    ours = distributed.fully_shard(plain, distributed.make_mesh(data=-1))
    optimizer = torch.optim.AdamW(ours.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        ours(distributed.distribute_batch(torch.ones(8, 128), distributed.make_mesh(data=-1))).sum().backward()
        optimizer.step()
    parameters = list(ours.parameters())
    states = [t for p in parameters for t in optimizer.state[p].values() if t.dim()]
    gradients: list[Any] = [p.grad for p in parameters]
    for tensors in ([*parameters, *states], gradients):
        assert bytes_on_fullest(tensors) <= 1.1 / 8 * sum(t.nbytes for t in tensors)


def clipped_step(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """A step with clipping and AdamW, which returns what the module does."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        out: Tensor = module(x)
        F.mse_loss(out, y).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return out.detach()

    return step


@PROGRAMS
def microbatches() -> None:
    """Each device splits the piece of the batch that it has: there is nothing but the sums of gradients."""
    x, given = torch.randn(64, 16), torch.randn(64, 16)
    for partition in (
        lambda m, mesh: distributed.parallelize_module(m, mesh, {}, axis="data"),
        distributed.fully_shard,
    ):
        plain, mesh = Block(), distributed.make_mesh(data=8)
        ours = partition(copy.deepcopy(plain), mesh)

        run, batch = (
            jaten_ops.compile_step(clipped_step(ours), microbatches=4),
            distributed.distribute_batch((x, given), mesh),
        )
        step = clipped_step(plain)
        for _ in range(3):
            torch.testing.assert_close(run(*batch).cpu(), step(x, given))
        found = distributed.collectives(run, *batch)
        assert not found["all-to-all"].number and not found["collective-permute"].number
        assert partition is distributed.fully_shard or not found["all-gather"].number
        assert ours.calls == 12
    try:
        run(*distributed.distribute_batch((x[:16], given[:16]), mesh))
    except jaten_ops.UnsupportedInputError as error:
        assert "parts of 4, over 8" in str(error)
    else:
        raise AssertionError("parts that the devices cannot have")


@PROGRAMS
def sizes_that_are_dynamic() -> None:
    plain, mesh = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), mesh_2_4()
    ours = distributed.parallelize_module(copy.deepcopy(plain), mesh, {}, axis="data")
    counter = torch._dynamo.testing.CompileCounterWithBackend("jaten")
    compiled = torch.compile(ours, backend=counter, dynamic=True)
    counts = []
    for n in (8, 16, 24):
        x = torch.randn(n, 6, 16)
        torch.testing.assert_close(
            compiled(distributed.distribute_batch(x, mesh)).cpu(), plain(x), atol=1e-5, rtol=1e-5
        )
        counts.append(counter.frame_count)
    assert counts == [counts[0]] * 3


@PROGRAMS
def copies() -> None:
    ours = split(Block())
    copied = copy.deepcopy(ours)
    for (name, p), q in zip(ours.named_parameters(), copied.parameters(), strict=True):
        assert same(p, q), name
    _, given = batch()
    copied(given).sum().backward()
    for name, q in copied.named_parameters():
        assert same(q.grad, q), name
    assert all(p.grad is None for p in ours.parameters())
    with torch.no_grad():
        copied.up.weight.zero_()
        copied.up.bias.zero_()
    assert ours.up.weight.abs().sum() > 0
    assert not copied.up(given).any() and ours.up(given).any()  # what is gathered is each one's own


@PROGRAMS
def modules_are_pickled() -> None:
    ours = split(Block())
    _, given = batch()
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.allclose(loaded(given), ours(given), atol=1e-6)
    with torch.no_grad():
        loaded.up.weight.zero_()
        loaded.up.bias.zero_()
    assert not loaded.up(given).any() and ours.up(given).any()
    assert inspect.signature(ours.up.forward) == inspect.signature(nn.Linear(1, 1).forward)


@PROGRAMS
def modules_move_back() -> None:
    plain = Block()
    ours = split(copy.deepcopy(plain)).cpu()
    x = torch.randn(8, 16)
    for module in (ours, plain):
        module(x).sum().backward()
    assert torch.equal(ours.up.weight.grad, plain.up.weight.grad)
    assert_near(ours.to("jax"), plain)
    half = split(copy.deepcopy(plain)).bfloat16()
    half(batch()[1].bfloat16()).sum().backward()
    for name, p in half.named_parameters():
        assert p.dtype == p.grad.dtype == torch.bfloat16 and same(p.grad, p), name


@PROGRAMS
def autocast() -> None:
    plain = Block()
    ours = split(copy.deepcopy(plain))
    x, given = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = plain(x)
    expected.float().square().mean().backward()

    def step(t: Tensor) -> Tensor:
        with torch.autocast("jax", dtype=torch.bfloat16):
            result = ours(t)
        result.float().square().mean().backward()
        return result.detach()

    compiled = torch.compile(ours, backend="jaten")

    def compiled_graph(t: Tensor) -> Tensor:
        with torch.autocast("jax", dtype=torch.bfloat16):
            result: Tensor = compiled(t)
        result.float().square().mean().backward()
        return result.detach()

    for run in (step, compiled_graph, jaten_ops.compile_step(step, ours)):
        ours.zero_grad()
        got = run(given)
        assert got.dtype == expected.dtype
        assert torch.allclose(got.cpu().float(), expected.detach().float(), atol=0.05)
        for name, p in ours.named_parameters():
            assert p.grad.dtype == torch.float32 and same(p.grad, p), name
            assert torch.allclose(p.grad.cpu(), plain.get_parameter(name).grad, atol=0.02), name


@PROGRAMS
def clipped_and_accumulated_gradients() -> None:
    plain = Block()
    ours = split(copy.deepcopy(plain))
    inputs = [torch.randn(8, 16) * 3 for _ in range(2)]

    def make(module: nn.Module, way: str) -> Callable[[list[Tensor]], Tensor]:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        call = torch.compile(module, backend="jaten") if way == "compile" else module

        def step(parts: list[Tensor]) -> Tensor:
            optimizer.zero_grad()
            for part in parts:
                (call(part).square().mean() / len(parts)).backward()
            norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            return norm.detach()

        return jaten_ops.compile_step(step, module, optimizer) if way == "step" else step

    for way in ("eager", "compile", "step"):
        theirs, mine = copy.deepcopy(plain), split(copy.deepcopy(ours))
        run, beside = make(mine, way), make(theirs, "eager")
        given = distributed.distribute_batch(inputs, mesh_2_4())
        for _ in range(3):
            assert abs(run(given).item() - beside(inputs).item()) < 1e-4, way
        assert_near(mine, theirs, 1e-4)
        for name, p in mine.named_parameters():
            assert same(p.grad, p), (way, name)


@PROGRAMS
def frozen_parameters_and_lora() -> None:
    plain = Block()
    plain.up.requires_grad_(False)
    ours = split(copy.deepcopy(plain))
    x, given = batch()
    plain(x).sum().backward()
    for way, run in ways(ours).items():
        run(given)
        assert ours.up.weight.grad is None and not ours.up.weight.requires_grad, way
        assert same(ours.down.weight.grad, ours.down.weight), way


@PROGRAMS
def hooks_do_not_recompile() -> None:
    ours = split(Block())
    _, given = batch()
    for way, run in ways(ours).items():
        for i in range(4):
            ours.zero_grad()
            with counted() as programs:
                run(given)
            assert i < 2 or not programs, (way, programs)


@PROGRAMS
def threads_share_modules() -> None:
    plain = nn.Sequential(nn.Linear(16, 64), nn.TransformerEncoderLayer(64, 4, 64, dropout=0.0, batch_first=True))
    names = {"in_proj_weight": P("model", None), "out_proj.weight": P(None, "model")}
    plan = {f"1.self_attn.{name}": placement for name, placement in names.items()}
    ours = distributed.fully_shard(distributed.parallelize_module(copy.deepcopy(plain), mesh_2_4(), plan), mesh_2_4())
    before = dict(ours.named_parameters())
    x = torch.randn(8, 4, 16)
    given, expected = distributed.distribute_batch(x, mesh_2_4()), plain(x)

    def run(_: int) -> Tensor:
        return ours(given).detach().cpu()

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(run, range(12)):
            assert torch.allclose(found, expected, atol=1e-5)
    assert all(p is before[name] for name, p in ours.named_parameters())
