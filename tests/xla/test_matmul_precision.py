"""Products on accelerators have the precision that torch is told, and a CPU's programs are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

from jaten_ops.xla import matmul_precision

_GPU, _CPU = ([SimpleNamespace(platform=name)] for name in ("gpu", "cpu"))
SETTINGS = {"highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH, "medium": lax.Precision.DEFAULT}


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def _precision(*, is_elsewhere: bool = False) -> lax.Precision | None:
    """The precision of a product that is traced in the context."""
    with matmul_precision.as_in_torch(is_elsewhere=is_elsewhere):
        (product,) = jax.make_jaxpr(lambda x: lax.dot(x, x))(jnp.ones((2, 2))).eqns
    found = product.params["precision"]
    assert found is None or found[0] is found[1]
    return found and found[0]


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_accelerator(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: _GPU)
    torch.set_float32_matmul_precision(setting)
    assert _precision() is SETTINGS[setting]
    with jax.default_matmul_precision("high"):  # the program's own
        assert _precision() is lax.Precision.HIGH


def test_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: _CPU)
    assert _precision() is None
    assert _precision(is_elsewhere=True) is lax.Precision.HIGHEST  # a program exported for others
