"""jaten on a GPU beside eager PyTorch and Inductor: `python -m benchmarks.gpu` prints a table in Markdown.

The models are larger than those of the other benchmarks, so that a GPU has something to do. Programs with CUDA tensors
run in this process; those of the device `jax` in another, since torch has one of the two (`JATEN_DEVICE`). Products of
float32 may use TF32 in all of them.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jaten_ops

WAYS = {"eager": "cuda", "Inductor": "cuda", "jaten": "cuda", "jaten on jax": "jax", "jaten step": "jax"}
"""The contenders, with the torch device of their tensors."""
_BACKENDS = {"Inductor": "inductor", "jaten": "jaten", "jaten on jax": "jaten"}
_TURNS, _SECONDS = 7, 0.1


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inwards, self.outwards = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inwards(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.outwards(attended.transpose(1, 2).flatten(2))
        return x + self.wide(self.second(x))


class _Decoder(nn.Module):
    def __init__(self, words: int = 8192, width: int = 768, layers: int = 6, longest: int = 512) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(longest, width) * 0.02)
        self.blocks = nn.Sequential(*[_Block(width, 12) for _ in range(layers)])
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.words(tokens) + self.places[: tokens.shape[1]])
        return self.last(self.norm(x)).flatten(0, 1)


class _Residual(nn.Module):
    def __init__(self, of: int, to: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(of, to, 3, stride, 1, bias=False), nn.BatchNorm2d(to), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(to, to, 3, 1, 1, bias=False), nn.BatchNorm2d(to))
        shorter = nn.Sequential(nn.Conv2d(of, to, 1, stride, bias=False), nn.BatchNorm2d(to))
        self.beside = nn.Identity() if (of, stride) == (to, 1) else shorter

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.beside(x))


def _resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    of = 64
    for to, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(_Residual(of, to, stride))
        of = to
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def _perceptron(width: int, layers: int) -> nn.Module:
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU())])


# the module, an input, and the number of classes
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "perceptron of 6 layers of 64": (functools.partial(_perceptron, 64, 6), lambda: torch.randn(64, 64), 64),
    "perceptron of 4 layers of 4096": (functools.partial(_perceptron, 4096, 4), lambda: torch.randn(2048, 4096), 4096),
    "decoder of 6 layers of 768": (_Decoder, lambda: torch.randint(8192, (8, 512)), 8192),
    "ResNet-18, 64 images": (_resnet18, lambda: torch.randn(64, 3, 224, 224), 1000),
}


def _job(name: str, job: str, way: str) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    make, inputs, classes = MODELS[name]
    device = WAYS[way]
    model, x = make().to(device), inputs().to(device)
    compiled = torch.compile(backend=_BACKENDS[way]) if way in _BACKENDS else lambda fn: fn
    if job == "inference":
        called = compiled(model.eval())
        return torch.no_grad()(lambda: called(x))
    labels = torch.randint(classes, (x.numel() if x.dtype == torch.int64 else len(x),)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    loss_of = compiled(lambda x: F.cross_entropy(model(x), labels))

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jaten_ops.compile_step(step, model, optimizer) if way == "jaten step" else step
    return lambda: run(x)


def _wait(result: Tensor, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    else:
        jaten_ops.to_jax(result).block_until_ready()
        torch.jax.synchronize()  # type: ignore[attr-defined]  # the module of the device


def measure(name: str, job: str, way: str) -> float:
    """The median of the seconds of a call, over several turns."""
    torch._dynamo.reset()
    call, device = _job(name, job, way), WAYS[way]
    for _ in range(4):
        _wait(call(), device)
    start = time.perf_counter()
    _wait(call(), device)
    count, turns = max(3, int(_SECONDS / (time.perf_counter() - start))), []
    for _ in range(_TURNS):
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        _wait(result, device)
        turns.append((time.perf_counter() - start) / count)
    return statistics.median(turns)


def _measured(ways: Sequence[str]) -> dict[str, float]:
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    rows = [(m, j, w) for m in MODELS for j in ("inference", "training") for w in ways]
    rows = [row for row in rows if row[1:] != ("inference", "jaten step")]
    found: dict[str, float] = {}
    for row in rows:
        found[" | ".join(row)] = measure(*row)
        print(*row, f"{found[' | '.join(row)] * 1e3:.3f} ms", sep=", ", file=sys.stderr, flush=True)
    return found


def _elsewhere() -> dict[str, float]:
    """The times on the device `jax`, from a process that has it."""
    # this process keeps its part of the GPU's memory
    environment = os.environ | {"JATEN_DEVICE": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", __spec__.name, "jax"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[str, float]) -> str:
    """Milliseconds of each way, in brackets over eager's."""
    lines = [f"| model | job | {' | '.join(WAYS)} |", f"| --- | --- |{' --- |' * len(WAYS)}"]
    for model in MODELS:
        for job in ("inference", "training"):
            times: list[Any] = [found.get(f"{model} | {job} | {way}") for way in WAYS]
            cells = [f"{t * 1e3:.2f} ({t / times[0]:.2f})" if t else "" for t in times]
            lines.append(f"| {model} | {job} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    of = sys.argv[1] if sys.argv[1:] else "cuda"
    found = _measured([way for way, device in WAYS.items() if device == of])
    if of == "jax":
        print(json.dumps(found))
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, JAX {jax.__version__}; milliseconds of a call\n")
    print(table(found | _elsewhere()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
