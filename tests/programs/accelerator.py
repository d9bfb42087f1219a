"""Programs for a machine with an accelerator, and the ways in which they run there; each is as plain torch on the CPU.

`python -m tests.programs.accelerator` runs all of them in the ways that this machine has, and prints what differs.
"""

from __future__ import annotations

import copy
import functools
import io
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

import jaten_ops
from jaten_ops.device.privateuse1 import CLAIMED
from jaten_ops.tensor.tensor import array_of

Tensors = tuple[torch.Tensor, ...]


def _image() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16)


def _labels(count: int, classes: int) -> torch.Tensor:
    return torch.randint(classes, (count,))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x)[0][:, -1])


class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.Embedding(11, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.rows(x)).mean(1))


class _Upwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(F.silu(self.norm(self.down(x))))
        return F.adaptive_avg_pool2d(F.interpolate(y, scale_factor=2, mode="bilinear"), 1).flatten(1)


class _Scaled(nn.Module):
    """A module with a buffer that each call writes to, a number on the CPU, and a branch that keeps a view."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(x * torch.tensor(0.5) + x.mean(0, keepdim=True))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def _volumes() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.LayerNorm(8), nn.Flatten(), nn.LazyLinear(4))


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], Callable[..., torch.optim.Optimizer]]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), lambda: torch.randn(5, 8),
        functools.partial(torch.optim.AdamW, lr=0.01),
    ),
    "convolutions": (_convolutional, _image, functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)),
    "volumes": (_volumes, lambda: torch.randn(2, 2, 7, 7, 7), functools.partial(torch.optim.SGD, lr=0.01)),
    "attention": (_attention, lambda: torch.randn(3, 5, 8), functools.partial(torch.optim.SGD, lr=0.01)),
    "recurrent": (_Recurrent, lambda: torch.randn(3, 5, 6), functools.partial(torch.optim.RMSprop, lr=0.001)),
    "embedded": (_Embedded, lambda: torch.randint(11, (3, 5)), functools.partial(torch.optim.Adagrad, lr=0.01)),
    "upwards": (_Upwards, _image, functools.partial(torch.optim.NAdam, lr=0.001)),
    "a number on the CPU": (_Scaled, lambda: torch.randn(5, 8), functools.partial(torch.optim.SGD, lr=0.01)),
}  # fmt: skip


def _on(value: Any, device: str) -> Any:
    """Values with the tensors on a device."""
    return tree_map_only(torch.Tensor, lambda t: t.to(device), value)


def _train(name: str, way: str) -> list[Any]:
    """Three steps of a module: the losses, and what the module and the optimizer hold then."""
    device = WAYS[way].device
    torch.manual_seed(0)
    make, inputs, optimizer_of = MODULES[name]
    model, x = make(), inputs()
    model(x)  # lazy modules make their parameters
    target = _on(_labels(len(x), 4), device)
    model, x = model.to(device), x.to(device)
    optimizer = optimizer_of(model.parameters())
    called = torch.compile(model, backend="jaten") if WAYS[way].is_compiled else model

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(called(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jaten_ops.compile_step(step, model, optimizer) if way == "step" else step
    losses = [run(x, target).clone() for _ in range(3)]
    return [losses, list(model.state_dict().values()), [p.grad for p in model.parameters()], optimizer.state_dict()]


def _in_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.clone()
    y[1:].mul_(2)
    part = y[:, 1]
    part.add_(torch.tensor(3.0))
    return y, part, y.t(), y[:0]


def _decomposed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    square = x @ x.mT + 5 * torch.eye(len(x), device=x.device)
    return (
        torch.linalg.cholesky(square), torch.linalg.solve(square, x), torch.linalg.eigvalsh(square),
        torch.linalg.svdvals(x), torch.linalg.det(square), torch.linalg.qr(x.mT)[1].abs(),
    )  # fmt: skip


def _attended(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q = x.reshape(1, 2, 5, 4)
    mask = torch.ones(5, 5, dtype=torch.bool, device=x.device).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask), F.scaled_dot_product_attention(q, q, q)


def _chosen(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = torch.tensor([2, 0, 2])  # indices may be on the CPU
    scattered = torch.zeros_like(x).index_add(0, rows.to(x.device), x[rows])
    return x[rows], scattered, x.gather(1, x.argsort(1)), torch.where(x > 0, x, torch.tensor(-1.0))


def _integers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = (x * 100).long()
    return (
        n // 7,
        n % 5,
        n.cumsum(0),
        n.sort(1, descending=True)[0],
        n.bincount(minlength=3) if n.dim() == 1 else n.max(),
    )


def _made(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(4, device=x.device) * torch.full((4,), 2, device=x.device)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], Tensors]]] = {
    "in place": (_in_place, lambda: (torch.randn(4, 6),)),
    "decompositions": (_decomposed, lambda: (torch.randn(4, 6),)),
    "attended": (_attended, lambda: (torch.randn(2, 20),)),
    "chosen": (_chosen, lambda: (torch.randn(4, 6),)),
    "integers": (_integers, lambda: (torch.randn(4, 6),)),
    "float64": (lambda x: (x.double().exp(), x.double() @ x.double().mT), lambda: (torch.randn(4, 6),)),
    "bfloat16": (lambda x: (x.bfloat16() * 3).float() + x.bfloat16().float().sum(), lambda: (torch.randn(4, 6),)),
    "float16": (lambda x: x.half().softmax(1).float(), lambda: (torch.randn(4, 6),)),
    "complex": (lambda x: torch.fft.rfft2(x).abs(), lambda: (torch.randn(4, 6),)),
    "slices with steps": (lambda x: x[:, ::2].mT @ x, lambda: (torch.randn(16, 5),)),
    "products": (lambda x: x @ x.mT, lambda: (torch.randn(300, 400),)),  # in float32, not in shorter numbers
    "nothing": (lambda x: (x[:0], x[:, :0].sum(0), torch.cat([x[:0], x])), lambda: (torch.randn(4, 6),)),
    "no inputs": (_made, lambda: (torch.ones(1),)),
    "of several dtypes": (lambda x, n, b: torch.where(b, x * n, x.double()), lambda: (
        torch.randn(4), torch.arange(4), torch.tensor([True, False, True, False]),
    )),
    "reductions": (lambda x: (x.var(0), x.std(), x.prod(1), x.logsumexp(0), x.norm(), x.median(1)[0]), lambda: (
        torch.randn(4, 6),
    )),
    "zeros of dropout": (lambda x: F.dropout(x, 1.0), lambda: (torch.ones(4, 6),)),
    "read": (lambda x: torch.tensor([x.sum().item(), float(x.max()), *x[0].tolist()]), lambda: (torch.randn(4, 6),)),
    "to the CPU": (lambda x: (x * 2).cpu() + 1, lambda: (torch.randn(4, 6),)),
}  # fmt: skip


def _call(name: str, way: str) -> Any:
    fn, inputs = FUNCTIONS[name]
    torch.manual_seed(0)
    called = torch.compile(fn, backend="jaten") if WAYS[way].is_compiled else fn
    return called(*_on(inputs(), WAYS[way].device))


def _saved(way: str) -> Any:
    """Parameters and a state of an optimizer that went through a file."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(WAYS[way].device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 3, device=WAYS[way].device)).sum().backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    other = copy.deepcopy(model)
    nn.init.zeros_(other.weight)
    other.load_state_dict(loaded["model"])
    return [loaded, other.weight]


