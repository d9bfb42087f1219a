"""Programs whose sizes and branches depend on constants that they make on the device, traced by JAX in each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from jaten_ops import as_jax, compile_step, from_jax, to_jax
from jaten_ops.errors import UnsupportedInputError


def _contrastive(x: torch.Tensor) -> torch.Tensor:
    others = ~torch.eye(4, dtype=torch.bool, device=x.device)
    return (x @ x.T)[others].view(4, 3).logsumexp(1).sum()


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T)[torch.ones(4, 4, device=x.device).triu(1) > 0].sum()


def _written(x: torch.Tensor) -> torch.Tensor:
    even = torch.arange(4, device=x.device) % 2 == 0
    y = x.clone()
    y[even] *= 2
    y[~even] = 0
    return y.sum()


def _places(x: torch.Tensor) -> torch.Tensor:
    return x.flatten()[torch.eye(4, device=x.device).nonzero()[:, 0]].sum()


def _unique(x: torch.Tensor) -> torch.Tensor:
    return x[torch.unique(torch.tensor([3, 1, 1], device=x.device))].sum()


def _counts(x: torch.Tensor) -> torch.Tensor:
    return torch.bincount(torch.tensor([0, 2, 2], device=x.device)).to(x.dtype).sum() * x.sum()


def _repeated(x: torch.Tensor) -> torch.Tensor:
    return (x.repeat_interleave(torch.tensor([1, 2, 3, 1], device=x.device), dim=0) ** 2).sum()


def _lengths(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[: int(k)].sum() for k in torch.tensor([2, 3], device=x.device)]).prod()


def _listed(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[k].sum() * k for k in torch.arange(3, device=x.device).tolist()]).sum()


def _of_numpy(x: torch.Tensor) -> torch.Tensor:
    return x.sum() * float(torch.arange(3, device=x.device).cpu().numpy().sum())


def _equal(x: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(3, device=x.device)
    return x.sum() if torch.equal(ones, ones.clone()) else x.mean()


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x.mean() if torch.zeros((), device=x.device) > 0 else x.exp().sum()


def _one_row(x: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor(1, device=x.device)].exp().sum()


def _resynthesized(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(16, device=x.device)
    spectrum = torch.stft(x.flatten(), 16, hop_length=4, window=window, return_complex=True)
    return (torch.istft(spectrum, 16, hop_length=4, window=window) ** 2).sum()


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    fn.__name__.strip("_"): fn
    for fn in (
        _contrastive, _pairs, _written, _places, _unique, _counts, _repeated, _lengths, _listed, _of_numpy, _equal,
        _branch, _one_row, _resynthesized, torch.corrcoef, torch.cov,
    )
}  # fmt: skip


def _plainly(fn: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    result = (fn(leaf) * 1.0).sum()
    (gradient,) = torch.autograd.grad(result, leaf)
    return result.detach(), gradient


def _in_a_step(fn: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = torch.nn.Parameter(x.clone().to("jax"))

    def step() -> torch.Tensor:
        leaf.grad = None
        result = (fn(leaf) * 1.0).sum()
        result.backward()
        return result.detach()

    run = compile_step(step, [leaf])
    results = [run() for _ in range(3)]
    assert leaf.grad is not None
    return results[-1].cpu(), leaf.grad.cpu()


def _of_jax(through: Callable[[Any], Any]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def run(fn: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        call = as_jax(lambda x: (fn(x) * 1.0).sum())
        found = through(jax.value_and_grad(call))(to_jax(x.to("jax")))
        result, gradient = (from_jax(a).cpu() for a in found)
        return result, gradient

    return run


def _mapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: jax.tree.map(lambda a: a[0], jax.vmap(fn)(x[None]))


WAYS: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "step": _in_a_step,
    "jit": _of_jax(jax.jit),
    "vmap": _of_jax(_mapped),
    "remat": _of_jax(lambda fn: jax.jit(jax.checkpoint(fn))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_constants_have_values(name: str, way: str) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    for got, want in zip(WAYS[way](PROGRAMS[name], x), _plainly(PROGRAMS[name], x), strict=True):
        torch.testing.assert_close(got, want)


# reads of an operand, which only a step may have that does not change it
READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "mask": lambda x: x[x > 0],
    "unique": torch.unique,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.cpu().numpy(),
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > torch.zeros((), device=x.device)),
    "equal": lambda x: torch.equal(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("name", READS)
def test_operands_have_none(name: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        READS[name](x)
        return x

    with pytest.raises(UnsupportedInputError, match="reads the value"):
        jax.jit(as_jax(fn))(jnp.ones(3))
    held = torch.ones(3, device="jax")
    step = compile_step(lambda x: fn(x.sin_()))
    with pytest.raises(UnsupportedInputError, match="reads the value"):
        for _ in range(3):
            step(held)
    torch.testing.assert_close(held.cpu(), torch.ones(3).sin())
