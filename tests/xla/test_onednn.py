"""Convolutions by oneDNN in programs: transformed, exported, in threads, and not kept on the disk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import jaten_ops
from jaten_ops.kernel_base.conv_parts import LAST
from jaten_ops.xla import autotune, autotune_mode, cpu_features, executables, onednn
from tests.harness.in_threads import together

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # for sums of float32 in another order, of a few convolutions
SETTINGS: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (1, 2)), "dilation": (1, 2), "groups": 2}
_draw = np.random.default_rng(0).standard_normal
IMAGE, KERNEL = _draw((2, 7, 8, 4), np.float32), _draw((3, 3, 2, 6), np.float32)


def _by_onednn(image: Any, kernel: Any) -> jax.Array:
    return onednn.convolve(image, kernel, **SETTINGS, numbers=LAST.numbers(4))


def _by_xla(image: Any, kernel: Any) -> jax.Array:
    channels_last = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        image, kernel, SETTINGS["stride"], SETTINGS["padding"], rhs_dilation=SETTINGS["dilation"],
        dimension_numbers=channels_last, feature_group_count=SETTINGS["groups"],
    )  # fmt: skip


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "none": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1)),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (w.sum() * x, w)),
    "vmap": lambda f: lambda x, w: jax.vmap(f, (0, None))(jnp.stack([x, 2 * x]), w),
    "vmap of both": lambda f: lambda x, w: jax.vmap(f, (1, 0))(jnp.stack([x, 2 * x], 1), jnp.stack([w, w + 1])),
    "grad of vmap": lambda f: jax.grad(lambda x, w: jnp.sum(jax.vmap(f, (0, None))(jnp.stack([x, x]), w) ** 2)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x, w: jnp.sum(f(x[None], w) ** 2)), (0, None)),
    "checkpoint": lambda f: jax.grad(lambda x, w: jnp.sum(jax.checkpoint(f)(x, w) ** 2)),
    "loop": lambda f: lambda x, w: jax.lax.map(lambda y: f(y[None], w), x),
    "export": lambda f: lambda x, w: jax.export.deserialize(jax.export.export(jax.jit(f))(x, w).serialize()).call(x, w),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transformed(transform: str) -> None:
    transformed = TRANSFORMS[transform]
    found, expected = transformed(_by_onednn)(IMAGE, KERNEL), transformed(_by_xla)(IMAGE, KERNEL)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE), found, expected)


def test_special_values_stay_where_they_are() -> None:
    image = IMAGE.copy()
    image[0, 3, 3, 0], image[1, 2, 2, 3] = np.inf, np.nan
    found, expected = jax.jit(_by_onednn)(image, KERNEL), jax.jit(_by_xla)(image, KERNEL)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))


def test_a_jaxlib_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_TARGET", "__onednn$something_else")
    onednn.is_there.cache_clear()
    assert not onednn.is_there()
    monkeypatch.undo()
    onednn.is_there.cache_clear()
    assert onednn.is_there()


def test_a_program_with_it_is_not_kept() -> None:
    lowered = jax.jit(_by_onednn).lower(IMAGE, KERNEL)
    assert onednn.is_in(lowered.as_text()) and not onednn.is_in(jax.jit(_by_xla).lower(IMAGE, KERNEL).as_text())
    assert executables.compiled(lowered)[1] is None


# --- chosen by rules --------------------------------------------------------------------------------------------------


class _Images(torch.nn.Module):
    """Convolutions that are worth a call, of all kinds that rules choose it for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 24, 3, padding=1)
        self.depthwise = torch.nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.groups = torch.nn.Conv2d(24, 32, 3, stride=2, padding=1, groups=2)
        self.last = torch.nn.Conv2d(32, 24, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.depthwise(torch.relu(self.first(x))))
        return self.last(torch.tanh(self.groups(x))).mean((2, 3))


def _images() -> tuple[_Images, torch.Tensor]:
    torch.manual_seed(0)
    return _Images().bfloat16(), torch.randn(8, 3, 32, 32).bfloat16()


