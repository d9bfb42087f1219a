"""Functions that check the values of arguments, where a program is traced: it has none, and they do not ask."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import distributions as D  # as programs name it
from torch import nn
from torch.nn import functional as F

import jaten_ops
from tests.harness.crossings import crossed

Program = Callable[[torch.Tensor], torch.Tensor]

torch.manual_seed(0)
_LAYER = nn.TransformerEncoderLayer(3, 1, 4, 0.0, batch_first=True)
_ENCODER = nn.TransformerEncoder(_LAYER, 2, enable_nested_tensor=False)
_DECODER = nn.TransformerDecoder(nn.TransformerDecoderLayer(3, 1, 4, 0.0, batch_first=True), 1)


def _with_mask(module: nn.Module, *memory: int) -> Program:
    """A module of transformers on tensors of any device, with the mask of words that come later."""
    state = dict(module.named_parameters())

    def program(x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(4, device=x.device)
        given = {name: value.detach().to(x.device) for name, value in state.items()}
        return torch.func.functional_call(module, given, (x[None], *[x[None]] * len(memory), mask))

    return program


PROGRAMS: dict[str, Program] = {
    "encoder": _with_mask(_ENCODER),
    "decoder": _with_mask(_DECODER, 1),
    "normal": lambda x: D.Normal(x, x.exp()).log_prob(x * 2),
    "policy": lambda x: D.Categorical(logits=x).log_prob(torch.tensor([0, 2, 1, 0])),
    "entropy": lambda x: D.Categorical(logits=x).entropy(),
    "kl": lambda x: D.kl_divergence(D.Normal(x, x.exp()), D.Normal(torch.zeros(3), torch.ones(3))),
    "beta": lambda x: D.Beta(x.exp(), x.exp() + 1).log_prob(x.sigmoid()),
    "multivariate": lambda x: D.MultivariateNormal(x[0], torch.eye(3) + x[0].square().mean()).log_prob(x),
    "independent": lambda x: D.Independent(D.Bernoulli(logits=x), 1).log_prob((x > 0).float()),
    "mixture": lambda x: D.MixtureSameFamily(D.Categorical(logits=x), D.Normal(x, x.exp())).log_prob(x[:, 0]),
    "transformed": lambda x: D.TransformedDistribution(D.Normal(x, x.exp()), [D.TanhTransform()]).log_prob(x.tanh()),
    "expanded": lambda x: D.Normal(x, x.exp()).expand((2, 4, 3)).log_prob(x),
    "gaussian loss": lambda x: F.gaussian_nll_loss(x, x * 2, x.exp(), full=True),
    "gaussian loss, small variances": lambda x: F.gaussian_nll_loss(x, x * 2, x * x * 0.1, eps=0.05, reduction="none"),
    "gaussian loss, a variance a row": lambda x: F.gaussian_nll_loss(x, x * 2, x[:, 0].exp(), reduction="sum"),
    "gaussian loss, a constant": lambda x: F.gaussian_nll_loss(x, x * 2, torch.full_like(x, 2.0)),
    "combinations": lambda x: torch.combinations(x[:, 0], 3),
    "combinations with repeats": lambda x: torch.combinations(x[0], with_replacement=True),
}


def _start() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(4, 3).cos() - 0.6


def _by_gradients(program: Program, device: str) -> list[float]:
    x = _start().to(device).requires_grad_()
    loss = program(x).sum()
    loss.backward()
    assert x.grad is not None
    return [loss.item(), *x.grad.flatten().tolist()]


def _by_jax(program: Program, transform: Callable[..., Any] = lambda f: f) -> list[float]:
    function = jaten_ops.as_jax(lambda x: program(x).sum())
    value, gradient = transform(jax.value_and_grad(function))(jnp.asarray(_start().numpy()))
    return [float(value), *gradient.ravel().tolist()]


def _by_step(program: Program, device: str) -> list[float]:
    """As one step of SGD."""
    param = torch.nn.Parameter(_start().to(device))
    optimizer = torch.optim.SGD([param], lr=1.0)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.device(device):
            loss = program(param).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    loss = jaten_ops.compile_step(step)()
    return [loss.item(), *(_start() - param.detach().cpu()).flatten().tolist()]


def _by_thread(program: Program) -> list[float]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_by_jax, program, jax.jit).result()


WAYS: dict[str, Callable[[Program], list[float]]] = {
    "as_jax": _by_jax,
    "as_jax, jit": lambda program: _by_jax(program, jax.jit),
    "as_jax, another thread": _by_thread,
    "step": lambda program: _by_step(program, "jax"),
    "step on the CPU": lambda program: _by_step(program, "cpu"),
}


@pytest.mark.sampled(25)
@pytest.mark.parametrize(("program", "way"), crossed(PROGRAMS, WAYS))
def test_argument_checks(program: str, way: str) -> None:
    before = D.Distribution._validate_args
    expected = _by_gradients(PROGRAMS[program], "cpu")
    # sums of three and more numbers, which XLA adds in another order
    torch.testing.assert_close(WAYS[way](PROGRAMS[program]), expected, rtol=1e-4, atol=1e-5)
    assert D.Distribution._validate_args is before


def test_other_threads_validate() -> None:
    """While one traces, a distribution that another makes is validated."""
    D.Distribution.set_default_validate_args(True)  # Dynamo may have set it

    def program(x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="to satisfy the constraint"):
            pool.submit(D.Normal, torch.zeros(1), -torch.ones(1)).result()
        return D.Normal(x, x.exp()).log_prob(x)

    jax.jit(jaten_ops.as_jax(program))(jnp.ones(2))
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        D.Normal(torch.zeros(1), -torch.ones(1))


BAD: dict[str, tuple[Program, str]] = {
    "sizes": (lambda x: F.gaussian_nll_loss(x, x, x[:, :2].exp()), "var is of incorrect size"),
    "reduction": (lambda x: F.gaussian_nll_loss(x, x, x.exp(), reduction="all"), "all is not valid"),
    "no vector": (torch.combinations, "Expect a 1D vector"),
    "a negative number": (lambda x: torch.combinations(x[0], -1), "Expect a non-negative number"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_needs_no_values_is_checked(name: str) -> None:
    program, message = BAD[name]
    for run in (program, jax.jit(jaten_ops.as_jax(program))):
        with pytest.raises((ValueError, RuntimeError), match=message):
            run(_start() if run is program else jnp.ones((4, 3)))
