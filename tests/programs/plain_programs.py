"""Programs on plain CPU tensors, run as a script: prints what they answer, as JSON, with and without jaten imported.

`python tests/programs/plain_programs.py never|first|between NAME ...` runs those, and once more but with "first".
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def _trained(model: nn.Module) -> list[Tensor]:
    """The parameters after two steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 3)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    full = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters())
    return [p.detach() for p in full]


def devices(folder: Path) -> Any:
    """Queries of programs and libraries that choose a device themselves."""
    accelerator = torch.accelerator.current_accelerator()  # of a torch built for CUDA also where there is no GPU
    usable = torch.accelerator.current_accelerator(check_available=True)
    return (
        str(accelerator), str(usable),
        torch.accelerator.is_available(), torch.accelerator.device_count(), torch.get_device_module().__name__,
        str(torch._C._get_accelerator()), str(torch.get_default_device()), torch._utils._get_available_device_type(),
        str(torch.ones(1, device=usable or "cpu").device), torch.cuda.is_available(),
        torch.utils.checkpoint.DefaultDeviceType.get_device_type(),
    )  # fmt: skip


def questions_in_compiled_functions(folder: Path) -> Any:
    @torch.compile(backend="eager", fullgraph=True)
    def program(x: Tensor) -> Tensor:
        return x + len(torch.get_device_module().__name__) + int(torch.accelerator.current_accelerator() is None)

    return program(torch.ones(2)), program(torch.ones(3))


def random_numbers(folder: Path) -> Any:
    torch.manual_seed(3)
    with torch.random.fork_rng():
        inside = torch.rand(2)
    return inside, torch.rand(2), torch.initial_seed(), torch.Generator().manual_seed(1).initial_seed()


def checkpointed(folder: Path) -> Any:
    found = []
    for reentrant in (False, True):
        model, x = _model(), torch.ones(2, 3, requires_grad=True)
        checkpoint(nn.Sequential(model, nn.Dropout(0.5)), x, use_reentrant=reentrant).sum().backward()
        found += [x.grad, *(p.grad for p in model.parameters())]
    return found


def autocast(folder: Path) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = _model()(torch.ones(2, 3))
    return out, _trained(_model())


def loader(folder: Path) -> Any:
    data = TensorDataset(torch.arange(6.0).reshape(3, 2))
    return [
        (batch, batch.is_pinned())
        for options in ({"pin_memory": True}, {"num_workers": 1, "pin_memory": True})
        for (batch,) in DataLoader(data, batch_size=2, **options)  # type: ignore[arg-type]  # of several types
    ]


def scripted(folder: Path) -> Any:
    model, x = _model(), torch.ones(2, 3)
    found = []
    for made in (torch.jit.script(model), torch.jit.trace(model, x)):
        torch.jit.save(made, folder / "scripted")
        found += [made(x), torch.jit.load(folder / "scripted")(x), str(made.graph)]
    return found


def exported(folder: Path) -> Any:
    program = torch.export.export(_model(), (torch.ones(2, 3),))
    torch.export.save(program, folder / "exported.pt2")
    loaded = torch.export.load(folder / "exported.pt2")
    return program.graph_module.code, loaded.run_decompositions().module()(torch.ones(2, 3))


def compiled(folder: Path) -> Any:
    return _trained(torch.compile(_model(), backend="aot_eager"))  # type: ignore[arg-type]  # a module


def compiled_by_inductor(folder: Path) -> Any:
    return _trained(torch.compile(_model(), backend="inductor"))  # type: ignore[arg-type]  # a module


def saved(folder: Path) -> Any:
    model = _model()
    torch.save((model.state_dict(), model), folder / "saved")
    state, again = torch.load(folder / "saved", weights_only=False)
    return state, again(torch.ones(2, 3)), torch.load(folder / "saved", map_location="cpu", weights_only=False)[0]