def _exported(way: str) -> Any:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 3)
    if way == "plain":
        return model(x)
    return jaten_ops.export(model.to(WAYS[way].device), (x.to(WAYS[way].device),)).call(x)


def _as_jax(way: str) -> Any:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(2, 3)
    if way == "plain":
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]
    network = jaten_ops.as_jax(model.to("jax"))
    parameters = jaten_ops.to_jax(dict(model.named_parameters()))
    of_parameters = jax.grad(lambda p, x: (network(p, x) ** 2).sum())
    gradients = jax.jit(of_parameters)(parameters, jaten_ops.to_jax(x.to("jax")))
    return [jaten_ops.from_jax(gradients[name]) for name, _ in model.named_parameters()]


OTHERS: dict[str, tuple[Callable[[str], Any], frozenset[str]]] = {
    "saved": (_saved, frozenset({"eager"})),
    "exported": (_exported, frozenset({"eager"})),
    "as_jax": (_as_jax, frozenset({"eager"})),
}


@dataclass(frozen=True)
class Way:
    """A way in which programs run: the torch device of their tensors, and whether they are compiled by jaten."""

    device: str
    is_compiled: bool = False


WAYS = {
    "plain": Way("cpu"),
    "eager": Way("jax"),
    "compiled": Way("jax", is_compiled=True),
    "step": Way("jax"),
    "compiled CUDA tensors": Way("cuda", is_compiled=True),
    "compiled CPU tensors": Way("cpu", is_compiled=True),
}

