"""Convolutions by oneDNN in programs: transformed, exported, in threads, and not kept on the disk."""

from __future__ import annotations

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
from jaten_ops.xla import autotune, autotune_mode, executables, onednn
from tests.harness.in_threads import together

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # for sums of float32 in another order, of a few convolutions
SETTINGS: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (1, 2)), "dilation": (1, 2), "groups": 2}
_draw = np.random.default_rng(0).standard_normal
IMAGE, KERNEL = _draw((2, 7, 8, 4), np.float32), _draw((3, 3, 2, 6), np.float32)


def _by_onednn(image: Any, kernel: Any) -> jax.Array:
    return onednn.convolve(image, kernel, **SETTINGS)


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
