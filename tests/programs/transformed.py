"""Programs of direct calls, of users' operators and of JAX functions, and what torch can transform them by.

Each program is a function of a vector, written once with an operator namespace (`torch.ops.jaten`, or `torch.ops.aten`
as what it is held against). A transform makes another function of a vector of it, so that they can be nested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

import jaten_ops

Vector = Callable[[torch.Tensor], torch.Tensor]
NAMESPACE = "jaten_test_transformed"


def _op(schema: str, *differentiable: str) -> Callable[[Any], Any]:
    return jaten_ops.op(f"{NAMESPACE}::{schema}", differentiable=differentiable)


@_op("swish(Tensor x, float beta=1.0) -> Tensor", "x")
def _swish(x, beta):
    return x * jax.nn.sigmoid(beta * x)


@_op("cubed(Tensor x) -> Tensor", "x")
def _cubed(x):
    return jax.lax.stop_gradient(x) ** 3  # so that a gradient can only be by the formula


@jaten_ops.gradient(f"{NAMESPACE}::cubed")
def _cubed_gradient(grads, args, results):
    square = torch.ops.jaten.mul.Tensor(args[0], args[0])
    return {"x": torch.ops.jaten.mul.Tensor(grads[0], torch.ops.jaten.mul.Scalar(square, 3))}


@_op("products(Tensor[] xs, Tensor order) -> Tensor[]", "xs")
def _products(xs, order):
    return [(x * y)[order] for x, y in itertools.pairwise(xs)]


@_op("polar(Tensor x) -> (Tensor, Tensor, Tensor)", "x")
def _polar(x):
    return jnp.sin(x), jnp.exp(x) * jnp.cos(x), jnp.argsort(x)


@_op("phase(Tensor z) -> Tensor", "z")
def _phase(z):
    return z * jnp.exp(1j * z)


def _jax_bell(x):
    return jnp.exp(-x * x)


def _jax_both(x, y):
    return jnp.sin(x) * y, x * jnp.cos(y)


_user = getattr(torch.ops, NAMESPACE)

# of each: with the namespace of what is tested, and what torch says that it is
PROGRAMS: dict[str, tuple[Vector, Vector]] = {}


def _program(name: str, got: Vector, expected: Vector) -> None:
    PROGRAMS[name] = got, expected


def _of_ops(name: str) -> Callable[[Callable[[Any, torch.Tensor], torch.Tensor]], Any]:
    def register(fn: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
        _program(name, lambda x: fn(torch.ops.jaten, x), lambda x: fn(torch.ops.aten, x))
        return fn

    return register


@_of_ops("product")
def _(ops, x):
    return ops.mul.Tensor(ops.mul.Tensor(x, x), x)


@_of_ops("elementwise")
def _(ops, x):
    return ops.add.Tensor(ops.sin(ops.tanh(x)), ops.pow.Tensor_Scalar(ops.exp(x), 1.5), alpha=2)


@_of_ops("matrices")
def _(ops, x):
    a = ops.mul.Tensor(ops.unsqueeze(x, 1), ops.unsqueeze(ops.cos(x), 0))
    return ops.mv(ops.addmm(a, a, a, alpha=0.5), x)


@_of_ops("softmax")
def _(ops, x):
    return ops._softmax(ops.mul.Tensor(x, x), 0, False)


@_of_ops("list")
def _(ops, x):
    return ops.sum.dim_IntList(ops.stack([ops.sin(x), ops.mul.Tensor(x, x), ops.exp(x)]), [0])


@_of_ops("several results")
def _(ops, x):
    a = ops.mul.Tensor(ops.unsqueeze(x, 1), ops.unsqueeze(ops.exp(x), 0))
    places = ops.max.dim(ops.detach(a), 1)[1]
    variance, mean = ops.var_mean.correction(a, [1])
    return ops.mul.Tensor(mean, ops.add.Tensor(variance, places))


@_of_ops("largest")
def _(ops, x):
    values, places = ops.topk(ops.mul.Tensor(x, ops.exp(x)), 3)
    return ops.mul.Tensor(values, ops.add.Tensor(ops.sin(values), places))


@_of_ops("decomposition")
def _(ops, x):
    a = ops.add.Tensor(ops.diag_embed(ops.exp(x)), ops.mul.Tensor(ops.unsqueeze(x, 1), ops.unsqueeze(x, 0)))
    return ops.linalg_cholesky_ex(a)[0].sum(0)


@_of_ops("complex")
def _(ops, x):
    z = ops.complex(ops.sin(x), ops.mul.Tensor(x, x))
    return ops.abs(ops.mul.Tensor(ops.exp(z), z))


@_of_ops("indices")
def _(ops, x):
    order = torch.tensor([2, 0, 1], device=x.device)
    a = ops.mul.Tensor(ops.index_select(x, 0, order), ops.gather(ops.sin(x), 0, order))
    return ops.index.Tensor(a, [order])


@_of_ops("written by index")
def _(ops, x):
    places = torch.tensor([0, 2], device=x.device)
    a = ops.index_put(ops.mul.Tensor(x, x), [places], ops.slice.Tensor(ops.sin(x), 0, 1), True)
    return ops.scatter_reduce.two(a, 0, torch.tensor([1, 1, 0], device=x.device), ops.exp(x), "sum")


@_of_ops("choice")
def _(ops, x):
    return ops.where.self(ops.gt.Scalar(x, 0), ops.mul.Tensor(x, ops.exp(x)), ops.sin(x))


def _normalized(x: torch.Tensor) -> torch.Tensor:
    ops = torch.ops.jaten
    a = ops.mul.Tensor(ops.unsqueeze(x, 1), ops.unsqueeze(ops.exp(x), 0))
    return ops.sum.dim_IntList(ops.native_layer_norm(a, [3], x, ops.sin(x), 1e-5)[0], [0])


def _normalized_by_hand(x: torch.Tensor) -> torch.Tensor:
    """In parts: ATen's tangents of layer_norm have themselves wrong derivatives."""
    a = x[:, None] * x.exp()
    centered = a - a.mean(1, keepdim=True)
    deviation = (centered.square().mean(1, keepdim=True) + 1e-5).sqrt()
    return (centered / deviation * x + x.sin()).sum(0)


