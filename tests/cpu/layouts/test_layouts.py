"""Values in other orders than their program's: images with channels last, and what follows them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo
from jax import lax
from torch import nn

import jaten_ops  # noqa: F401  # the backend
from jaten_ops.arrays.strides import order_of, strides_in
from jaten_ops.cpu.layouts import ordered
from jaten_ops.cpu.layouts.rules import RULES
from jaten_ops.kernel_base.conv_parts import Windows
from jaten_ops.kernels.convolution import forward, input_gradient, weight_gradient
from jaten_ops.xla import executables
from jaten_ops.xla.equations import ELEMENTWISE
from jaten_ops.xla.memory_order import in_order
from jaten_ops.xla.x64 import Enabled

_RNG = np.random.default_rng(0)


def _same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


# Images: what follows a convolution that leaves channels last

# whole numbers: their sums are exact, in whatever order they are taken
_IMAGE = _RNG.integers(-2, 3, (2, 5, 6, 6)).astype("float32")
_KERNEL = _RNG.integers(-1, 2, (8, 5, 3, 3)).astype("float32")
_KERNELS = _RNG.integers(-1, 2, (8, 1, 3, 3)).astype("float32")
_SAME = Windows((3, 3), (1, 1), (1, 1), (1, 1), 1)
_POINTS = Windows((1, 1), (2, 2), (0, 0), (1, 1), 1)
_VECTOR = _RNG.standard_normal(8).astype("float32")
_MATRIX = _RNG.standard_normal((5, 8)).astype("float32")


def _window(function: Any, init: Any) -> Callable[[Any], Any]:
    return lambda x: lax.reduce_window(x, np.float32(init), function, (1, 1, 3, 2), (1, 1, 2, 1), "SAME")


def _shuffled(x: Any) -> Any:
    """The channels of two groups, one from each in turn."""
    return x.reshape(2, 2, 4, 6, 6).transpose(0, 2, 1, 3, 4).reshape(x.shape) + x


def _pixels(x: Any) -> Any:
    """Four channels as a block of two rows and columns."""
    return x.reshape(2, 2, 2, 2, 6, 6).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 12, 12)


def _grouped(x: Any) -> Any:
    """A GroupNorm: dimensions come apart and together again."""
    split = x.reshape(2, 2, 4, 36)
    centred = split - split.mean((2, 3), keepdims=True)
    return (centred / jnp.sqrt((centred**2).mean((2, 3), keepdims=True) + 1e-5)).reshape(x.shape)


BODIES: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: jnp.where(x > 0, jnp.tanh(x), x * 0.5) + x.astype("int32").astype("float32"),
    "beside an image in the program's order": lambda x: x + jnp.arange(576, dtype="float32").reshape(2, 8, 6, 6),
    "beside a vector": lambda x: x * _VECTOR[:, None, None] + _VECTOR.reshape(1, 8, 1, 1),
    "stored": lambda x: in_order(x) * 2 + lax.optimization_barrier(x),
    "clamp": lambda x: lax.clamp(np.float32(-1), x, np.float32(1)),
    "iota": lambda x: x + lax.broadcasted_iota("float32", x.shape, 1) - lax.broadcasted_iota("float32", x.shape, 3),
    "reductions": lambda x: (x.sum((0, 2, 3)), x.max(1), x.min((1, 3), keepdims=True), x.prod(2), x.mean()),
    "logical reductions": lambda x: (
        (x > 0).any(1), (x > 0).all((0, 1)), x.argmax(1), x.argmin(3), lax.reduce_xor(x.astype("int32"), (1,)),
    ),
    "several at once": lambda x: lax.reduce(
        [x, -x], [np.float32(0)] * 2, lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (1, 2)
    ),
    "scans": lambda x: (x.cumsum(1), lax.cummax(x, 2), lax.cumlogsumexp(x, 3), lax.cumprod(x, 0), lax.cummin(x, 1)),
    "sort": lambda x: lax.sort((x, lax.broadcasted_iota("int32", x.shape, 1)), dimension=1, num_keys=1),
    "split and join": lambda x: lax.concatenate(lax.split(x, (3, 5), 1)[::-1], 1),
    "pad and slice": lambda x: lax.pad(x, np.float32(1), [(0, 0, 0), (1, 2, 0), (0, 1, 1), (-1, 2, 0)])[
        :, 1::2, 2:, ::3
    ],
    "slices at numbers": lambda x: (
        lax.dynamic_slice(x, [np.int32(0), x.argmax().astype("int32") % 3, np.int32(1), np.int32(2)], (2, 4, 3, 2)),
        lax.dynamic_update_slice(x, x[:, :3, :2], [np.int32(0), x.argmax().astype("int32") % 3, *[np.int32(0)] * 2]),
    ),
    "reversed": lambda x: lax.rev(x, (1, 3)),
    "windows": lambda x: (_window(lax.add, 0)(x), _window(lax.max, -np.inf)(x), _window(lax.min, np.inf)(x)),
    "gradient of windows": lambda x: jax.grad(lambda y: (_window(lax.max, -np.inf)(y) ** 2).sum())(x),
    "windows' tangents": lambda x: jax.jvp(_window(lax.max, -np.inf), (x,), (x * 2,))[1],
    "windows of products": lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (1, 2, 2, 2), (1, 1, 1, 2), "VALID"),
    "transposed": lambda x: x.transpose(0, 2, 3, 1) @ _MATRIX.T,
    "product": lambda x: jnp.einsum("oc,nchw->nohw", _MATRIX, x),
    "batched product": lambda x: jnp.einsum("nchw,ndhw->nhcd", x, x * 2),
    "flattened": lambda x: (x.reshape(2, -1), x.reshape(2, 8, 36).transpose(0, 2, 1), x.reshape(16, 6, 6)),
    "taken apart": _grouped,
    "shuffled channels": _shuffled,
    "channels as pixels": _pixels,
    "channels beside rows": lambda x: (x.reshape(2, 48, 6) + 1, x.transpose(0, 2, 1, 3).reshape(12, 8, 6)),
    "ones": lambda x: (
        x[:, :, None], x.mean((2, 3), keepdims=True).reshape(2, 8), x[:1].squeeze(0), x[:, :1].reshape(2, 6, 6),
    ),
    "squeezed": lambda x: lax.squeeze(x.sum((2, 3), keepdims=True), (2, 3)),
    "larger": lambda x: jnp.broadcast_to(x[:, :, :, None, :, None], (2, 8, 6, 2, 6, 2)).reshape(2, 8, 12, 12),
    "empty": lambda x: (x[:0].reshape(0, 48), x[:, :0].sum(1)),
    "gathered": lambda x: (x[:, np.array([3, 1])], x.at[:, np.array([0, 2])].add(1)),
    "functions": lambda x: jax.nn.relu(jax.jit(jnp.sin)(x)) + jax.checkpoint(jnp.cos)(x) + jax.nn.silu(x),
    "branches and loops": lambda x: lax.fori_loop(
        0, 3, lambda i, y: y + x, lax.cond(x.sum() > 0, lambda y: -y, jnp.exp, x)
    ),
    "barrier": lambda x: lax.optimization_barrier((x, _VECTOR))[0] * 2,
    "convolutions": lambda x: (
        forward(x, np.ones((3, 8, 1, 1), "float32"), _POINTS),
        forward(x, np.ones((8, 1, 3, 3), "float32"), _SAME._replace(groups=8)),
        forward(x[:, :3], _KERNEL[:, :3], _SAME._replace(stride=(2, 1))),
        forward(x, np.ones((4, 8, 3, 3), "float32"), _SAME._replace(dilation=(2, 2))),
        input_gradient(x, _KERNEL, _SAME._replace(stride=(2, 2)), (2, 5, 11, 12)),
        input_gradient(x, np.ones((8, 5, 1, 1), "float32"), _POINTS, (2, 5, 12, 11)),
        weight_gradient(x, x, _SAME, (8, 8, 3, 3)),
        weight_gradient(x, x[:, :, ::2, ::2], _POINTS, (8, 8, 1, 1)),
        weight_gradient(x, x[:, :, ::2, ::2], _SAME._replace(stride=(2, 2)), (8, 8, 3, 3)),
    ),
    "a kernel for each channel": lambda x: [
        part
        for windows in (_SAME, _SAME._replace(stride=(2, 1)), _SAME._replace(dilation=(1, 2), padding=(0, 2)))
        for y in [forward(x, _KERNELS, windows._replace(groups=8))]
        for part in (
            y,
            input_gradient(y, _KERNELS, windows._replace(groups=8), x.shape),
            weight_gradient(x, y, windows._replace(groups=8), _KERNELS.shape),
        )
    ],
}  # fmt: skip


def _after_convolution(body: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, w: body(forward(x, w, _SAME))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", BODIES)
def test_after_a_convolution(name: str) -> None:
    fn = _after_convolution(BODIES[name])
    with Enabled():
        _same(jax.jit(ordered(fn))(_IMAGE, _KERNEL), jax.jit(fn)(_IMAGE, _KERNEL))


def _primitives(jaxpr: Any) -> set[str]:
    found = {e.primitive.name for e in jaxpr.eqns}
    for equation in jaxpr.eqns:
        for body in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")):
            if hasattr(body, "jaxpr") and hasattr(body.jaxpr, "eqns"):
                found |= _primitives(body.jaxpr)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("size", [(7, 5), (35, 36)])
def test_parts_of_a_strided_convolution(size: tuple[int, int], channels: int) -> None:
    """Small and large images, few and many channels: each is computed in another way."""
    image = _RNG.integers(-2, 3, (2, channels, *size)).astype("float32")
    windows = _SAME._replace(stride=(2, 2))
    kernel = _RNG.integers(-1, 2, (8, channels, 3, 3)).astype("float32")

    def parts(x: Any) -> Any:
        first = forward(x, kernel, windows)
        second = forward(first, _KERNEL[:, :1].repeat(8, 1), _SAME)  # which leads
        return first, second, weight_gradient(x, first, windows, kernel.shape)

    _same(jax.jit(ordered(parts))(image), jax.jit(parts)(image))


def test_each_rule_is_asked_for() -> None:
    met: set[str] = set()
    for body in BODIES.values():
        with Enabled():
            met |= _primitives(jax.make_jaxpr(_after_convolution(body))(_IMAGE, _KERNEL).jaxpr)
    assert set(RULES) - ELEMENTWISE - met == set()
    assert len(met & ELEMENTWISE) > 10


def test_between_convolutions_nothing_is_transposed() -> None:
    def block(x: Any, w1: Any, w2: Any) -> jax.Array:
        x = forward(x, w1, _SAME)
        x = jax.nn.relu(_grouped(x) * _VECTOR[:, None, None]) + x
        return forward(x, w2, _SAME).mean((2, 3))

    x, w1, w2 = (jax.ShapeDtypeStruct(s, "float32") for s in ((2, 5, 6, 6), (8, 5, 3, 3), (8, 8, 3, 3)))
    with Enabled():
        program = jax.make_jaxpr(ordered(block))(x, w1, w2).jaxpr
    moved = [e.invars[0].aval.shape for e in program.eqns if e.primitive.name == "transpose"]
    large = [shape for shape in sorted(moved) if np.prod(shape) > 100]  # the others are statistics
    assert large == [(2, 5, 6, 6), (8, 5, 3, 3), (8, 8, 3, 3)]  # the operands
    elsewhere = jax.make_jaxpr(ordered(block, platform="cuda"))(x, w1, w2).jaxpr
    assert not any(e.primitive.name == "transpose" for e in elsewhere.eqns)


def test_orders_of_operands_and_results() -> None:
    fn, left = _after_convolution(lambda x: (x * 2, x.sum(1))), []  # type: ignore[var-annotated]  # as `ordered` says
    run = ordered(fn, taken=[(0, 2, 3, 1), None], free=lambda: [True, False], left=left)
    with Enabled():
        image, total = jax.jit(run)(_IMAGE.transpose(0, 2, 3, 1), _KERNEL)
    assert left == [(0, 2, 3, 1), None]
    _same((image.transpose(0, 3, 1, 2), total), fn(_IMAGE, _KERNEL))


@pytest.mark.parametrize(
    ("sizes", "strides", "order"),
    [
        ((2, 3, 4, 5), (60, 20, 5, 1), None),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((2, 3), (1, 2), (1, 0)),
        ((2, 1, 4), (4, 1, 1), None),
        ((2, 1, 3), (1, 7, 2), (2, 1, 0)),
        ((2, 3), (1, 3), None),  # with a gap
        ((2, 3), (0, 1), None),
        ((0, 3), (1, 0), None),
        ((), (), None),
    ],
)
def test_orders_of_strides(sizes: Any, strides: Any, order: Any) -> None:
    assert order_of(sizes, strides) == order
    if order is not None and 1 not in sizes:
        assert strides_in(sizes, order) == strides


# Programs of torch


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8),
        nn.GELU(), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 6, 2, 2), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.Flatten(),
        nn.Linear(5 * 36, 4),
    )  # fmt: skip


def _trained(model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[Any]:
    model.zero_grad()
    x = x.detach().requires_grad_()
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), x.grad, *[p.grad.clone() for p in model.parameters()]]  # type: ignore[union-attr]  # they have


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("fresh_dynamo")  # Dynamo gives up on the code of `Sequential` after some modules
@pytest.mark.parametrize("form", ["contiguous", "channels last", "moved"])
def test_a_network_trains(form: str) -> None:
    x, model = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1)), _network()
    if form != "contiguous":
        x = x.contiguous(memory_format=torch.channels_last) if form == "channels last" else x.transpose(2, 3)
    if form == "channels last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    compiled = torch.compile(model, backend="jaten", fullgraph=True)
    for _ in range(2):
        expected, got = _trained(model, model, x), _trained(model, compiled, x)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.sampled(2)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_a_network_trains_on_jax(memory_format: torch.memory_format) -> None:
    x, model = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1)), _network()
    expected = _trained(model, model, x)
    there, moved = x.to("jax").contiguous(memory_format=memory_format), copy.deepcopy(model).to("jax")
    compiled = torch.compile(moved, backend="jaten", fullgraph=True)
    for _ in range(2):
        moved.load_state_dict(model.state_dict())
        for a, b in zip(_trained(moved, compiled, there), expected, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


def test_as_strided_of_an_input_on_jax() -> None:
    compiled = torch.compile(lambda a: a.as_strided((2, 2), (1, 2)) + 1, backend="jaten", fullgraph=True)
    x = torch.arange(12.0).view(3, 4)
    torch.testing.assert_close(compiled(x.to("jax")).cpu(), x.as_strided((2, 2), (1, 2)) + 1)
    with pytest.raises(Exception, match="contiguous"):
        compiled(x.to("jax").t())


def test_views_know_their_order() -> None:
    x = torch.arange(24.0).view(2, 3, 4).to("jax")
    moved = x.permute(2, 0, 1).view_of_arrays  # type: ignore[attr-defined]  # a tensor of the device
    assert x.view_of_arrays.order() is None and moved.order() == (1, 2, 0)  # type: ignore[attr-defined]  # as above
    assert moved.in_order((1, 2, 0), moved.strides()) is x.view_of_arrays.storage.array  # type: ignore[attr-defined]  # as above
    _same(
        moved.in_order((2, 0, 1), strides_in((4, 2, 3), (2, 0, 1))), np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0)
    )
    assert x[1:].permute(2, 0, 1).view_of_arrays.order() is None  # type: ignore[attr-defined]  # a part


@pytest.mark.parametrize("pack", [lambda t: t.clone(), lambda t: t.contiguous(), lambda t: t])
def test_what_is_saved_may_be_taken_elsewhere(pack: Callable[[Any], Any]) -> None:
    x, model = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1)), _network()
    compiled = torch.compile(model, backend="jaten")
    expected = _trained(model, model, x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        got = _trained(model, compiled, x)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_outputs_have_the_strides_of_eager() -> None:
    layers = nn.Sequential(nn.Conv2d(5, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    compiled = torch.compile(lambda x: (layers(x), layers[0](x).permute(0, 2, 3, 1)), backend="jaten")
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 5, 6, 6).contiguous(memory_format=memory_format)
        with torch.no_grad():
            expected = layers(x), layers[0](x).permute(0, 2, 3, 1)
            for a, b in zip(compiled(x), expected, strict=True):
                torch.testing.assert_close(a, b, check_stride=True)


def test_a_transposed_input_is_not_copied_by_its_own() -> None:
    x, w = torch.randn(5, 3), torch.randn(5, 4)
    torch.testing.assert_close(torch.compile(lambda a, b: a @ b + 1, backend="jaten")(x.t(), w), x.t() @ w + 1)


def _row_sums(x: Any) -> Any:
    heavy = jnp.tanh(x) * x
    return x.sum((0, 2, 3)), (x * x).sum((0, 2, 3)), heavy.sum((0, 2, 3)), x.sum((0, 2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(1, 4), (12, 17), (64, 63)])
def test_sums_over_rows_are_as_exact_as_their_dtype(size: tuple[int, int]) -> None:
    """Sums of simple and other terms, over few and many rows, some of them left over."""
    image = (_RNG.standard_normal((3, 5, *size)) + 100).astype("float32")

    with Enabled():
        run, _ = executables.compiled(jax.jit(ordered(_after_convolution(_row_sums))).lower(image, _KERNEL))
        got = run(image, _KERNEL)
        convolved = jax.jit(ordered(_after_convolution(lambda x: x)))(image, _KERNEL)
        expected = _row_sums(np.asarray(convolved, "float64"))
    for of_float32, of_float64 in zip(got, expected, strict=True):
        assert of_float32.dtype == np.float32
        np.testing.assert_allclose(of_float32, of_float64, rtol=1e-6, atol=1e-6 * float(np.abs(of_float64).max()))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64", "int32", "bfloat16"])
def test_what_took_work_is_brought_in_order(dtype: str) -> None:
    def fn(x: Any) -> Any:
        mixed = jnp.maximum(x * 2 - 1, -x) + x
        return (mixed > 0 if dtype == "bool" else mixed.astype(dtype)).reshape(2, -1)

    after = _after_convolution(fn)
    with Enabled():
        _same(jax.jit(ordered(after))(_IMAGE, _KERNEL), jax.jit(after)(_IMAGE, _KERNEL))
