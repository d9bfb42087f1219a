"""The programs: functions of float64 tensors, as users write them, each with the inputs that it takes.

A program asks its inputs for their device and nothing else for one, so that it is the same on each. `TRAITS` says what
traits mean; the other tables decide by them what applies to a program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

TRAITS = {
    "smooth": "has derivatives of every order, which torch computes",
    "scalar numbers": "its inputs may be examples of a batch, that is, it works under vmap",
    "writes inputs": "writes to its inputs",
    "returns views": "returns tensors that share memory with each other or with an input",
    "breaks": "has a graph break",
    "draws": "draws random numbers, on which its results do not depend",
    "reads values": "its sizes or branches depend on values",
    "fixed sizes": "is written for one size of its first dimension",
    "inner autograd": "calls torch.autograd or has hooks, which torch.func's transforms refuse",
    "higher order": "calls torch.func or control flow of torch",
    "integers": "has results that are not floating point only",
    "operators": "calls direct operators, those of users, or JAX functions",
}


@dataclass(frozen=True)
class Program:
    """A function of tensors, and its inputs for a size of the first dimension.

    Attributes:
        fn: the program.
        inputs: makes its inputs on the CPU, float64 where not integers, of a generator and a size.
        traits: keys of `TRAITS`.
        plain: what it is held against where that is not `fn` itself: the same program in torch's functions.
    """

    name: str
    fn: Callable[..., Any]
    inputs: Callable[[torch.Generator, int], tuple[Tensor, ...]]
    traits: frozenset[str]
    plain: Callable[..., Any]

    def make_inputs(self, seed: int = 0, size: int = 3) -> tuple[Tensor, ...]:
        return self.inputs(torch.Generator().manual_seed(seed), size)


PROGRAMS: dict[str, Program] = {}


def add(
    *traits: str, inputs: Callable[..., Any], plain: Callable[..., Any] | None = None, name: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters the decorated function into the table, under its name."""
    assert set(traits) <= TRAITS.keys(), traits

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        key = (name or fn.__name__).strip("_")
        assert key not in PROGRAMS, key
        PROGRAMS[key] = Program(key, fn, inputs, frozenset(traits), plain or fn)
        return fn

    return register


