"""Overrides of operators on every path, beside plain torch: a kernel, a gradient, or both, and that they really ran."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import jaten_ops
from jaten_ops.errors import (
    InvalidSchemaError,
    KernelResultError,
    OverrideTargetError,
    UnknownOpError,
    UnsupportedInputError,
)
from jaten_ops.ops.override_targets import FUNCTIONS
from jaten_ops.registry import active_overrides

from .harness.crossings import crossed

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    assert active_overrides.active() == ()


# The targets: a kernel that computes the same, a call of the operator, and the argument that has a gradient


def _attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa):
    scores = jnp.einsum("...qd,...kd->...qk", query, key) * query.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if is_causal else True
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1) @ value


def _layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable):
    mean, var = input.mean(-1, keepdims=True), input.var(-1, keepdims=True)
    return (input - mean) * jax.lax.rsqrt(var + eps)


def _rms_norm(input, normalized_shape, weight, eps):
    return input * jax.lax.rsqrt((input**2).mean(-1, keepdims=True) + jnp.finfo(input.dtype).eps)


def _cross_entropy(self, target, weight, reduction, ignore_index, label_smoothing):
    return -jnp.take_along_axis(jax.nn.log_softmax(self, -1), target[:, None], -1).mean()


def _classes(x: Tensor) -> Tensor:
    return torch.arange(4, device=x.device)


Call = Callable[[Any, Tensor], Tensor]

TARGETS: dict[str, tuple[Callable[..., Any], Call, str]] = {
    "gelu": (lambda self, *, approximate: jax.nn.gelu(self, approximate=False), lambda ops, x: ops.gelu(x), "self"),
    "relu": (lambda self: jnp.where(self > 0, self, 0), lambda ops, x: ops.relu_(x * 1), "self"),
    "add.Tensor": (lambda self, other, *, alpha: self + alpha * other, lambda ops, x: ops.add(x, torch.full_like(x, 2)), "self"),
    "softmax.int": (lambda self, dim, dtype: jax.nn.softmax(self, dim), lambda ops, x: ops.softmax(x, -1), "self"),
    "linear": (lambda input, weight, bias: input @ weight.T, lambda ops, x: ops.linear(x, x.detach()), "input"),
    "layer_norm": (_layer_norm, lambda ops, x: ops.layer_norm(x, [8]), "input"),
    "rms_norm": (_rms_norm, lambda ops, x: ops.rms_norm(x, [8]), "input"),
    "scaled_dot_product_attention": (
        _attention,
        lambda ops, x: ops.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        "query",
    ),
    "cross_entropy_loss": (_cross_entropy, lambda ops, x: ops.cross_entropy_loss(x, _classes(x)), "self"),
}


# The ways to run a call: each gives the result, and the gradient of its sum weighted by cosines


def _differentiated(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().clone().requires_grad_()
    y = run(leaf)
    (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum().backward()
    assert leaf.grad is not None
    return y.detach().cpu(), leaf.grad.cpu()


def _compiled(call: Call, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return _differentiated(
        torch.compile(lambda x: call(torch.ops.aten, x), backend="jaten", fullgraph=True, **options), x
    )


def _in_a_step(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        y = call(torch.ops.aten, leaf)
        (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum().backward()
        return y.detach(), leaf.grad

    compiled = jaten_ops.compile_step(step)
    compiled(x.to("jax"))  # the first call is eager
    y, grad = compiled(x.to("jax"))
    return y.cpu(), grad.cpu()


def _as_jax(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    function = jaten_ops.as_jax(lambda x: call(torch.ops.aten, x))
    y, pull = jax.vjp(jax.jit(function), jnp.asarray(x.numpy()))
    (grad,) = pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))
    return jaten_ops.from_jax(y).cpu(), jaten_ops.from_jax(grad).cpu()


def _mapped(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    return _differentiated(lambda x: torch.vmap(lambda x: call(torch.ops.aten, x))(x[None])[0], x)


def _func_grad(call: Call, x: Tensor) -> tuple[Tensor, Tensor]:
    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        y = call(torch.ops.aten, x)
        return (y * torch.arange(y.numel(), device=y.device).view(y.shape).cos()).sum(), y

    grad, y = torch.func.grad(loss, has_aux=True)(x)
    return y.detach().cpu(), grad.cpu()


WAYS: dict[str, Callable[[Call, Tensor], tuple[Tensor, Tensor]]] = {
    "direct": lambda call, x: _differentiated(lambda x: call(torch.ops.jaten, x), x),
    "direct on jax": lambda call, x: _differentiated(lambda x: call(torch.ops.jaten, x), x.to("jax")),
    "eager": lambda call, x: _differentiated(lambda x: call(torch.ops.aten, x), x.to("jax")),
    "compiled": _compiled,
    "compiled on jax": lambda call, x: _compiled(call, x.to("jax")),
    "dynamic": lambda call, x: _compiled(call, x, dynamic=True),
    "a step": _in_a_step,
    "as_jax": _as_jax,
    "vmap": lambda call, x: _mapped(call, x.to("jax")),
    "func.grad": lambda call, x: _func_grad(call, x.to("jax")),
    "compiled vmap": lambda call, x: _differentiated(
        torch.compile(lambda x: torch.vmap(lambda x: call(torch.ops.aten, x))(x[None])[0], backend="jaten"), x
    ),
}

PARTS = ("kernel", "gradient", "both")


class _Counted:
    """A function that counts its calls: an override is new in each test, so it is traced there."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.count, self._fn = 0, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._fn(*args, **kwargs)


