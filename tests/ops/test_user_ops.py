"""Operators of users: symbolic sizes, batches, derivatives, replaced kernels, errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
from jax import lax
from jax.experimental import pallas as pl
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import jaten_ops
from jaten_ops.errors import DuplicateRegistrationError, KernelResultError, MissingGradientError, UnsupportedInputError

x = torch.linspace(-1, 1, 12).reshape(3, 4)
own = torch.ops.jaten_users
called: list[tuple[int, ...]] = []


@jaten_ops.op("jaten_users::swish(Tensor x, float beta=1.0) -> Tensor", differentiable=["x"])
def _swish(x, beta):
    called.append(x.shape)
    return x * jax.nn.sigmoid(beta * x)


@jaten_ops.op(
    "jaten_users::several(Tensor x, Tensor? y, Tensor[] zs, int k, *, float c, Tensor w) -> (Tensor, Tensor)",
    differentiable=["x", "zs", "w"],
)
def _several(x, y, zs, k, *, c, w):
    return jnp.sin(x) * c + sum(zs) - w, x.sum() * k + (0 if y is None else y.sum())


def _plain_several(x: Tensor, y: Tensor | None, zs: list[Tensor], k: int, *, c: float, w: Tensor) -> Any:
    return x.sin() * c + sum(zs) - w, x.sum() * k + (0 if y is None else y.sum())


@jaten_ops.op("jaten_users::half(Tensor x) -> Tensor", differentiable=["x"])
def _half(x):
    return x[: x.shape[0] // 2].reshape(-1)


@jaten_ops.op("jaten_users::by_size(Tensor x) -> Tensor")
def _by_size(x):
    return x[:2] if x.shape[0] > 4 else x[:1]


def _double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


@jaten_ops.op("jaten_users::pallas(Tensor x) -> Tensor", differentiable=["x"])
def _pallas(x):
    return pl.pallas_call(_double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@jaten_ops.op("jaten_users::loop(Tensor x) -> Tensor", differentiable=["x"])
def _loop(x):
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)


@jax.custom_vjp
def _three(x):
    return x * 3


_three.defvjp(lambda x: (x * 3, None), lambda _, g: (g * 5,))
jaten_ops.op("jaten_users::custom_vjp(Tensor x) -> Tensor", differentiable=["x"])(lambda x: _three(x))


@jax.custom_batching.custom_vmap
def _own_batches(x):
    return x + 1


@_own_batches.def_vmap
def _(axis_size, in_batched, x):
    return x + 100, True


jaten_ops.op("jaten_users::custom_batching(Tensor x) -> Tensor")(lambda x: _own_batches(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["swish", "half"])
def test_one_graph_serves_all_sizes(name: str) -> None:
    torch._dynamo.reset()
    counter, op = CompileCounterWithBackend("jaten"), getattr(own, name)
    compiled = torch.compile(lambda x: op(x) + 1, backend=counter, dynamic=True, fullgraph=True)
    for n in (4, 6, 9, 12):
        a, b = (torch.linspace(0, 1, n * 3).reshape(n, 3).requires_grad_() for _ in range(2))
        got, expected = compiled(a), op(b) + 1
        assert_close(got, expected)
        got.sum().backward(), expected.sum().backward()
        assert_close(a.grad, b.grad)
    assert counter.frame_count == 1


def test_marked_sizes_are_symbolic() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("jaten")
    compiled = torch.compile(lambda x: own.swish(x), backend=counter, fullgraph=True)
    for n in (4, 6, 9):
        given = torch.ones(n, 3)
        torch._dynamo.mark_dynamic(given, 0)
        assert_close(compiled(given), own.swish(given))
    assert counter.frame_count == 1


def test_exported_sizes_are_symbolic() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return own.swish(torch.cat([x, x]))

    exported = torch.export.export(Module(), (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    for n in (2, 5):
        assert exported.module()(torch.ones(n, 4)).shape == (2 * n, 4)


def test_a_kernel_that_asks_for_sizes_is_traced_for_each(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: own.by_size(x), backend="jaten", dynamic=True, fullgraph=True)
    with caplog.at_level("INFO", logger="jaten_ops"):
        assert [len(compiled(torch.ones(n, 2))) for n in (3, 6)] == [1, 2]
    assert any("jaten_ops.fake('jaten_users::by_size')" in m for m in caplog.messages)


F = torch.func
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]] = {
    "vmap": lambda f: torch.vmap(f),
    "vmap of vmap": lambda f: torch.vmap(torch.vmap(f)),
    "vmap of grad": lambda f: torch.vmap(F.grad(lambda r: f(r).sum())),
    "grad of vmap": lambda f: F.grad(lambda r: torch.vmap(f)(r).sin().sum()),
    "hessian": lambda f: lambda a: F.hessian(lambda r: f(r).sin().sum())(a[0]),
    "reverse, reverse, forward": lambda f: lambda a: F.jacrev(F.jacrev(F.jacfwd(f)))(a[0]),
    "forward three times": lambda f: lambda a: F.jacfwd(F.jacfwd(F.jacfwd(f)))(a[0]),
    "vmap, reverse, forward": lambda f: torch.vmap(F.jacrev(F.jacfwd(f))),
    "jvp of vmap of grad": lambda f: lambda a: F.jvp(torch.vmap(F.grad(lambda r: f(r).sum())), (a,), (a,)),
    "compiled": lambda f: torch.compile(torch.vmap(F.grad(lambda r: f(r).sum())), backend="jaten", fullgraph=True),
    "device": lambda f: lambda a: torch.vmap(f)(a.to("jax")).cpu(),
    "older vmap": lambda f: lambda a: torch.autograd.functional.jacobian(f, a[0], vectorize=True),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "operator": lambda r: own.swish(r, 2.0),
    "call_jax": lambda r: jaten_ops.call_jax(lambda a, b: a * jax.nn.sigmoid(b * a), r, 2.0),
}


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("error:.*batching rule.*")
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, function: str) -> None:
    torch._dynamo.reset()
    transform = TRANSFORMS[name]
    assert_close(transform(FUNCTIONS[function])(x), transform(lambda r: r * torch.sigmoid(2.0 * r))(x))


def test_a_batch_is_one_call_of_the_kernel() -> None:
    called.clear()
    torch.vmap(lambda r: own.swish(r, 3.0))(torch.ones(7, 5))
    assert called == [(5,)]
    assert torch.vmap(own.swish)(torch.ones(0, 5)).shape == (0, 5)


@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, 1), (None, 1, None)])
def test_batches_of_optional_and_listed_arguments(dims: tuple[int | None, ...]) -> None:
    y, z, first = (x.T.contiguous() if d == 1 else x[0] if d is None else x for d in (dims[1], dims[2], dims[0]))
    for transformed in (lambda f: f, lambda f: lambda *a: F.jacrev(f, argnums=(0, 2))(*a)):

        def call(op: Callable[..., Any], x: Tensor, y: Tensor, z: Tensor) -> Any:
            return op(x, y, [x, z], 3, w=z, c=2.0)

        got, expected = (
            torch.vmap(transformed(functools.partial(call, op)), in_dims=dims)(first, y, z)
            for op in (own.several, _plain_several)
        )
        assert_close(got, expected)


def test_the_same_operator_again_has_the_new_kernel() -> None:
    again = jaten_ops.op("jaten_users::again(Tensor x) -> Tensor", differentiable=["x"])
    again(lambda x: x * 2)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.ops.jaten_users.again(x) + 1, backend="jaten", fullgraph=True)
    step = jaten_ops.compile_step(lambda x: own.again(x))
    step(torch.ones(2, device="jax"))
    ways = {
        "direct": lambda a: own.again(a),
        "compiled": lambda a: compiled(a) - 1,
        "on the device": lambda a: own.again(a.to("jax")).cpu(),
        "a step": lambda a: step(a.to("jax")).cpu(),
        "batch": torch.vmap(own.again),
        "gradient": F.grad(lambda a: own.again(a).sum()),
        "gradient of a batch": F.grad(lambda a: torch.vmap(own.again)(a).sum()),
    }
    for factor in (2, 7):
        again(lambda x, factor=factor: x * factor)
        assert {name: way(torch.ones(2)).tolist() for name, way in ways.items()} == dict.fromkeys(ways, [factor] * 2)
    with pytest.raises(DuplicateRegistrationError, match=r"jaten_users::again.*registered twice"):
        jaten_ops.op("jaten_users::again(Tensor x, int n) -> Tensor")(lambda x, n: x)


def test_the_same_cells_of_a_notebook_again() -> None:
    """An operator with a fake and a gradient, all registered twice."""
    torch._dynamo.reset()
    for factor in (3, 5):
        jaten_ops.op("jaten_users::cell(Tensor x) -> Tensor", differentiable=["x"])(lambda x: x[:1])
        jaten_ops.fake("jaten_users::cell")(lambda x: x.new_empty(1))
        jaten_ops.gradient("jaten_users::cell")(
            lambda grads, args, results, factor=factor: {"x": grads[0].expand_as(args[0]) * factor}
        )
        for way in (own.cell, torch.compile(own.cell, backend="jaten", fullgraph=True)):
            given = torch.ones(2, requires_grad=True)
            way(given).sum().backward()
            assert given.grad is not None and given.grad.tolist() == [factor] * 2


@pytest.mark.parametrize("name", ["loop", "pallas"])
def test_a_kernel_without_a_vjp_says_so(name: str) -> None:
    op = getattr(own, name)
    assert_close(op(x), x * 2 if name == "pallas" else op(x))
    with pytest.raises(MissingGradientError, match=rf"jaten_ops\.gradient\('jaten_users::{name}'\).*differentiable="):
        op(x.clone().requires_grad_()).sum().backward()


def test_custom_vjp_is_the_gradient() -> None:
    for f in (own.custom_vjp, torch.vmap(own.custom_vjp)):
        assert F.grad(lambda a: f(a).sum())(torch.ones(2)).tolist() == [5, 5]  # noqa: B023


def test_results_are_held_against_the_schema() -> None:
    jaten_ops.op("jaten_users::wrong(Tensor x) -> (Tensor, Tensor)")(lambda x: x)
    with pytest.raises(KernelResultError, match="schema"):
        own.wrong(x)


def test_schemas_are_found_from_cpp() -> None:
    assert str(torch._C._get_schema("jaten_users::swish", "")).startswith("jaten_users::swish(Tensor x")


@jaten_ops.op("jaten_users::above(Tensor x, float least=0.0) -> Tensor", differentiable=["x"], eager=True)
def _above(x, least):
    return x[x > least] * 2


@jaten_ops.fake("jaten_users::above")
def _(x, least=0.0):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


jaten_ops.op("jaten_users::faceless(Tensor x) -> Tensor", eager=True)(lambda x: x[x > 0])


def _value_and_grad(call: Callable[[Tensor], Tensor], given: Tensor) -> list[Tensor]:
    leaf = given.detach().requires_grad_()
    result = call(leaf)
    return [result.detach().cpu(), torch.autograd.grad(result.square().sum(), leaf)[0].cpu()]


def _compiled(call: Callable[[Tensor], Tensor], whole: bool) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=whole):
            return torch.compile(call, backend="jaten", fullgraph=whole)(x)

    return run


EAGER: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], list[Tensor]]] = {
    "direct": _value_and_grad,
    "compiled": lambda call, x: _value_and_grad(_compiled(call, True), x),
    "compiled, with breaks": lambda call, x: _value_and_grad(_compiled(call, False), x),
    "exported": lambda call, x: [torch.export.export(_Called(call), (x,)).module()(x)],
    "as_jax": lambda call, x: [torch.tensor(jaten_ops.as_jax(call)(jnp.asarray(x.cpu().numpy())))],
    "vmap": lambda call, x: [torch.vmap(call)(torch.stack([x.abs(), x.abs() + 1]))[1].cpu()],
}


class _Called(torch.nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


jaten_ops.op("jaten_users::halved(Tensor x) -> Tensor", eager=True)(lambda x: x[x > 0].astype("float16"))
jaten_ops.fake("jaten_users::halved")(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_results_in_a_graph_are_held_against_the_fake(device: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(KernelResultError, match=r"test_user_ops.*returned .*float16.*its fake says .*float32"):
        _compiled(lambda x: own.halved(x) + 1, True)(torch.ones(2, device=device))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("way", EAGER)
def test_sizes_depend_on_values(way: str, device: str) -> None:
    if (way, device) == ("exported", "jax"):
        pytest.skip("torch.export takes no sizes of values on the device, of ATen's operators neither")
    torch._dynamo.reset()
    x = torch.tensor([-1.0, 2.0, 3.0, -4.0, 5.0])
    got = EAGER[way](lambda x: own.above(x * 1) + 1, x.to(device))
    positive = (x.abs() + 1) * 2 + 1 if way == "vmap" else x[x > 0] * 2 + 1
    assert_close(got, [positive, torch.where(x > 0, (x * 2 + 1) * 4, 0)][: len(got)])


def test_sizes_of_values_that_cannot_be_had_say_so() -> None:
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"shapes \[\(1,\), \(2,\)\] for the elements of the batch"):
        torch.vmap(own.above)(torch.tensor([[-1.0, 1.0], [1.0, 1.0]]))
    step = jaten_ops.compile_step(lambda x: own.above(x))
    step(x)  # eagerly
    with pytest.raises(UnsupportedInputError, match="reads the value of a tensor"):
        step(x)
    with pytest.raises(UnsupportedInputError):
        jax.jit(jaten_ops.as_jax(own.above))(jnp.ones(2))
    with pytest.raises(Exception, match=r"(?s)eager kernel without a fake.*jaten_ops.fake\('jaten_users::faceless'\)"):
        torch.compile(own.faceless, backend="jaten", fullgraph=True)(x)


@jax.custom_jvp
def _cube(x):
    return x * x * x


_cube.defjvp(lambda primals, tangents: (_cube(*primals), 30 * primals[0] * tangents[0]))
jaten_ops.op("jaten_users::custom_jvp(Tensor x) -> Tensor", differentiable=["x"])(lambda x: _cube(x))


class _Cube(torch.autograd.Function):
    """The same in torch: its gradient is 30 x, in place of that of the cube."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 30 * ctx.saved_tensors[0] * grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 30 * ctx.saved_tensors[0] * tangent


