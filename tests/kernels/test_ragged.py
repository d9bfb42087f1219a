"""Products of groups of rows, as mixtures of experts have them: against one product a group."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaten_ops.kernels.ragged import by_group, over_group

from ..harness.comparison import assert_same
from ..harness.crossings import crossed

# ends of the groups, which ascend; the number of rows
GROUPS: dict[str, tuple[list[int], int]] = {
    "empty ones": ([0, 5, 5, 9], 9),
    "rows of none": ([2, 3], 7),
    "larger than a tile": ([150, 151, 300], 300),
    "one": ([5], 5),
    "no rows": ([0, 0], 0),
    "all empty": ([0, 0], 3),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _groups(ends: list[int]) -> list[slice]:
    return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "dtype"), crossed(GROUPS, DTYPES))
def test_forms(name: str, dtype: torch.dtype) -> None:
    """Rows in groups, columns in groups, and what is summed over in groups."""
    ends, n = GROUPS[name]
    x, matrices, y = (_drawn(*s, dtype=dtype) for s in ((n, 3), (len(ends), 3, 4), (n, 4)))
    offs = torch.tensor(ends, dtype=torch.int32)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rows, sums = torch.zeros(n, 4, dtype=dtype), torch.zeros(len(ends), 3, 4, dtype=dtype)
    for i, group in enumerate(_groups(ends)):
        rows[group] = (x[group].to(wide) @ matrices[i].to(wide)).to(dtype)
        sums[i] = (x[group].to(wide).T @ y[group].to(wide)).to(dtype)
    op = torch.ops.jaten._grouped_mm
    assert_same("_grouped_mm", op(x, matrices, offs), rows)
    assert_same("_grouped_mm", op(matrices.mT, x.T, offs), rows.T)
    assert_same("_grouped_mm", op(x.T, y, offs), sums)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["empty ones", "rows of none", "no rows"])
def test_gradients(name: str) -> None:
    ends, n = GROUPS[name]
    offs = torch.tensor(ends, dtype=torch.int32)
    x, matrices = (_drawn(*s, dtype=torch.float64).requires_grad_() for s in ((n, 3), (len(ends), 3, 2)))

    def by_rows(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        return torch.ops.jaten._grouped_mm(x, matrices, offs)

    torch.autograd.gradcheck(by_rows, (x, matrices))
    torch.autograd.gradgradcheck(by_rows, (x, matrices))
    y = _drawn(n, 2, dtype=torch.float64).requires_grad_()
    torch.autograd.gradcheck(lambda x, y: by_rows(x.T, y), (x, y))


def test_a_nan_stays_in_its_group() -> None:
    x = jnp.ones((6, 2)).at[3].set(jnp.nan)
    ends = jnp.array([3, 4, 6])
    products = by_group(x, jnp.ones((3, 2, 2)), ends)
    assert np.isnan(products).all(1).tolist() == [False, False, False, True, False, False]
    sums = over_group(x, x, ends)
    assert np.isnan(sums).all((1, 2)).tolist() == [False, True, False]


@pytest.mark.exhaustive
def test_under_vmap() -> None:
    x = jax.random.normal(jax.random.key(0), (4, 6, 2))
    matrices = jnp.ones((3, 2, 2))
    ends = jnp.array([[1, 2, 6], [0, 0, 0], [6, 6, 6], [2, 4, 5]])
    got = jax.vmap(by_group, (0, None, 0))(x, matrices, ends)
    for one, rows, last in zip(got, x, ends, strict=True):
        np.testing.assert_allclose(one, by_group(rows, matrices, last), rtol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_the_operator_of_transformers(device: str) -> None:
    assert transformers.integrations.moe  # defines it
    offs = torch.tensor([2, 2, 5])
    x, matrices = (_drawn(*s, dtype=torch.float64) for s in ((6, 3), (3, 3, 4)))
    leaves = [t.clone().requires_grad_() for t in (x, matrices)]
    expected = torch.ops.transformers.grouped_mm_fallback(*leaves, offs)
    expected.square().sum().backward()
    given = [t.to(device).requires_grad_() for t in (x, matrices)]
    compiled = torch.compile(torch.ops.transformers.grouped_mm_fallback, backend="jaten", fullgraph=True)
    result = compiled(*given, offs.to(device))
    result.square().sum().backward()
    torch.testing.assert_close(result.cpu(), expected)
    for got, want in zip(given, leaves, strict=True):
        torch.testing.assert_close(got.grad.cpu(), want.grad)


def _mixture() -> torch.nn.Module:
    config = transformers.MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        max_position_embeddings=16,
    )
    return transformers.MixtralForCausalLM(config)


_MORE = [pytest.param(*way, marks=pytest.mark.exhaustive) for way in (("cpu", False), ("jax", False), ("jax", True))]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("device", "compiled"), [("cpu", True), *_MORE])
def test_a_mixture_of_experts(device: str, compiled: bool) -> None:
    torch.manual_seed(0)
    model = _mixture()
    tokens = torch.randint(32, (2, 8))
    model(input_ids=tokens, labels=tokens).loss.backward()
    given = copy.deepcopy(model).to(device)
    given.zero_grad()
    run = torch.compile(given, backend="jaten") if compiled else given
    run(input_ids=tokens.to(device), labels=tokens.to(device)).loss.backward()
    for (name, parameter), (_, truth) in zip(given.named_parameters(), model.named_parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), truth.grad, rtol=1e-4, atol=1e-6, msg=name)