def rand(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def one(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return (rand(g, n, 4),)


def two(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return rand(g, n, 4), rand(g, n, 4)


def positive(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return (rand(g, n, 4).abs() + 0.5,)


def with_weights(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return rand(g, n, 4), rand(g, 4, 5), rand(g, 5)


def square(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return (rand(g, n, 3, 3) + 3 * torch.eye(3, dtype=torch.float64),)


def image(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return rand(g, n, 2, 6, 6), rand(g, 4, 2, 3, 3)


def sequence(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return tuple(rand(g, n, 2, 5, 4) for _ in range(3))


def with_classes(g: torch.Generator, n: int) -> tuple[Tensor, ...]:
    return rand(g, 7, 4), torch.randint(7, (n, 2), generator=g)


SMOOTH = ("smooth", "scalar numbers")


@add(*SMOOTH, inputs=two)
def polynomial(x: Tensor, y: Tensor) -> Tensor:
    return x**3 + 2 * x * y - 0.5 * y.square()


@add(*SMOOTH, inputs=with_weights)
def perceptron(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(F.linear(x, w.mT, b))


@add(*SMOOTH, inputs=one)
def normalized(x: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (4,))) + torch.log_softmax(x, -1)


@add("smooth", inputs=image)
def convolution(x: Tensor, w: Tensor) -> Tensor:
    return F.avg_pool2d(torch.sigmoid(F.conv2d(x, w, padding=1)), 2)


@add("smooth", inputs=sequence)
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@add(*SMOOTH, inputs=one)
def scanned(x: Tensor) -> Tensor:
    return x.cumsum(-1) * x.cumprod(-1) + torch.logcumsumexp(x, -1)


@add(*SMOOTH, inputs=one)
def reduced(x: Tensor) -> Tensor:
    return torch.stack([x.var(-1), x.logsumexp(-1), x.norm(dim=-1), x.mean(-1)], -1)


@add(*SMOOTH, inputs=square)
def solved(x: Tensor) -> Tensor:
    return torch.linalg.solve(x, x.mT) + torch.linalg.inv(x).sin()


@add(*SMOOTH, inputs=two)
def contracted(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("...i,...j->...ij", x, y).sin().sum(-1)


@add(*SMOOTH, inputs=one)
def joined(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * b, torch.stack([a, b], -1).flatten(-2).exp()], -1)


@add(*SMOOTH, inputs=one)
def spectral(x: Tensor) -> Tensor:
    return (torch.fft.rfft(x).abs().square() + 1).log()


@add(*SMOOTH, inputs=positive)
def guarded_where(x: Tensor) -> Tensor:
    return torch.where(x > 1, x.sqrt(), torch.zeros_like(x) + x * 2)


@add("scalar numbers", inputs=one)
def with_ties(x: Tensor) -> Tensor:
    """At ties and zeros, where gradients are a matter of convention."""
    z = x.detach() - x + x  # zero but for the gradient of nothing
    z = (x - x.detach()) + x.round()
    return F.relu(z) + z.abs() + torch.maximum(z, -z) + z.clamp(0, 1) + z.amax(-1, keepdim=True)


@add("scalar numbers", inputs=one)
def sorted_values(x: Tensor) -> Tensor:
    return x.sort(-1, descending=True).values * x.topk(2, -1).values.sum(-1, keepdim=True)


@add(*SMOOTH, inputs=two)
def indexed(x: Tensor, y: Tensor) -> Tensor:
    index = torch.tensor([2, 0, 0, 1], device=x.device)
    return x[..., index] * y.index_add(-1, index, x)[..., :4] + x.gather(-1, index.expand(x.shape))


@add(*SMOOTH, inputs=one)
def factories(x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
    mask = torch.ones(x.shape[-1], x.shape[-1], device=x.device, dtype=torch.bool).tril()
    weights = (steps[:, None] - steps).masked_fill(~mask, float("-inf")).softmax(-1)
    return x @ weights + torch.full_like(x, 0.5) * x.sin()


@add("scalar numbers", inputs=one)
def stopped(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.square().sum(-1, keepdim=True)
    return x * scale + x.detach() * x + (x + (x.round() - x).detach())


@add("scalar numbers", inputs=one)
def grad_modes(x: Tensor) -> Tensor:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
    with torch.set_grad_enabled(False):
        c = x.exp()
    return a * x + b + c * x


@add("scalar numbers", inputs=one)
def inference_inside(x: Tensor) -> Tensor:
    with torch.inference_mode():
        weights = torch.tensor([1.0, 2.0, 0.5, -1.0], dtype=x.dtype, device=x.device)
        scale = (x * weights).sum(-1, keepdim=True)
    return x * scale.clone()


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is three times what it should be."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * grad * x.cos()

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return _Scaled.apply(x), in_dims[0]


@add("scalar numbers", inputs=one)
def own_function(x: Tensor) -> Tensor:
    return _Scaled.apply(x * 2) * x


@add("smooth", "inner autograd", inputs=one)
def inner_autograd(x: Tensor) -> Tensor:
    """The gradient of a part, as penalties on gradients have it."""
    with torch.enable_grad():
        y = x if x.requires_grad else x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(y.sin().sum() * y.sum(), y, create_graph=True)
    return slope * x


@add(*SMOOTH, "higher order", inputs=one)
def inner_transforms(x: Tensor) -> Tensor:
    slope = torch.func.grad(lambda t: (t.sin() * t).sum())(x)
    tangent = torch.func.jvp(lambda t: t.exp(), (x,), (slope,))[1]
    return tangent * torch.vmap(lambda t: t * t.sum(), in_dims=-1, out_dims=-1)(x)


@add("inner autograd", inputs=one)
def hooked(x: Tensor) -> Tensor:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 5)
    return y.sin()


@add("smooth", "inner autograd", inputs=one)
def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda t: (t.sin() * t).exp(), x, use_reentrant=False) * x


@add(*SMOOTH, "higher order", inputs=one)
def branched(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin() * t, lambda t: t.cos() * 2, (x,))


@add(*SMOOTH, inputs=one)
def written_inside(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 0].mul_(2)
    flat = y.view(-1)
    flat[1:3] += x.sum()
    return y.add_(x).sin_()


@add(*SMOOTH, inputs=one)
def masked_inside(x: Tensor) -> Tensor:
    y = x * 1
    y[..., 1:] = x[..., :-1] ** 2
    y.masked_fill_(y > 2, 0.25)
    return y * x


@add("writes inputs", inputs=two)
def written_input(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y[0] = x[1] if x.shape[0] > 1 else 1.0
    return x.sin() + y


@add("writes inputs", "returns views", inputs=one)
def returns_input(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x, x.t()


@add("returns views", inputs=one)
def base_and_view(x: Tensor) -> tuple[Tensor, Tensor]:
    a = x * 2
    return a, a.view(-1)


@add("returns views", inputs=one)
def views_of_result(x: Tensor) -> tuple[Tensor, ...]:
    a = x.exp()
    return (*a.chunk(2, -1), a.t(), a[0], a.unsqueeze(0).expand(2, *a.shape))


@add("returns views", inputs=one)
def views_of_input(x: Tensor) -> dict[str, Tensor]:
    return {"first": x[0], "rest": x[1:], "flat": x.view(-1), "new": x.sin()}


@add("returns views", inputs=one)
def same_twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = x + 1
    return a, a, a.detach()


@add("breaks", inputs=one)
def broken(x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y * x


@add("breaks", "returns views", inputs=one)
def broken_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 3
    v = y.t()
    torch._dynamo.graph_break()
    v.mul_(2)
    return y, v


@add("breaks", "reads values", inputs=one)
def read_value(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() > 0 else x.sin()


@add("reads values", "integers", inputs=one)
def sizes_of_values(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[x > 0], (x > 0).nonzero()


@add("draws", "scalar numbers", inputs=one)
def draws_nothing_of_it(x: Tensor) -> Tensor:
    return torch.where(torch.rand_like(x) < 2, x.sin(), x)


@add(inputs=with_classes)
def classified(table: Tensor, classes: Tensor) -> Tensor:
    logits = F.embedding(classes, table).sum(1) @ table.mT
    return F.cross_entropy(logits, classes[:, 0], reduction="none")


@add("integers", inputs=one)
def of_many_kinds(x: Tensor) -> dict[str, Any]:
    values, indices = x.max(-1)
    return {"values": values, "indices": indices, "positive": x > 0, "pair": (x.float(), None), "count": x.shape[0]}


@add(*SMOOTH, inputs=one)
def of_one_number(x: Tensor) -> Tensor:
    return (x.sin() * 3.14).sum() / 2


@add(*SMOOTH, inputs=lambda g, n: (rand(g, n, 4), rand(g, 16, 4), rand(g, 16, 4), rand(g, 16), rand(g, 16)))
def recurrent(x: Tensor, w: Tensor, u: Tensor, b: Tensor, c: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    state = h
    for _ in range(2):
        i, f, g, o = (F.linear(x, w, b) + F.linear(h, u, c)).chunk(4, -1)
        state = f.sigmoid() * state + i.sigmoid() * g.tanh()
        h = o.sigmoid() * state.tanh()
    return h


@add("smooth", inputs=lambda g, n: (rand(g, n, 2, 5, 5),))
def resampled(x: Tensor) -> Tensor:
    up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return F.pad(up, (1, 1, 1, 1), mode="reflect").square()


@add("smooth", inputs=lambda g, n: (rand(g, n + 2, 4), rand(g, 4), rand(g, 4)))
def batch_normalized(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True).sin()


@add(*SMOOTH, inputs=lambda g, n: (rand(g, n, 4), rand(g, n, 0, 4)))
def empty(x: Tensor, y: Tensor) -> Tensor:
    return y.sum(-2) + x.sin()