def _override(name: str, parts: str, when: Callable[..., Any] | None = None) -> tuple[Any, _Counted, _Counted]:
    kernel, _, argument = TARGETS[name]
    run, pull = _Counted(kernel), _Counted(lambda grads, args, results: {argument: 7 * jnp.ones_like(args[0])})
    options: dict[str, Any] = {}
    if parts != "gradient":
        options["kernel"] = run
    if parts != "kernel":
        options["gradient"] = pull
    return jaten_ops.override(name, when=when, **options), run, pull


@pytest.mark.parametrize(("name", "way", "parts"), crossed(TARGETS, WAYS, PARTS, strength=1))
def test_parity(name: str, way: str, parts: str) -> None:
    _, call, _ = TARGETS[name]
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    y, grad = _differentiated(lambda x: call(torch.ops.aten, x), x)
    override, run, pull = _override(name, parts)
    with override:
        found, its_grad = WAYS[way](call, x)
    torch.testing.assert_close(found, y, atol=1e-5, rtol=1e-5)
    assert (run.count > 0) == (parts != "gradient")
    assert (pull.count > 0) == (parts != "kernel")
    if parts == "kernel":
        torch.testing.assert_close(its_grad, grad, atol=1e-5, rtol=1e-5)
    else:  # attention is called with x three times, of which the query gets 7
        assert torch.equal(its_grad, torch.full_like(x, 7))


# Which override takes a call


def _scaled(factor: float, **options: Any) -> Any:
    return jaten_ops.override("relu", kernel=lambda self: factor * jnp.maximum(self, 0), **options)


def _factor(x: Tensor | None = None) -> float:
    return F.relu(torch.ones(2, device="jax") if x is None else x)[0].item()


def test_the_innermost_and_latest_takes_a_call() -> None:
    two, three, five = _scaled(2), _scaled(3), _scaled(5)
    two.install()
    three.install()
    assert _factor() == 3
    assert repr(two).startswith("override('relu', kernel=...) at ") and "test_operator_overrides.py" in repr(two)
    two.install()  # again: it is the latest now
    assert _factor() == 2
    with five, three, five:
        assert _factor() == 5
        program = torch.compile(F.relu, backend="jaten", options={"overrides": [two]})
        assert _factor(program(torch.ones(2, device="jax")) / 5 * 5) == 10  # relu of what the program gives
    two.remove()
    three.remove()
    three.remove()  # nothing
    assert _factor() == 1


def test_a_gradient_and_a_kernel_of_two_overrides() -> None:
    gradient = jaten_ops.override("relu", gradient=lambda grads, args, results: {"self": grads[0] * results[0]})
    x = torch.ones(2, device="jax", requires_grad=True)
    with _scaled(3), gradient:
        F.relu(x).sum().backward()
    assert x.grad.tolist() == [3, 3]
    x.grad = None
    with gradient, _scaled(3):  # the inner one has the gradient of its kernel
        F.relu(x).sum().backward()
    assert x.grad.tolist() == [3, 3] and gradient.gradient is not None
    with gradient:
        assert _factor() == 1