def _compiled(net: _Images, x: torch.Tensor) -> Any:
    return torch.compile(net, backend="jaten")(x)


def _as_step(net: _Images, x: torch.Tensor) -> Any:
    step = jaten_ops.compile_step(lambda x: net(x).detach(), net)
    step(x)  # eager
    return step(x)


def _as_jax(net: _Images, x: torch.Tensor) -> Any:
    parameters = {n: jnp.asarray(p.detach().float().numpy(), jnp.bfloat16) for n, p in net.named_parameters()}
    found = jax.jit(jaten_ops.as_jax(net))(parameters, jnp.asarray(x.float().numpy(), jnp.bfloat16))
    return torch.from_numpy(np.array(found, np.float32))


def _exported(net: _Images, x: torch.Tensor) -> Any:
    return jaten_ops.export(net.eval(), (x,)).call(x)


def _mapped(net: _Images, x: torch.Tensor) -> Any:
    return torch.compile(torch.func.vmap(lambda x: net(x[None])[0]), backend="jaten")(x)


RUNS: dict[str, tuple[Callable[[_Images, torch.Tensor], Any], bool]] = {
    "compiled": (_compiled, True),
    "compiled on the device": (lambda net, x: _compiled(net.to("jax"), x.to("jax")), True),
    "compiled, mapped": (_mapped, True),
    "a step": (_as_step, True),
    "a step on the device": (lambda net, x: _as_step(net.to("jax"), x.to("jax")), True),
    "eager on the device": (lambda net, x: net.to("jax")(x.to("jax")), False),
    "a JAX function": (_as_jax, False),
    "exported": (_exported, False),
}
"""Ways to run a network, and whether it is a program of one CPU that this process compiles, and runs."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of the kernels for which the call is written into programs."""
    onednn.is_there("bfloat16")
    shapes: list[Any] = []
    config = onednn._config
    monkeypatch.setattr(onednn, "_config", lambda kernel, **given: shapes.append(kernel) or config(kernel, **given))
    monkeypatch.setenv("JATEN_CACHE", "0")
    torch._dynamo.reset()
    return shapes


has_bfloat16 = pytest.mark.skipif(
    not cpu_features.multiplies_bfloat16(), reason="oneDNN may end a process where the processor has no bfloat16"
)


@has_bfloat16
@pytest.mark.parametrize("run", RUNS)
def test_only_own_programs_of_one_cpu_have_calls(run: str, called: list[Any]) -> None:
    net, x = _images()
    with torch.no_grad():
        expected = net.float()(x.float())
        found = RUNS[run][0](net.bfloat16(), x)
    assert bool(called) == RUNS[run][1]
    assert len(set(called)) in {0, 4}  # none, or each of the network's
    assert (found.cpu().float() - expected).norm() < 0.02 * expected.norm()  # five roundings to 8 bits


