"""Programs that train modules in two processes: data parallel, fully sharded, tensor parallel."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import jaten_ops
from jaten_ops.errors import UnsupportedInputError

from .rank_ways import Way, trained, whole

WIDTH = 8


class Block(nn.Module):
    """A block of a transformer, pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // 2)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.down(nn.functional.gelu(self.up(self.other_norm(x))))


class Language(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Branches(nn.Module):
    """One of two layers, another in each process."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.one(x) if dist.get_rank() else self.other(x)


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


def _made(way: Way, make: Callable[[], nn.Module] = _layers) -> nn.Module:
    torch.manual_seed(0)
    return make().to(way.device)


def _batches(way: Way, *shape: int, of_rank: bool = True) -> list[Tensor]:
    torch.manual_seed(1 + (dist.get_rank() if of_rank else 0))
    return [torch.randn(*(shape or (4, WIDTH))).to(way.device) for _ in range(4)]


def _tokens(way: Way, *, of_rank: bool = True) -> list[Tensor]:
    torch.manual_seed(1 + (dist.get_rank() if of_rank else 0))
    return [torch.randint(12, (2, 6)).to(way.device) for _ in range(4)]


# Data parallel


def _replicated(way: Way, make: Callable[[], nn.Module] = _layers, **options: Any) -> Any:
    module = DistributedDataParallel(_made(way, make), **options)
    if make is Language:
        return trained(way, module, _tokens(way))
    return trained(way, module, _batches(way, 3, 2, 6, 6) if make is _images else _batches(way))


def _in_small_buckets(way: Way) -> Any:
    """Dynamo parts a graph at the buckets, of which the first has 1 MiB where nothing else is said."""
    with mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 256):
        return _replicated(way, Language, bucket_cap_mb=0.0005)


def _accumulated(way: Way) -> Any:
    module = DistributedDataParallel(_made(way))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    call = way(module)
    for at, x in enumerate(_batches(way)):
        if at % 2 == 0:
            with module.no_sync():
                call(x).square().mean().backward()
            continue
        call(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return module


def _synchronized(way: Way) -> Any:
    """`SyncBatchNorm`; torch has none on the CPU, where each process is given the whole batch."""
    torch.manual_seed(1)
    whole_batch = torch.randn(6, 2, 6, 6).to(way.device)
    layers = _made(way, _images)
    if way.device == "cpu":
        module, x = DistributedDataParallel(layers, broadcast_buffers=False), whole_batch
    else:
        module = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(layers))
        x = whole_batch.chunk(2)[dist.get_rank()]
    way(module)(x).square().mean().backward()
    norm = module.module[1]
    return norm.running_mean, norm.running_var, [p.grad for p in module.parameters()]


def _with_hook(hook: Any) -> Callable[[Way], Any]:
    def run(way: Way) -> Any:
        module = DistributedDataParallel(_made(way))
        module.register_comm_hook(None, hook)
        return trained(way, module, _batches(way))

    return run


def _whole_step(way: Way) -> Any:
    """Forward and loss are compiled in one, with the module inside."""
    module = DistributedDataParallel(_made(way))
    optimizer = torch.optim.AdamW(module.parameters(), 0.1)
    loss_of = way(lambda x: (module(x) - x).square().mean())
    losses = []
    for x in _batches(way):
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.detach())
    return losses, module


def _inner_compiled(way: Way) -> Any:
    """The module is compiled first, and DDP around it is not."""
    module = _made(way)
    if way.is_compiled:
        module.compile(backend="jaten")
    return trained(way, DistributedDataParallel(module), _batches(way), wrap=False)


def _redundancy(way: Way) -> Any:
    module = DistributedDataParallel(_made(way))
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=0.1)
    call = way(module)
    for x in _batches(way):
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()
    return module


def _uneven(way: Way) -> Any:
    module = DistributedDataParallel(_made(way))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    call = way(module)
    with dist.algorithms.join.Join([module]):
        for x in _batches(way)[: 3 + dist.get_rank()]:
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
    return list(module.parameters())


# Fully sharded


def _sharded(way: Way, **options: Any) -> nn.Module:
    module = _made(way, Language)
    for block in module.blocks:
        fully_shard(block, mesh=way.mesh(), **options)
    fully_shard(module, mesh=way.mesh(), **options)
    return module


def _fully_sharded(**options: Any) -> Callable[[Way], Any]:
    return lambda way: trained(way, _sharded(way, **options), _tokens(way))


def _blocks_compiled(way: Way) -> Any:
    module = _made(way, Language)
    for block in module.blocks:
        if way.is_compiled:
            block.compile(backend="jaten")
        fully_shard(block, mesh=way.mesh())
    fully_shard(module, mesh=way.mesh())
    return trained(way, module, _tokens(way), wrap=False)


def _hybrid(way: Way) -> Any:
    module = _made(way)
    fully_shard(module, mesh=way.mesh(2, 1))
    return trained(way, module, _batches(way))


def _accumulated_shards(way: Way) -> Any:
    module: Any = _sharded(way)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    call = way(module)
    for at, x in enumerate(_tokens(way)):
        module.set_requires_gradient_sync(at % 2 == 1)
        call(x).square().mean().backward()
        if at % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    return module


def _clipped(way: Way) -> Any:
    module = _sharded(way)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    call = way(module)
    norms = []
    for x in _tokens(way):
        call(x).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(module.parameters(), 0.01))
        optimizer.step()
        optimizer.zero_grad()
    return norms, module


def _from_meta(way: Way) -> Any:
    with torch.device("meta"):
        module: Any = Language()
    for block in module.blocks:
        fully_shard(block, mesh=way.mesh())
    fully_shard(module, mesh=way.mesh())
    module.to_empty(device=way.device)
    with torch.no_grad():
        for at, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.ones_like(parameter) * (0.01 * at - 0.1))
    return trained(way, module, _tokens(way))


# Tensor parallel


def _plan() -> dict[str, Any]:
    plan: dict[str, Any] = {part: ColwiseParallel() for part in ("q", "k", "v", "up")}
    return plan | {part: RowwiseParallel() for part in ("out", "down")}


def _parallel(way: Way) -> Any:
    module = parallelize_module(_made(way), way.mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return trained(way, module, _batches(way, of_rank=False))


def _parallel_language(way: Way) -> Any:
    module = _made(way, Language)
    for block in module.blocks:
        parallelize_module(block, way.mesh(), _plan())
    parallelize_module(
        module,
        way.mesh(),
        {
            "embed": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Replicate()),
        },
    )
    # half of its parameters are no DTensors: torch's optimizers take such a list one by one on the CPU only
    return trained(way, module, _tokens(way, of_rank=False), foreach=False)


def _along_sequence(way: Way) -> Any:
    layers = nn.Sequential
    module = _made(way, lambda: layers(nn.LayerNorm(WIDTH), _layers(), nn.LayerNorm(WIDTH)))
    plan = {
        "0": SequenceParallel(),
        "1": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "1.0": ColwiseParallel(),
        "1.2": RowwiseParallel(output_layouts=Shard(1)),
        "2": SequenceParallel(),
    }
    module = parallelize_module(module, way.mesh(), plan)
    batches = _batches(way, 2, 4, WIDTH, of_rank=False)
    return trained(way, module, batches, loss=lambda out: whole_output(out).square().mean())


def whole_output(out: Any) -> Tensor:
    found: Tensor = out.full_tensor()
    return found


def _both(way: Way) -> Any:
    """Tensor parallel over one dimension of the mesh, fully sharded over the other."""
    mesh = way.mesh(1, 2)
    module = parallelize_module(_made(way), mesh["inner"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(module, mesh=mesh["outer"])
    return trained(way, module, _batches(way, of_rank=False))


def _state(way: Way) -> Any:
    module = _sharded(way)
    other = copy.deepcopy(module.state_dict())
    trained(way, module, _tokens(way))
    module.load_state_dict(other)
    return whole(other), module


def _saved(way: Way) -> Any:
    """Saved before the training, in parts, and loaded after it."""
    module = _sharded(way)
    folder = [tempfile.mkdtemp()] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save({"model": module.state_dict()}, checkpoint_id=folder[0])
    trained(way, module, _tokens(way))
    state = {"model": module.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    module.load_state_dict(state["model"])
    dist.barrier()
    shutil.rmtree(str(folder[0]), ignore_errors=True)
    return module


def _refused(way: Way) -> None:
    """A step is one executable, which cannot be parted at a collective."""
    if way.device == "cpu":
        return
    x = _batches(way)[0]
    replicated = DistributedDataParallel(_made(way))
    parted = fully_shard(_made(way), mesh=way.mesh())
    for module, message in ((replicated, "torch.compile parts a program there"), (parted, "got a DTensor")):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)

        def step(x: Tensor, module: Any = module, optimizer: Any = optimizer) -> None:
            module(x).sum().backward()
            optimizer.step()

        compiled = jaten_ops.compile_step(step)
        with pytest.raises(UnsupportedInputError, match=message):
            for _ in range(2):  # the first call may run as it is written
                compiled(x)


PROGRAMS: dict[str, Callable[[Way], Any]] = {
    "DDP": _replicated,
    "DDP of a language model": lambda way: _replicated(way, Language),
    "DDP of images": lambda way: _replicated(way, _images),
    "DDP with unused parameters": lambda way: _replicated(way, Branches, find_unused_parameters=True),
    "DDP of a static graph": lambda way: _replicated(way, static_graph=True),
    "DDP with bucket views": lambda way: _replicated(way, gradient_as_bucket_view=True),
    "DDP in small buckets": _in_small_buckets,
    "DDP without sync": _accumulated,
    "DDP with a hook": _with_hook(default_hooks.allreduce_hook),
    "DDP with a float16 hook": _with_hook(default_hooks.fp16_compress_hook),
    "DDP inside": _whole_step,
    "DDP outside": _inner_compiled,
    "DDP with SyncBatchNorm": _synchronized,
    "DDP with ZeRO": _redundancy,
    "DDP of uneven inputs": _uneven,
    "FSDP2": _fully_sharded(),
    "FSDP2 that stays whole": _fully_sharded(reshard_after_forward=False),
    "FSDP2 in bfloat16": _fully_sharded(
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ),
    "FSDP2 offloaded": _fully_sharded(offload_policy=CPUOffloadPolicy()),
    "FSDP2 of compiled blocks": _blocks_compiled,
    "FSDP2 hybrid": _hybrid,
    "FSDP2 without sync": _accumulated_shards,
    "FSDP2 clipped": _clipped,
    "FSDP2 from meta": _from_meta,
    "FSDP2 state": _state,
    "FSDP2 saved": _saved,
    "tensor parallel": _parallel,
    "tensor parallel language model": _parallel_language,
    "sequence parallel": _along_sequence,
    "tensor parallel and FSDP2": _both,
    "compile_step": _refused,
}