def test_conditions() -> None:
    seen: list[Any] = []

    def when(self, other, *, alpha):
        seen.append((self.shape, other.dtype, str(self.device), isinstance(self, Tensor), alpha, self.requires_grad))
        return self.ndim == 2

    override = jaten_ops.override("add.Tensor", kernel=lambda self, other, *, alpha: self + other + 10, when=when)
    x, y = torch.zeros(2, 2, device="jax"), torch.zeros(2, device="jax")
    compiled = torch.compile(lambda x, y: (x + y, y + y, x + 1), backend="jaten")
    with override:
        results = [x + y, y + y, x + 1]
        assert [r.max().item() for r in results] == [10, 0, 11]
        assert [r.max().item() for r in compiled(x, y)] == [10, 0, 11]
        assert (y + 1).dtype is torch.float32
    assert seen[0] == ((2, 2), torch.float32, "jax:0", True, 1, False)
    refused = _scaled(2, when=lambda self: bool(self.sum() > 0))
    with refused, pytest.raises(UnsupportedInputError, match="sum of a tensor"):
        F.relu(x)


def test_a_condition_on_dynamic_sizes_is_a_guard() -> None:
    compiled = torch.compile(F.relu, backend="jaten", dynamic=True)
    counters.clear()
    with _scaled(3, when=lambda self: self.shape[0] > 4):
        assert [compiled(torch.ones(n))[0].item() for n in (2, 3, 7, 9, 4)] == [1, 1, 3, 3, 1]
    assert counters["stats"]["unique_graphs"] == 2


def test_sizes_that_change_capture_once() -> None:
    override, _, _ = _override("layer_norm", "both")
    compiled = torch.compile(lambda x: F.layer_norm(x, (8,)).sum(), backend="jaten", dynamic=True)
    counters.clear()
    with override:
        for n in (3, 5, 7):
            x = torch.randn(n, 8, requires_grad=True)
            compiled(x).backward()
            assert torch.equal(x.grad, torch.full_like(x, 7))
    assert counters["stats"]["unique_graphs"] == 1


def test_calls_that_draw_random_numbers_stay_those_of_aten() -> None:
    run = _Counted(_attention)
    x = torch.randn(1, 2, 4, 8, device="jax")
    with jaten_ops.override("scaled_dot_product_attention", kernel=run):
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        assert not run.count
        F.scaled_dot_product_attention(x, x, x)
        assert run.count


def test_logs_say_what_takes_what(caplog: pytest.LogCaptureFixture) -> None:
    override = _scaled(2, when=lambda self: self.ndim == 1)
    with caplog.at_level(logging.DEBUG, "jaten_ops.overrides"), override:
        _factor()
        F.relu(torch.ones(2, 2, device="jax"))
    lines = [r.getMessage() for r in caplog.records if r.name == "jaten_ops.overrides"]
    assert f"relu(float32[2] on jax:0): the kernel of the override at {override.where}" in lines
    assert any(line.startswith("relu: no override is for [float32[2, 2]") for line in lines)


# Where overrides are active


def test_threads_have_their_own() -> None:
    inside, found = threading.Barrier(2), {}
    compiled = torch.compile(F.relu, backend="jaten")

    def work(name: str, context: Any) -> None:
        with context:
            inside.wait()
            eager = _factor()
            inside.wait()
            found[name] = eager, compiled(torch.ones(2))[0].item(), _factor()
            inside.wait()

    threads = [
        threading.Thread(target=work, args=args)
        for args in (("with", _scaled(3)), ("without", contextlib.nullcontext()))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"with": (3, 3, 3), "without": (1, 1, 1)}


def test_what_was_compiled_follows() -> None:
    compiled = torch.compile(lambda x: F.relu(x) + 1, backend="jaten")
    on_jax = torch.compile(lambda x: F.relu(x) + 1, backend="jaten")
    step = jaten_ops.compile_step(lambda x: F.relu(x) + 1)
    override = _scaled(3)
    for is_installed in (False, True, False, True):
        if is_installed:
            override.install()
        x, y = torch.ones(2), torch.ones(2, device="jax")
        expected = 4 if is_installed else 2
        assert [f(a)[0].item() for f, a in ((compiled, x), (on_jax, y), (step, y), (step, y))] == [expected] * 4
        if is_installed:
            override.remove()
    counters.clear()
    with override:
        assert compiled(torch.ones(2))[0].item() == 4
    assert not counters["stats"]["unique_graphs"]  # what was compiled for it is still there


def test_what_was_compiled_before_the_first_override_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaten_ops.backend import captured_overrides

    monkeypatch.setattr(active_overrides, "_made", False)
    compiled = torch.compile(lambda x: F.relu(x) + 1, backend="jaten")
    compiled(torch.ones(2))
    assert captured_overrides._COMPILED
    monkeypatch.setattr(active_overrides, "AT_FIRST", [captured_overrides._forget_all])
    with _scaled(3):
        assert compiled(torch.ones(2))[0].item() == 4
    assert compiled(torch.ones(2))[0].item() == 2


