"""Torch programs for `as_jax`, each of one tensor of shape (3, 4): what they do is what JAX alone would not know of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Program = Callable[[torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, Program] = {}


def program(fn: Program) -> Program:
    PROGRAMS[fn.__name__] = fn
    return fn


# What torch says about gradients


@program
def detached(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach() + x.sin()


@program
def under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.exp()
    return scale * x


@program
def under_inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        shift = x.square()
    return x.sin() + shift.clone()


@program
def enabled_within_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        cut = x.square()
        with torch.enable_grad():
            kept = x.exp()
    return cut + kept


@program
def mode_set_and_left(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    cut = x.exp()
    torch.set_grad_enabled(True)
    return x.sin() * cut


@program
def straight_through(x: torch.Tensor) -> torch.Tensor:
    return (x + (x.round() - x).detach()).square()


@program
def cut_off_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y.detach_()
    return y * x


@program
def no_longer_required(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_()
    y.requires_grad_(False)
    return x.square() + y.square()


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 0.7) * x.exp()


@program
def own_backward(x: torch.Tensor) -> torch.Tensor:
    return _Clipped.apply(x) * x


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x.exp() * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.result, ctx.scale = output, inputs[1]  # as an attribute, as many write it

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.result.detach() * 3, None


@program
def backward_of_attributes(x: torch.Tensor) -> torch.Tensor:
    return _Kept.apply(x, 2.0).sin()


class _Pair(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 2

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return tangent * x.cos() * 2, None


@program
def backward_with_an_index(x: torch.Tensor) -> torch.Tensor:
    y, index = _Pair.apply(x)
    return y + x.gather(-1, index[:, None])


@program
def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 2)
    return y * x


@program
def hooked_argument(x: torch.Tensor) -> torch.Tensor:
    if x.requires_grad:
        x.register_hook(lambda grad: grad * 3)
    return x.exp() * x


@program
def hooked_modules(x: torch.Tensor) -> torch.Tensor:
    one, two = nn.Tanh(), nn.Sigmoid()
    one.register_forward_hook(lambda module, args, result: result * 2)
    two.register_full_backward_hook(lambda module, grads, outs: (grads[0] * 5,))
    return two(one(x)) * x


@program
def recomputed(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: y.sin() * y.exp(), x, use_reentrant=False).tanh()


@program
def reversed_gradient(x: torch.Tensor) -> torch.Tensor:
    return 2 * x.detach() - x + x.square().detach().clamp(max=1)


@program
def quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -6, 6).square()


# The gradients of ATen at ties, zeros and edges


def _at(*values: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Moves the first elements to where gradients are a matter of convention, and leaves gradients as they are."""

    def move(x: torch.Tensor) -> torch.Tensor:
        shift = torch.zeros_like(x)
        for i, v in enumerate(values):
            shift = shift + F.one_hot(torch.tensor(i, device=x.device), 12).view(3, 4) * (v - x).detach()
        return x + shift

    return move


@program
def relu_at_zero(x: torch.Tensor) -> torch.Tensor:
    x = _at(0.0, -0.0)(x)
    return x.relu() + F.leaky_relu(x, 0.1) + F.relu6(x + 6) + F.hardtanh(x + 1) + F.elu(x)


@program
def abs_at_zero(x: torch.Tensor) -> torch.Tensor:
    return _at(0.0, -0.0)(x).abs() * 2 + x.sin()


@program
def maximum_of_equal(x: torch.Tensor) -> torch.Tensor:
    x = _at(0.5, 0.5, 0.5)(x)
    return x.amax(-1) * x.max() + x.max(0).values.sum() + torch.maximum(x, x.flip(0)).sum(-1)


@program
def minimum_and_median(x: torch.Tensor) -> torch.Tensor:
    x = _at(-0.5, -0.5)(x)
    return x.amin(0) + x.median() + x.median(0).values * x.min() + x.square().logsumexp(0)


@program
def norm_at_zero(x: torch.Tensor) -> torch.Tensor:
    x = x * torch.tensor([[0.0], [1.0], [1.0]], dtype=x.dtype, device=x.device)
    return x.norm(dim=-1) + x.norm(p=1, dim=-1) + torch.linalg.vector_norm(x, 3, -1)


@program
def clamped_at_bounds(x: torch.Tensor) -> torch.Tensor:
    x = _at(0.5, -0.5)(x)
    return x.clamp(-0.5, 0.5).exp() + x.clamp_min(0.5) * x


@program
def ordered(x: torch.Tensor) -> torch.Tensor:
    tied = _at(0.25, 0.25)(x)
    return tied.sort(dim=-1, stable=True).values.cumsum(-1)[:, :2] * x.topk(2).values