ROWS = [
    *((name, way) for name in MODULES for way in WAYS if way != "plain"),
    *((name, way) for name in FUNCTIONS for way in WAYS if way not in ("plain", "step")),
    *((name, way) for name, (_, ways) in OTHERS.items() for way in ways),
]


def _run(name: str, way: str) -> Any:
    if name in MODULES:
        return _train(name, way)
    return _call(name, way) if name in FUNCTIONS else OTHERS[name][0](way)


def _elsewhere(value: Any) -> str:
    """Words for a tensor of the device whose array is not on JAX's default device; empty if there is none."""
    first = jax.local_devices()[0]
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "jax" and array_of(tensor).devices() != {first}:
            return f"a tensor of shape {tuple(tensor.shape)} is on {array_of(tensor).devices()}, not on {first}"
    return ""


def differences(name: str, way: str) -> list[str]:
    """The differences between a row's results and those of plain torch on the CPU."""
    torch._dynamo.reset()
    expected, got = _run(name, "plain"), _run(name, way)
    device, found = WAYS[way].device, []
    if words := _elsewhere(got):
        found.append(words)
    tensors = [[t for t in tree_leaves(value) if isinstance(t, torch.Tensor)] for value in (got, expected)]
    if len(tensors[0]) != len(tensors[1]):
        return [*found, f"{len(tensors[0])} tensors, not {len(tensors[1])}"]
    if device == "cuda" and not any(t.is_cuda for t in tensors[0]) and name not in ("read", "to the CPU"):
        found.append("no result is on the GPU")
    for g, e in zip(*tensors, strict=True):
        try:
            torch.testing.assert_close(g.detach().cpu(), e.detach(), rtol=2e-3, atol=2e-4, equal_nan=True)
        except AssertionError as error:
            found.append(str(error))
    return found


def has(way: str) -> bool:
    """True if this process has what a way needs: the device `jax`, or else a GPU that torch and JAX have."""
    device = WAYS[way].device
    if device == "cuda":
        return not CLAIMED and torch.cuda.is_available() and jax.default_backend() == "gpu"
    return CLAIMED or device == "cpu"


def main() -> int:
    """Runs all rows, or with the arguments I N each Nth from the Ith on."""
    first, each = map(int, sys.argv[1:] or (0, 1))
    rows = [(name, way) for name, way in ROWS if has(way)][first::each]
    failed = 0
    for name, way in rows:
        try:
            found = differences(name, way)
        except Exception:
            found = [traceback.format_exc(limit=-4)]
        failed += bool(found)
        print(f"{name}, {way}: {'; '.join(found) or 'as plain torch'}", flush=True)
    print(f"{jax.local_devices()[0].device_kind}: {failed} of {len(rows)} rows differ", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