def test_blocks_inside_of_a_compiled_function() -> None:
    inner, outer = _scaled(3), _scaled(5)

    @torch.compile(backend="jaten", fullgraph=True, options={"overrides": [outer]})
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = F.relu(x)
        with inner:
            inside = F.relu(x)
        return before, inside, F.relu(x)

    x = torch.ones(2, requires_grad=True)
    results = function(x)
    assert [r[0].item() for r in results] == [5, 3, 5]
    sum(r.sum() for r in results).backward()
    assert x.grad.tolist() == [13, 13]


def test_nothing_is_left_in_the_tables_of_torch() -> None:
    op = torch.ops.aten.relu.default
    keys = ("AutogradPrivateUse1", "FuncTorchDynamicLayerFrontMode")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    x = torch.ones(2, device="jax")
    with _scaled(3):
        assert all(has("aten::relu", key) for key in keys)
        assert F.relu(torch.ones(2))[0] == 1  # on the CPU, PyTorch's own
        assert torch.vmap(F.relu)(torch.ones(2, 2))[0, 0] == 1
        torch.compile(F.relu, backend="jaten")(torch.ones(2))
    assert not any(has("aten::relu", key) for key in keys)
    assert not any(key.name.startswith("Autograd") for key in op.py_kernels)
    assert F.relu(x)[0].item() == torch.ops.jaten.relu(x)[0].item() == 1


def test_in_inference_mode() -> None:
    with _scaled(3), torch.inference_mode():
        for run in (F.relu, torch.ops.jaten.relu, torch.compile(F.relu, backend="jaten")):
            assert run(torch.ones(2, device="jax"))[0].item() == 3
        assert torch.ops.jaten.relu(torch.ones(2))[0].item() == 3
        assert torch.compile(F.relu, backend="jaten")(torch.ones(2))[0].item() == 3
    kernel = jaten_ops.override("linear", kernel=lambda input, weight, bias: 3 * input @ weight.T)
    ones = torch.ones(2, 2)
    with kernel, torch.inference_mode():
        assert torch.ops.jaten.linear(ones, ones)[0, 0].item() == F.linear(ones.to("jax"), ones.to("jax"))[0, 0] == 6


# With what else there is


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_under_autocast(device: str) -> None:
    seen: list[Any] = []

    def noted(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda first, *rest, **named: (seen.append(jnp.dtype(first.dtype).name), fn(first, *rest, **named))[1]

    kernels = {
        "linear": lambda input, weight, bias: input @ weight.T,
        "layer_norm": lambda input, *rest: input,
        "cross_entropy_loss": lambda self, target, *rest: self.sum(),
    }
    weight = torch.randn(8, 8, device=device)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device, dtype=torch.bfloat16):
            y = F.linear(x, weight)
            return y, F.layer_norm(y, (8,)), F.cross_entropy(y, _classes(x))

    x = torch.randn(4, 8, device=device)
    expected = [t.dtype for t in run(x)]
    with contextlib.ExitStack() as stack:
        for name, kernel in kernels.items():
            stack.enter_context(jaten_ops.override(name, kernel=noted(kernel)))
        assert [t.dtype for t in torch.compile(run, backend="jaten")(x)] == expected
        if device == "jax":
            assert [t.dtype for t in run(x)] == expected
    assert seen[:3] == ["bfloat16", "bfloat16" if device == "cpu" else "float32", "float32"]


def test_derivatives_of_higher_order_and_forward_mode() -> None:
    square = jaten_ops.override("exp", gradient=lambda grads, args, results: {"self": grads[0] * args[0] ** 2})
    kernel = jaten_ops.override("exp", kernel=lambda self: self**3)
    x = torch.tensor([2.0, 3.0], device="jax")
    with square:
        assert torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))[1].tolist() == [4, 9]
        assert torch.func.hessian(lambda x: x.exp().sum())(x).diagonal().tolist() == [4, 6]
    with kernel:
        assert torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))[1].tolist() == [12, 27]
        assert torch.func.hessian(lambda x: x.exp().sum())(x).diagonal().tolist() == [12, 18]