OF_CUSTOM_JVP = [n for n in TRANSFORMS if n not in ("reverse, reverse, forward", "forward three times", "older vmap")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OF_CUSTOM_JVP)
def test_custom_jvp_is_the_derivative(name: str) -> None:
    torch._dynamo.reset()

    def plain(r: Tensor) -> Any:
        return _Cube.apply(r)

    transform = TRANSFORMS["vmap of grad" if name == "compiled" else name]
    assert_close(TRANSFORMS[name](own.custom_jvp)(x), transform(plain)(x))


BATCHED: dict[str, Callable[[Tensor], Tensor]] = {
    "direct": lambda x: torch.vmap(own.custom_batching)(x),
    "device": lambda x: torch.vmap(own.custom_batching)(x.to("jax")).cpu(),
    "compiled": lambda x: torch.compile(torch.vmap(own.custom_batching), backend="jaten", fullgraph=True)(x),
    "call_jax": lambda x: torch.vmap(lambda r: jaten_ops.call_jax(_own_batches, r))(x),
    "as_jax": lambda x: torch.tensor(jaten_ops.as_jax(torch.vmap(own.custom_batching))(jnp.asarray(x.numpy()))),
    "step": lambda x: jaten_ops.compile_step(torch.vmap(own.custom_batching))(x).cpu(),
}


@pytest.mark.parametrize("way", BATCHED)
def test_custom_batching_is_the_batch(way: str) -> None:
    torch._dynamo.reset()
    assert BATCHED[way](torch.zeros(2)).tolist() == [100, 100]