def profiled(folder: Path) -> Any:
    with torch.profiler.profile(record_shapes=True) as profile:
        _model()(torch.ones(2, 3)).sum().backward()
    return sorted({event.key for event in profile.key_averages()})


def threads(folder: Path) -> Any:
    found: dict[int, Any] = {}
    started = [
        threading.Thread(target=lambda i=i: found.update({i: _trained(nn.Linear(3, 1 + i))[0].shape})) for i in range(3)
    ]  # type: ignore[misc]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sorted(found.items())


def parallel(folder: Path) -> Any:
    return _trained(nn.DataParallel(_model())), nn.DataParallel(_model()).device_ids


def collectives(folder: Path) -> Any:
    x, gathered = torch.arange(3.0), [torch.empty(3)]
    dist.all_reduce(x)
    dist.all_gather(gathered, x)
    objects: list[Any] = [{"a": 1}]
    dist.broadcast_object_list(objects)
    dist.barrier()
    return x, gathered, objects, str(dist.distributed_c10d._get_pg_default_device()), dist.get_backend()


def data_parallel(folder: Path) -> Any:
    return _trained(DistributedDataParallel(_model()))


def sharded(folder: Path) -> Any:
    model = fully_shard(_model())
    return _trained(model), str(next(model.parameters()).device_mesh.device_type)  # type: ignore[union-attr]  # of a DTensor


def meshes(folder: Path) -> Any:
    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.arange(6.0).reshape(2, 3), mesh, [Shard(0)])
    return (x @ x.T).full_tensor(), str(mesh), str(x.device)


def distributed_checkpoints(folder: Path) -> Any:
    state = {"model": _model().state_dict()}
    dcp.save(state, checkpoint_id=folder / "whole")
    dcp.async_save(state, checkpoint_id=folder / "later").result()
    found = []
    for name in ("whole", "later"):
        new = {"model": {key: torch.zeros_like(value) for key, value in state["model"].items()}}
        dcp.load(new, checkpoint_id=folder / name)
        found.append(new)
    return found, sorted(path.name for path in folder.rglob("*.distcp"))


PROGRAMS: dict[str, Callable[[Path], Any]] = {
    f.__name__: f
    for f in (
        *(devices, questions_in_compiled_functions, random_numbers, checkpointed, autocast, loader, scripted, exported),
        *(
            compiled,
            compiled_by_inductor,
            saved,
            profiled,
            threads,
            parallel,
            collectives,
            data_parallel,
            sharded,
            meshes,
        ),
        distributed_checkpoints,
    )
}


def _plain(value: Any) -> Any:
    """A value as JSON has it, floats to the last bit."""
    if isinstance(value, Tensor):
        return [str(value.dtype), str(value.device), list(value.shape), value.detach().double().flatten().tolist()]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _outcome(program: Callable[[Path], Any]) -> Any:
    """A program's result and warnings, or its error."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _plain(program(Path(folder)))
        except Exception:
            found = traceback.format_exc()
    said = {re.sub(r"pid=\d+", "pid=...", str(w.message).partition("\n")[0]) for w in caught}
    return {"answer": found, "warnings": sorted(said)}


def main(when: str, *names: str) -> dict[str, Any]:
    if when == "first":
        importlib.import_module("jaten_ops.backend")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found: dict[str, Any] = {"outcomes": [_outcomes(names)]}
    if when == "between":
        importlib.import_module("jaten_ops.backend")
    if when != "first":
        found["outcomes"].append(_outcomes(names))
    dist.destroy_process_group()
    if when != "never":
        torch.jax.synchronize()
        assert torch.accelerator.memory_allocated() == 0 and torch.jax.current_stream().query()
        found["started"] = importlib.import_module("jax._src.xla_bridge").backends_are_initialized()
    return found


def _outcomes(names: tuple[str, ...]) -> dict[str, Any]:
    with contextlib.redirect_stderr(io.StringIO()):
        return {name: _outcome(PROGRAMS[name]) for name in names}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