@pytest.mark.parametrize("way", ["direct", "eager", "compiled", "vmap"])
def test_residuals(way: str) -> None:
    shapes: list[Any] = []

    def gradient(grads, args, results):
        shapes.append([r.shape for r in results])
        return {"self": grads[0] * results[1]}

    override = jaten_ops.override(
        "exp", kernel=lambda self: (jnp.exp(self), 2 * jnp.exp(self)), gradient=gradient, residuals=1
    )
    with override:
        y, grad = WAYS[way](lambda ops, x: ops.exp(x), torch.zeros(3))
    assert y.tolist() == [1, 1, 1]
    torch.testing.assert_close(grad, 2 * torch.arange(3).cos())
    assert shapes and all(len(s) == 2 for s in shapes)


class _Marked(Tensor):
    pass


def test_subclasses() -> None:
    x = torch.ones(2, device="jax").as_subclass(_Marked)
    override = jaten_ops.override(
        "add.Tensor",
        kernel=lambda self, other, *, alpha: self + other + 10,
        when=lambda self, other, *, alpha: isinstance(self, _Marked),
    )
    with override:
        for run in (lambda x: x + x, torch.compile(lambda x: x + x, backend="jaten")):
            assert run(x)[0].item() == 12 and isinstance(run(x), _Marked)
            assert run(torch.ones(2, device="jax"))[0].item() == 2


