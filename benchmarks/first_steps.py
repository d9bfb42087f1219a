"""The first step of an eager program on the device `jax`, its caches empty: `python -m benchmarks.first_steps`.

Each program runs in two processes: with the first calls of operators interpreted, as they are by default, and with
everything compiled (`JATEN_INTERPRETER=0`). Prints a Markdown table of the seconds of the first step and of 50 further
ones, and the milliseconds of the last of them, beside those of eager torch on the CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .models.resnet import ResNet
from .processes import caches
from .threads import pin_threads

STEPS = 50


def _training(
    model: torch.nn.Module, optimizer_class: Any, inputs: torch.Tensor, classes: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """A step of a classifier that is trained, on the device of its parameters."""
    optimizer, device = optimizer_class(model.parameters()), next(model.parameters()).device
    x, labels = inputs.to(device), classes.to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _perceptron(device: str) -> Callable[[], torch.Tensor]:
    """A small net, trained by AdamW: products, softmax, the optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(device)
    return _training(model, torch.optim.AdamW, torch.randn(8, 16), torch.randint(0, 4, (8,)))


def _boxes(device: str) -> Callable[[], torch.Tensor]:
    """Boxes of a detector: slices, masks, comparisons, indices."""
    boxes = torch.rand(24, 4).to(device)

    def step() -> torch.Tensor:
        low, size = boxes[:, :2], boxes[:, 2:].clamp(min=0.05)
        corners = torch.cat([low, low + size], 1)
        begin = torch.maximum(corners[:, None, :2], corners[None, :, :2])
        end = torch.minimum(corners[:, None, 2:], corners[None, :, 2:])
        shared = (end - begin).clamp(min=0)
        common = shared[..., 0] * shared[..., 1]
        area = size[:, 0] * size[:, 1]
        overlap = common / (area[:, None] + area[None] - common)
        is_other = ~torch.eye(24, dtype=torch.bool, device=device)
        kept = ~((overlap > 0.3) & is_other).any(1)
        return torch.where(kept[:, None], corners, torch.zeros_like(corners)).flip(0).sum()

    return step


def _recurrence(device: str) -> Callable[[], torch.Tensor]:
    """Gradients of a recurrence written as a loop: many slices and sums of one size each."""
    weight = (torch.randn(8, 8) / 4).to(device).requires_grad_()
    inputs = torch.randn(12, 4, 8).to(device)

    def step() -> torch.Tensor:
        state = torch.zeros(4, 8, device=device)
        for x in inputs.unbind():
            state = torch.tanh(state @ weight + x) * 0.5 + state * 0.5
        (gradient,) = torch.autograd.grad(state.square().mean(), weight)
        return gradient.abs().sum()

    return step


def _convolutions(device: str) -> Callable[[], torch.Tensor]:
    """Gradients of a chain of convolutions of several sizes: calls of a library, and moves of elements around them."""
    x = torch.randn(2, 8, 24, 24).to(device)
    sizes = [(16, 8), (24, 16), (32, 24), (48, 32)]
    weights = [torch.randn(*pair, 3, 3).div(pair[1] * 3).to(device).requires_grad_() for pair in sizes]

    def step() -> torch.Tensor:
        found = x
        for weight in weights:
            found = torch.nn.functional.conv2d(found, weight, padding=1).relu()
        gradients = torch.autograd.grad(found.sum(), weights)
        return gradients[0].abs().sum()

    return step


def _residual(device: str) -> Callable[[], torch.Tensor]:
    """ResNet-18 for two small images, trained by Adam: convolutions of twenty sizes, normalizations, 62 parameters."""
    model = ResNet().to(device)
    return _training(model, torch.optim.Adam, torch.randn(2, 3, 64, 64), torch.randint(0, 1000, (2,)))


def _new_sizes(device: str) -> Callable[[], torch.Tensor]:
    """A graph whose numbers of nodes and edges are others at each step: messages along the edges, added up."""
    weight, sizes = torch.randn(16, 16).to(device), iter(range(100, 10_000, 7))

    def step() -> torch.Tensor:
        nodes = next(sizes)
        x, edges = torch.randn(nodes, 16).to(device), torch.randint(0, nodes, (2, 4 * nodes)).to(device)
        edges = edges[:, edges[0] != edges[1]]
        sent = (x @ weight)[edges[0]]
        return torch.zeros_like(x).index_add(0, edges[1], sent).relu().argmax(1).sum()

    return step


def _batches(device: str) -> Callable[[], torch.Tensor]:
    """A graph network in training, whose batches have other numbers of nodes and edges at each step."""
    layers = torch.nn.ModuleList([torch.nn.Linear(16, 32), torch.nn.Linear(32, 7)]).to(device)
    optimizer, sizes = torch.optim.Adam(layers.parameters()), iter(range(100, 10_000, 7))

    def step() -> torch.Tensor:
        nodes = next(sizes)
        x, labels = torch.randn(nodes, 16).to(device), torch.randint(0, 7, (nodes,)).to(device)
        source, target = torch.randint(0, nodes, (2, 4 * nodes + nodes % 5)).to(device)
        for layer in layers:
            count = torch.zeros(nodes, 1, device=device).index_add(0, target, torch.ones_like(target)[:, None].float())
            x = layer(torch.zeros_like(x).index_add(0, target, x[source]) / count.clamp(min=1)).relu()
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.dropout(x, 0.1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


PROGRAMS = {
    "perceptron": _perceptron,
    "boxes": _boxes,
    "recurrence": _recurrence,
    "convolutions": _convolutions,
    "residual net": _residual,
    "new sizes": _new_sizes,
    "batches of graphs": _batches,
}


def measure(name: str, device: str) -> str:
    """A program's seconds, in this process: of the first step, of later ones, and the median of the last ones."""
    pin_threads(1)
    if device == "jax":
        __import__("jaten_ops")
    torch.manual_seed(0)
    step, times = PROGRAMS[name](device), []
    for _ in range(1 + STEPS):
        start = time.perf_counter()
        step().item()
        times.append(time.perf_counter() - start)
    return f"{times[0]} {sum(times[1:])} {statistics.median(times[-10:])}"


def _in_process(name: str, device: str, **variables: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.first_steps", "--here", name, device],
            env=os.environ | caches(Path(folder)) | variables,
            capture_output=True,
            text=True,
            check=True,
        )
    return [float(seconds) for seconds in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PROGRAMS, nargs="+", default=[*PROGRAMS], metavar="PROGRAM")
    parser.add_argument("--here", nargs=2, metavar=("PROGRAM", "DEVICE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(measure(*options.here))
        return
    print("| program | first step: compiled | interpreted | 50 more: compiled | interpreted |", end="")
    print(" a late step: CPU | compiled | interpreted |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in options.only:
        cpu = _in_process(name, "cpu")
        compiled = _in_process(name, "jax", JATEN_INTERPRETER="0")
        interpreted = _in_process(name, "jax")
        seconds = [f"{given[i]:.2f} s" for i in (0, 1) for given in (compiled, interpreted)]
        late = [f"{given[2] * 1e3:.2f} ms" for given in (cpu, compiled, interpreted)]
        print("|", " | ".join([name, *seconds, *late]), "|", flush=True)


if __name__ == "__main__":
    main()