_program("normalization", _normalized, _normalized_by_hand)


@_of_ops("convolution")
def _(ops, x):
    signal, weight = ops.view(ops.mul.Tensor(x, x), [1, 1, 3]), ops.view(ops.sin(x), [1, 1, 3])
    return ops.view(ops.convolution(signal, weight, None, [1], [1], [1], False, [0], 1), [3])


@_of_ops("in place")
def _(ops, x):
    a = ops.mul_.Tensor(ops.sin(x), x)
    return ops.exp_(ops.add_.Tensor(a, x))


@_of_ops("composition")
def _(ops, x):
    a = ops.outer(x, ops.sin(x))
    return ops.mul.Tensor(ops.softmax.int(ops.matmul(a, x), 0), ops.logsumexp(a, [1]))


@_of_ops("backward operator")
def _(ops, x):
    return ops.tanh_backward(ops.sin(x), ops.tanh(x))


@_of_ops("cut off")
def _(ops, x):
    return ops.mul.Tensor(ops.add.Tensor(x, ops.detach(ops.exp(x))), ops.sin(x))


def _without_gradient(ops: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        constant = ops.mul.Tensor(x, x)
    return ops.mul.Tensor(ops.mul.Tensor(x, x), constant)


_of_ops("no_grad")(_without_gradient)


def _dropped(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.ops.jaten.native_dropout(torch.sin(x), 0.5, True)[0]


def _dropped_by_mask(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    mask = torch.ops.jaten.native_dropout(torch.sin(x), 0.5, True)[1]
    return torch.sin(x) * mask * 2


_program("random", _dropped, _dropped_by_mask)
_program("user", lambda x: _user.swish(x * x, 1.5), lambda x: x * x * torch.sigmoid(1.5 * x * x))
_program("user, by a formula", lambda x: _user.cubed(torch.sin(x)), lambda x: torch.sin(x) ** 3)


def _user_list(x: torch.Tensor) -> torch.Tensor:
    one, two = _user.products([x, x.sin(), x.exp()], torch.tensor([1, 2, 0], device=x.device))
    return one * two


def _torch_list(x: torch.Tensor) -> torch.Tensor:
    order = torch.tensor([1, 2, 0], device=x.device)
    return (x * x.sin())[order] * (x.sin() * x.exp())[order]


def _user_several(x: torch.Tensor) -> torch.Tensor:
    one, two, places = _user.polar(x)
    return one * two * x + places


def _torch_several(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.exp() * x.cos() * x + x.argsort()


def _user_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(_user.phase(torch.complex(x.sin(), x))).sum(-1)


def _torch_complex(x: torch.Tensor) -> torch.Tensor:
    z = torch.complex(x.sin(), x)
    return torch.view_as_real(z * torch.exp(1j * z)).sum(-1)


def _jax_two(x: torch.Tensor) -> torch.Tensor:
    one, two = jaten_ops.call_jax(_jax_both, x, x.exp())
    return one * two


def _torch_two(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    return x.sin() * y * x * y.cos()


_program("user, lists", _user_list, _torch_list)
_program("user, several results", _user_several, _torch_several)
_program("user, complex", _user_complex, _torch_complex)
_program("call_jax", lambda x: jaten_ops.call_jax(_jax_bell, x) * x, lambda x: torch.exp(-x * x) * x)
_program("call_jax, two results", _jax_two, _torch_two)


def _weights(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([1.0, -0.5, 2.0], dtype=x.dtype, device=x.device)


def _by_grad(f: Vector) -> Vector:
    return grad(lambda x: (f(x) * _weights(x)).sum())


def _by_vjp(f: Vector) -> Vector:
    def transformed(x: torch.Tensor) -> torch.Tensor:
        _, pull = vjp(f, x)
        return pull(_weights(x))[0]  # out of the transform, where what it has saved is dead

    return transformed


def _by_jvp(f: Vector) -> Vector:
    return lambda x: jvp(f, (x,), (_weights(x),))[1]


def _by_vmap(f: Vector) -> Vector:
    return lambda x: (
        vmap(f, randomness="same")(torch.stack([x, x.sin()])) * torch.stack([_weights(x), _weights(x)])
    ).sum(0)


def _by_jacrev(f: Vector) -> Vector:
    return lambda x: jacrev(f)(x).sum(0)


def _by_jacfwd(f: Vector) -> Vector:
    return lambda x: jacfwd(f, randomness="same")(x).sum(0)


def _by_autograd(f: Vector) -> Vector:
    """Not within a transform of torch.func, which lets no program ask for a gradient otherwise."""

    def transformed(x: torch.Tensor) -> torch.Tensor:
        x = x if x.requires_grad else x.clone().requires_grad_()
        return torch.autograd.grad((f(x) * _weights(x)).sum(), x, create_graph=True)[0]

    return transformed


def _by_dual(f: Vector) -> Vector:
    def transformed(x: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, _weights(x)))).tangent

    return transformed


TRANSFORMS: dict[str, Callable[[Vector], Vector]] = {
    "grad": _by_grad,
    "jvp": _by_jvp,
    "vmap": _by_vmap,
    "vjp": _by_vjp,
    "jacrev": _by_jacrev,
    "jacfwd": _by_jacfwd,
    "autograd": _by_autograd,
    "dual": _by_dual,
}


def transformed(f: Vector, names: str) -> Vector:
    """The function transformed by each of the names, as "grad jvp": the last one first."""
    for name in reversed(names.split()):
        f = TRANSFORMS[name](f)
    return f