class _Scaled(Tensor):
    """Values times a scale."""

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor) -> _Scaled:
        return Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype, device=values.device)

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self.values, self.scale = values, scale

    def __repr__(self) -> str:  # torch's log of what it traces asks for it
        return "_Scaled()"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> _Scaled:
        return _Scaled(inner["values"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return _Scaled(args[0].values, args[0].scale)
        return func(*(a.values * a.scale if isinstance(a, _Scaled) else a for a in args), **(kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


def _ways_of(function: Callable[..., Any], device: str) -> list[Callable[..., Any]]:
    compiled = torch.compile(function, backend="jaten", fullgraph=True)
    return [compiled, function] if device == "jax" else [compiled]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_subclasses_that_wrap_others(device: str) -> None:
    def scaled() -> _Scaled:
        return _Scaled(torch.tensor([1, 2], dtype=torch.int8, device=device), torch.tensor(0.5, device=device))

    sums = jaten_ops.override(
        "add.Tensor",
        kernel=lambda self, other, *, alpha: self.replace(values=self.values + alpha * other.values),
        when=lambda self, other, *, alpha: isinstance(self, _Scaled) and isinstance(other, _Scaled),
    )
    products = jaten_ops.override(
        "mul.Tensor",
        kernel=lambda self, other: 10 * self.values * self.scale * other,
        gradient=lambda grads, args, results: {"self": grads[0] * args[1], "other": grads[0] * args[0].scale},
        when=lambda self, other: isinstance(self, _Scaled),
    )
    with sums:
        for run in _ways_of(lambda x: x + x, device):
            total = run(scaled())
            assert type(total) is _Scaled and total.values.tolist() == [2, 4] and total.scale.item() == 0.5
    with products:
        for run in _ways_of(lambda x, y: x * y, device):
            x, y = scaled().requires_grad_(), torch.full((2,), 3.0, device=device, requires_grad=True)
            result = run(x, y)
            result.sum().backward()
            assert result.tolist() == [15, 30] and x.grad.tolist() == [3, 3] and y.grad.tolist() == [0.5, 0.5]


# Names, and what is refused


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_other_names_call_their_operator(name: str) -> None:
    x = torch.randn(2, 4, device="jax")
    calls: dict[str, tuple[Any, ...]] = {
        "cross_entropy": (x, torch.tensor([1, 0], device="jax")),
        "nll_loss": (x, torch.tensor([1, 0], device="jax")),
        "fold": (x, (2, 2), (1, 1)),
        "softmax": (x, 1),
        "log_softmax": (x, 1),
        "logsigmoid": (x,),
    }
    expected = getattr(F, name)(*calls[name])
    run = _Counted(lambda *args: jnp.zeros(expected.shape))
    with jaten_ops.override(name, kernel=run):
        assert not getattr(F, name)(*calls[name]).any() and run.count


@pytest.mark.parametrize("parts", ["kernel", "gradient"])
def test_a_function_that_is_no_operator(parts: str) -> None:
    def normalize(input, p, dim, eps):
        return 3 * input / jnp.linalg.norm(input, axis=dim, keepdims=True)

    options = (
        {"kernel": normalize} if parts == "kernel" else {"gradient": lambda g, a, r: {"input": 7 * jnp.ones_like(a[0])}}
    )
    override, known = jaten_ops.override("normalize", **options), F.normalize
    x = torch.randn(2, 4)
    factor = 3 if parts == "kernel" else 1
    y, grad = _differentiated(F.normalize, x)
    for run, operand in (
        (lambda x: F.normalize(x), x.to("jax")),
        (torch.compile(lambda x: F.normalize(x), backend="jaten", fullgraph=True), x),
        (lambda x: torch.vmap(lambda x: F.normalize(x, dim=0))(x), x.to("jax")),
    ):
        with override:
            found, its_grad = _differentiated(run, operand)
        torch.testing.assert_close(found, factor * y)
        torch.testing.assert_close(
            its_grad, 3 * grad if parts == "kernel" else torch.full_like(x, 7), atol=1e-6, rtol=1e-5
        )
        torch.testing.assert_close(run(operand).cpu(), y)
    with override:
        torch.testing.assert_close(F.normalize(x), y)  # on the CPU, PyTorch's own
    assert F.normalize is known
    with pytest.raises(Exception, match="of a Python function, expected one of an operator"):
        torch.compile(lambda x: F.normalize(x), backend="jaten", options={"overrides": [override]})(x)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no such": ("geluu", UnknownOpError, "Did you mean gelu"),
    "in place": ("relu_", OverrideTargetError, "writes to an argument. Fix: override 'relu'"),
    "out": ("add.out", OverrideTargetError, "writes its result to `out`. Fix: override 'add.Tensor'"),
    "view": ("transpose.int", OverrideTargetError, "may return a view"),
    "composed view": ("reshape", OverrideTargetError, "may return a view"),
    "random": ("bernoulli", OverrideTargetError, "draws random numbers"),
    "random function": ("gumbel_softmax", OverrideTargetError, "draws random numbers"),
    "without tensors": ("arange", OverrideTargetError, "takes no tensor"),
    "no tensors": ("size.int", OverrideTargetError, "returns int"),
    "statistics": ("batch_norm", OverrideTargetError, "running statistics"),
    "without types": ("scaled_mm", OverrideTargetError, "has no type of an operator's"),
    "an operator": (torch.ops.aten.relu_.default, OverrideTargetError, "writes to an argument"),
}


@pytest.mark.parametrize(("target", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_targets_that_are_refused(target: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        jaten_ops.override(target, gradient=lambda grads, args, results: {})


def test_functions_that_are_refused() -> None:
    with pytest.raises(UnsupportedInputError, match="neither a kernel nor a gradient"):
        jaten_ops.override("relu")
    with pytest.raises(UnsupportedInputError, match="residuals=1"):
        jaten_ops.override("relu", kernel=jnp.abs, residuals=1)
    with pytest.raises(InvalidSchemaError, match=r"write def kernel\(self\)"):
        jaten_ops.override("relu", kernel=lambda x, y: x)
    with pytest.raises(InvalidSchemaError, match=r"write def gradient\(grads, args, results\)"):
        jaten_ops.override("relu", gradient=lambda grads: {})
    with pytest.raises(InvalidSchemaError, match=r"write def when\(self, other, \*, alpha\)"):
        jaten_ops.override("add.Tensor", kernel=lambda self, other, *, alpha: self, when=lambda self, other: True)
    with pytest.raises(InvalidSchemaError, match="static names 'beta'"):
        jaten_ops.override("relu", kernel=jnp.abs, static=["beta"])
    with pytest.raises(Exception, match=r"a list of what jaten_ops\.override makes"):
        torch.compile(F.relu, backend="jaten", options={"overrides": ["relu"]})(torch.ones(2))


@pytest.mark.parametrize("way", ["direct", "eager", "compiled"])
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kernel": lambda self: self[:1]}, KernelResultError, "correct the kernel, whose results are like those"),
        ({"kernel": lambda self: self.astype(jnp.int32)}, KernelResultError, "int32"),
        ({"kernel": lambda self: (self, self)}, KernelResultError, "its schema says Tensor"),
        ({"gradient": lambda grads, args, results: {"x": args[0]}}, UnsupportedInputError, "a dict from self"),
        ({"gradient": lambda grads, args, results: {"self": args[0][:1]}}, UnsupportedInputError, "by 'self'"),
    ],
)
def test_results_that_are_refused(way: str, options: Any, error: type[Exception], text: str) -> None:
    with jaten_ops.override("relu", **options), pytest.raises(Exception, match=text) as found:
        WAYS[way](lambda ops, x: ops.relu(x), torch.ones(2))
    assert error.__name__ in str(found.value) or isinstance(found.value, error)
