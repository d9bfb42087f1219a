"""Random ops: their distributions, and who rules their seeds.

Each distribution is tested on N draws from a fixed seed, so a pass is a pass for good. A right sampler would have
failed for some seed of LEVEL on average, and with all the tests of this file for one of about 50 LEVEL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import jaten_ops

N = 20_000
LEVEL = 1e-4
ops = torch.ops.jaten


def _like(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(N, dtype=dtype)


def _full(value: float) -> torch.Tensor:
    return torch.full((N,), value, dtype=torch.float64)


Draw = Callable[..., torch.Tensor]

CONTINUOUS: dict[str, tuple[Draw, Any]] = {
    "rand": (lambda **k: ops.rand([N], dtype=torch.float64, **k), stats.uniform()),
    "rand float32": (lambda **k: ops.rand([N], dtype=torch.float32, **k), stats.uniform()),
    "uniform": (lambda **k: ops.uniform(_like(), -2.0, 3.0, **k), stats.uniform(-2, 5)),
    "randn": (lambda **k: ops.randn([N], dtype=torch.float64, **k), stats.norm()),
    "normal.float_float": (
        lambda **k: ops.normal.float_float(1.0, 2.0, [N], dtype=torch.float64, **k),
        stats.norm(1, 2),
    ),
    "normal.Tensor_Tensor": (lambda **k: ops.normal.Tensor_Tensor(_full(3.0), _full(0.5), **k), stats.norm(3, 0.5)),
    "normal_functional": (lambda **k: ops.normal_functional(_like(), -1.0, 0.25, **k), stats.norm(-1, 0.25)),
    "log_normal": (lambda **k: ops.log_normal(_like(), 0.5, 0.75, **k), stats.lognorm(0.75, scale=np.exp(0.5))),
    "cauchy": (lambda **k: ops.cauchy(_like(), 1.0, 2.0, **k), stats.cauchy(1, 2)),
    "exponential": (lambda **k: ops.exponential(_like(), 1.5, **k), stats.expon(scale=1 / 1.5)),
    "gamma, small shape": (lambda **k: ops._standard_gamma(_full(0.3), **k), stats.gamma(0.3)),
    "gamma": (lambda **k: ops._standard_gamma(_full(4.0), **k), stats.gamma(4.0)),
    "dirichlet": (
        lambda **k: ops._sample_dirichlet(torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64).expand(N, 3), **k)[:, 0],
        stats.beta(0.5, 3.0),
    ),
}

DISCRETE: dict[str, tuple[Draw, Any]] = {
    "bernoulli.p": (lambda **k: ops.bernoulli.p(_like(), 0.3, **k), stats.bernoulli(0.3)),
    "bernoulli": (lambda **k: ops.bernoulli(_full(0.7), **k), stats.bernoulli(0.7)),
    "bernoulli.Tensor": (lambda **k: ops.bernoulli.Tensor(_like(), _full(0.05), **k), stats.bernoulli(0.05)),
    "geometric": (lambda **k: ops.geometric(_like(), 0.4, **k), stats.geom(0.4)),
    "poisson, small rate": (lambda **k: ops.poisson(_full(0.8), **k), stats.poisson(0.8)),
    "poisson, large rate": (lambda **k: ops.poisson(_full(40.0), **k), stats.poisson(40.0)),
    "binomial": (lambda **k: ops.binomial(_full(12.0), _full(0.35), **k), stats.binom(12, 0.35)),
    "randint": (lambda **k: ops.randint(-3, 8, [N], **k), stats.randint(-3, 8)),
    "random.from": (lambda **k: getattr(ops.random, "from")(_like(torch.int64), 2, 9, **k), stats.randint(2, 9)),
    "random.to": (lambda **k: ops.random.to(_like(torch.int32), 5, **k), stats.randint(0, 5)),
    "random bool": (lambda **k: ops.random(_like(torch.bool), **k), stats.bernoulli(0.5)),
    "multinomial": (
        lambda **k: ops.multinomial(torch.tensor([1.0, 2.0, 0.0, 5.0]), N, True, **k),
        stats.rv_discrete(values=([0, 1, 3], [0.125, 0.25, 0.625])),
    ),
    "multinomial without replacement": (
        lambda **k: ops.multinomial(torch.tensor([[1.0, 2.0, 5.0]]).expand(N, 3), 2, False, **k)[:, 0],
        stats.rv_discrete(values=([0, 1, 2], [0.125, 0.25, 0.625])),
    ),
    "dropout": (lambda: ops.native_dropout(torch.ones(N), 0.2, True)[1], stats.bernoulli(0.8)),
    "rrelu slopes": (
        lambda **k: (ops.rrelu_with_noise_functional(-torch.ones(N), torch.ones(N), 0.0, 2.0, True, **k)[1] > 0.5) * 1,
        stats.bernoulli(0.75),
    ),
}
RULED = {n: draw for n, (draw, _) in (CONTINUOUS | DISCRETE).items() if n != "dropout"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distribution(name: str) -> None:
    draw, law = CONTINUOUS[name]
    torch.manual_seed(0)
    sample = draw()
    assert sample.isfinite().all()
    assert stats.kstest(sample.double().numpy(), law.cdf).pvalue > LEVEL


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distribution(name: str) -> None:
    draw, law = DISCRETE[name]
    torch.manual_seed(0)
    values, counts = np.unique(draw().double().numpy(), return_counts=True)
    expected = law.pmf(values) * N
    assert (expected > 0).all(), f"drew {values[expected == 0]}, which cannot be"
    common = expected >= 5
    observed = [*counts[common], N - counts[common].sum()]
    wanted = [*expected[common], N - expected[common].sum()]
    if wanted[-1] < 5:  # the rest is too rare for the test
        observed, wanted = observed[:-1], wanted[:-1]
        wanted = [w * sum(observed) / sum(wanted) for w in wanted]
    assert stats.chisquare(observed, wanted).pvalue > LEVEL


def test_randperm_is_uniform() -> None:
    torch.manual_seed(0)
    firsts = torch.stack([ops.randperm(5) for _ in range(1000)])
    assert (firsts.sort(1).values == torch.arange(5)).all()
    for place in range(5):
        assert stats.chisquare(firsts[:, place].bincount(minlength=5).numpy()).pvalue > LEVEL


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DISCRETE | CONTINUOUS)
def test_the_seed_rules_and_each_call_draws_anew(name: str) -> None:
    draw = (DISCRETE | CONTINUOUS)[name][0]
    draws = []
    for _ in range(2):
        torch.manual_seed(7)
        draws.append((draw(), draw()))
    (first, second), (again, _) = draws
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RULED)
def test_a_generator_rules_alone(name: str) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again = (RULED[name](generator=torch.Generator().manual_seed(3)) for _ in range(2))
    generator = torch.Generator().manual_seed(3)
    RULED[name](generator=generator)
    assert torch.equal(first, again)
    assert not torch.equal(first, RULED[name](generator=generator))
    assert torch.equal(before, torch.get_rng_state())


_NO_DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "dropout of 0": lambda x: F.dropout(x, 0.0) + F.alpha_dropout(x, 0.0),
    "not in training": lambda x: F.dropout(x, 0.5, training=False) + F.rrelu(x, training=False),
    "the operator": lambda x: torch.native_dropout(x, 0.5, False)[0] + 1,
    "no random operator": lambda x: x.sin(),
}


def _drawn_after(fn: Callable[[torch.Tensor], Any], x: torch.Tensor) -> float:
    """A number that the program draws after a call and its gradient."""
    torch.manual_seed(7)
    given = x.detach().clone().requires_grad_()
    fn(given).sum().backward()
    return torch.rand(()).item()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", ["compiled", "on the device", "compiled on the device", "in a step", "in JAX"])
@pytest.mark.parametrize("name", _NO_DRAWS)
def test_what_is_not_random_draws_nothing(name: str, path: str) -> None:
    """Operators are random only for some arguments."""
    fn, x = _NO_DRAWS[name], torch.linspace(-1, 1, 16).reshape(1, 1, 4, 4)
    torch.manual_seed(7)
    expected = torch.rand(()).item()
    if path == "in JAX":  # where one that draws would ask for a key
        with torch.no_grad():
            jaten_ops.as_jax(fn)(jaten_ops.to_jax(x.to("jax")))
        return
    given = x if path == "compiled" else x.to("jax")
    if path == "in a step":
        step = jaten_ops.compile_step(lambda y: fn(y.detach().requires_grad_()).sum().backward())
        for _ in range(3):
            torch.manual_seed(7)
            step(given)
            assert torch.rand(()).item() == expected
        return
    assert _drawn_after(torch.compile(fn, backend="jaten") if "compiled" in path else fn, given) == expected
