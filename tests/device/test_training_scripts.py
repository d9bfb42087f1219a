"""Other people's training scripts with the device string changed: the device `jax` beside the CPU, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils._pytree import tree_map_only

import jaten_ops  # noqa: F401  # the device jax

from ..harness.parity import violations
from ..programs.models import BY_NAME
from ..programs.scripts import SCRIPTS, mixed_precision
from ..test_models import eager_standard, make, observe

# Beside the one in mixed precision; the others take seconds to compile their operators.
DEFAULT = ("averaged_batch_norm",)


@pytest.fixture
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_in_float64")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in DEFAULT else [pytest.mark.exhaustive]) for n in SCRIPTS]
)
def test_scripts(name: str) -> None:
    expected, got = (SCRIPTS[name](device) for device in ("cpu", "jax"))
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)


def test_mixed_precision() -> None:
    """Two devices may round differently, so a bfloat16 may differ in its last digit."""
    expected, got = (mixed_precision(device) for device in ("cpu", "jax"))
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=2**-10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_models_of_transformers(name: str) -> None:
    case = BY_NAME[name]
    sizes = (4, 4)
    model, batches = make(case, torch.float32, sizes)
    standard = eager_standard(name, "train", torch.float32, sizes)
    batches = tree_map_only(torch.Tensor, lambda x: x.to("jax"), batches)
    assert not violations([observe(case, "train", model.to("jax"), batches)], standard)