@has_bfloat16
def test_rules_make_no_call_if_a_user_wants_none(called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_ONEDNN", "0")
    with torch.no_grad():
        _compiled(*_images())
    assert not called


@has_bfloat16
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("way", ["compiled", "step"])
def test_training_beside_float32(device: str, way: str, called: list[Any]) -> None:
    """Gradients of bfloat16 differ from those of float32 by what roundings leave, as eager torch's do."""
    net, x = _images()
    wide = copy.deepcopy(net).float()
    wide(x.float()).square().sum().backward()
    net.to(device)

    def step(x: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        loss = run(x).float().square().sum()
        loss.backward()
        return loss.detach()

    run: Any = torch.compile(net, backend="jaten") if way == "compiled" else net
    call = step if way == "compiled" else jaten_ops.compile_step(step, net)
    for _ in range(2):
        call(x.to(device))
    assert len(called) > 4  # gradients, too
    for found, expected in zip(net.parameters(), wide.parameters(), strict=True):
        assert found.grad is not None and expected.grad is not None
        assert (found.grad.cpu().float() - expected.grad).norm() < 0.03 * expected.grad.norm()


# --- chosen by measurement --------------------------------------------------------------------------------------------


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations for which it is the fastest form, as programs are compiled."""
    found: list[str] = []

    def seconds(key: str, forms: Any, _operands: Any) -> dict[str, float]:
        times = {name: 1.0 if "onednn" in name else 2.0 for name in forms}
        found.extend([key] * (min(times.values()) == 1.0))
        return times

    monkeypatch.setenv("JATEN_CACHE", "1")
    monkeypatch.setenv("JATEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(autotune_mode.ENVIRONMENT, "all")
    monkeypatch.setattr(autotune, "seconds", seconds)
    torch._dynamo.reset()
    return found


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.strided = torch.nn.Conv2d(8, 12, 3, stride=2, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return functional.silu(self.strided(functional.silu(self.depthwise(x)))).mean((2, 3))


def _trained(run: Callable[[torch.Tensor], torch.Tensor], net: _Net, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    result = run(x)
    result.square().sum().backward()
    return [t.detach().cpu() for t in (result, *[p.grad for p in net.parameters() if p.grad is not None])]


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_training(device: str, dtype: torch.dtype, chosen: list[str]) -> None:
    torch.manual_seed(0)
    net, x = _Net().to(dtype), torch.randn(2, 3, 12, 12, dtype=dtype)
    expected = _trained(net, net, x)
    net, x = net.to(device), x.to(device)
    found = _trained(torch.compile(net, backend="jaten"), net, x)
    assert len(chosen) >= 5
    for got, wanted in zip(found, expected, strict=True):
        bound = 0.05 if dtype == torch.bfloat16 else 1e-5  # several roundings to 8 bits, which torch has elsewhere
        assert (got - wanted).norm() <= bound * wanted.norm()


def test_sizes_that_change(chosen: list[str]) -> None:
    net = _Net().eval()
    compiled = torch.compile(net, backend="jaten", dynamic=True)
    for size in (9, 12, 17, 20):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(compiled(x), net(x), **TOLERANCE)
    assert chosen


def test_a_jax_function_mapped_and_differentiated(chosen: list[str]) -> None:
    net = _Net().eval()
    function = jaten_ops.as_jax(net)
    images = torch.randn(3, 2, 3, 12, 12)
    parameters = {name: jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}

    def loss(parameters: Any, x: Any) -> Any:
        return jnp.sum(function(parameters, x) ** 2)

    def torch_loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, parameters, (x,)).square().sum()

    found = jax.vmap(jax.grad(loss), (None, 0))(parameters, jnp.asarray(images.numpy()))
    named = {name: p.detach() for name, p in net.named_parameters()}
    expected = torch.func.vmap(torch.func.grad(torch_loss), (None, 0))(named, images)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted.numpy(), rtol=1e-3, atol=1e-4)  # gradients add up 288 positions


def test_exported_programs_run_anywhere(chosen: list[str], tmp_path: Path) -> None:
    net, x = _Net().eval(), torch.randn(2, 3, 12, 12)
    jaten_ops.export(net, (x,)).save(tmp_path / "net")
    assert chosen and b"__onednn" not in (tmp_path / "net" / "program.bin").read_bytes()
    found = jaten_ops.exporting.loader.load(tmp_path / "net")(x.numpy())
    np.testing.assert_allclose(found, net(x).detach(), **TOLERANCE)


def test_threads(chosen: list[str]) -> None:
    net = _Net().eval()
    compiled, given = torch.compile(net, backend="jaten"), [torch.randn(2, 3, 12, 12) for _ in range(6)]
    with torch.no_grad():
        compiled(given[0])
        for found, x in zip(together(lambda n: [compiled(given[n]) for _ in range(20)]), given, strict=True):
            for got in found:
                torch.testing.assert_close(got, net(x), **TOLERANCE)