@program
def running(x: torch.Tensor) -> torch.Tensor:
    x = _at(0.25, 0.25, 0.0)(x)
    return x.cummax(-1).values + x.cumprod(-1) + x.prod(-1, keepdim=True)


@program
def sums_of_exponentials(x: torch.Tensor) -> torch.Tensor:
    return x.logcumsumexp(-1) + torch.logaddexp(x, x.flip(0))


@program
def running_differences(x: torch.Tensor) -> torch.Tensor:
    """Its gradient takes logarithms of differences of gradients, which are zero for equal ones."""
    y = x.logcumsumexp(-1)
    return y - y.flip(-1)


@program
def powers(x: torch.Tensor) -> torch.Tensor:
    x = _at(0.0)(x)
    return x.pow(0) + x.pow(2) + x.pow(3.0) + torch.pow(2.0, x) + x.square()


@program
def spread(x: torch.Tensor) -> torch.Tensor:
    return x.std(-1) + x.var(0).sum() + F.normalize(x, dim=-1).sum(-1) + F.pairwise_distance(x, x.flip(0))


@program
def chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x.clamp(min=1e-3).sqrt(), x.exp()) + x.sinc() + x.tan().atan()


# Writes, views, structures of control


@program
def written_to(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y[0].mul_(2)
    y[:, 1:3] += x[:, :2].sin()
    y.t()[0] = 3
    return y * x


@program
def written_argument(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[1] = x[0] * 2
    return x.add_(1).mul_(2).square()


@program
def views(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.view(-1)[3:6].sin_()
    rows = y.unbind(0)
    return torch.stack([r * (i + 1) for i, r in enumerate(rows)]) + y.T.reshape(3, 4)


@program
def scattered(x: torch.Tensor) -> torch.Tensor:
    index = torch.tensor([0, 2, 0], device=x.device)
    return torch.zeros_like(x).index_add(0, index, x.sin()).scatter_add(1, index[:, None], x[:, :1].exp())


@program
def layers(x: torch.Tensor) -> torch.Tensor:
    w = torch.linspace(-1, 1, 16, dtype=x.dtype, device=x.device).view(4, 4)
    y = F.layer_norm(F.gelu(F.linear(x, w)), (4,))
    y = F.softmax(y @ x.mT, -1) @ y
    return F.log_softmax(y, -1) + F.silu(x)


@program
def convolved(x: torch.Tensor) -> torch.Tensor:
    w = torch.linspace(-1, 1, 6, dtype=x.dtype, device=x.device).view(2, 1, 3)
    y = F.conv1d(x[:, None], w, padding=1)
    return F.avg_pool1d(F.softplus(y), 2).flatten(1) + F.max_pool1d(y, 2).flatten(1)


@program
def losses(x: torch.Tensor) -> torch.Tensor:
    target = torch.tensor([1, 0, 3], device=x.device)
    return F.cross_entropy(x, target) + F.huber_loss(x, x.detach() * 0.5) + F.smooth_l1_loss(x, x.flip(0))


@program
def solved(x: torch.Tensor) -> torch.Tensor:
    a = x @ x.T + 3 * torch.eye(3, dtype=x.dtype, device=x.device)
    return torch.linalg.solve(a, x) + torch.linalg.cholesky(a).sum() + torch.logdet(a)


# Derivatives inside


@program
def gradient_inside(x: torch.Tensor) -> torch.Tensor:
    y = x if x.requires_grad else x.detach().requires_grad_()
    (g,) = torch.autograd.grad(y.sin().square().sum(), y, create_graph=True)
    return g * x


@program
def backward_inside(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_()
    y.pow(3).sum().backward()
    assert y.grad is not None
    return y.grad * x


@program
def functional_gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda y: y.sin().pow(2).sum())(x) * x


@program
def functional_products(x: torch.Tensor) -> torch.Tensor:
    result, pull = torch.func.vjp(torch.tanh, x)
    _, pushed = torch.func.jvp(torch.sin, (x,), (x.cos(),))
    return pull(result)[0] + pushed


@program
def mapped(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: row.softmax(0) * row.sum())(x)


@program
def gradients_of_each(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.func.grad(lambda row: row.sin().prod()))(x)


@program
def jacobian(x: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(lambda row: row.tanh() * row.sum())(x[0]) @ x.T


@program
def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.exp(), (x,))


@program
def conditional_cut(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 100, lambda y: y.sin(), lambda y: y * y.detach(), (x,)) + x


@program
def compiled_inside(x: torch.Tensor) -> torch.Tensor:
    return _compiled(x) * x


_compiled = torch.compile(lambda x: x.sin() * x.detach(), backend="eager")
