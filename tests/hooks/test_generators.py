"""`torch.Generator(device="jax")`: where scripts draw their numbers from, whatever the device is called."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.hooks import generators

NINE = TensorDataset(torch.arange(9))
WHERE = ["jax", "jax:0", torch.device("jax", 0)]

DRAWS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "randn": lambda g: torch.randn(4, generator=g, device="jax"),
    "randperm": lambda g: torch.randperm(9, generator=g, device="jax"),
    "normal_": lambda g: torch.empty(4, device="jax").normal_(generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(9, device="jax"), 4, generator=g),
    "kaiming_uniform_": lambda g: torch.nn.init.kaiming_uniform_(torch.empty(3, 3, device="jax"), generator=g),
    "compiled": lambda g: torch.compile(lambda: torch.rand(4, generator=g, device="jax"), backend="jaten")(),
    "a shuffled loader": lambda g: torch.cat([x for (x,) in DataLoader(NINE, shuffle=True, generator=g)]),
    "random_split": lambda g: torch.stack([x for (x,) in random_split(NINE, [4, 5], generator=g)[0]]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_seed_says_what_is_drawn(draw: Callable[[torch.Generator], torch.Tensor]) -> None:
    generator = torch.Generator(device="jax")
    before = torch.get_rng_state()
    one = draw(generator.manual_seed(3)).cpu()
    assert torch.equal(one, draw(generator.manual_seed(3)).cpu())
    assert not torch.equal(one, draw(generator).cpu())
    again = copy.deepcopy(generator), generator.clone_state(), pickle.loads(pickle.dumps(generator))
    expected = draw(generator).cpu()
    assert all(torch.equal(expected, draw(g).cpu()) for g in again)
    if draw is not DRAWS["a shuffled loader"]:  # whose workers' seed is drawn of the default one, as on the CPU
        assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("where", WHERE, ids=str)
def test_what_it_is_made_for(where: str | torch.device) -> None:
    assert isinstance(torch.Generator(where), torch.Generator)
    assert torch.Generator(where).device == torch.device("cpu")


def test_torch_makes_the_others() -> None:
    for generator in (
        torch.Generator(),
        torch.Generator("cpu"),
        torch.Generator(device="cpu"),
        torch.default_generator,
    ):
        assert type(generator) is torch._C.Generator and isinstance(generator, torch.Generator)
    assert issubclass(torch._C.Generator, torch.Generator) and not isinstance(3, torch.Generator)
    with pytest.raises(RuntimeError, match="jax:7: no such device"):
        torch.Generator("jax:7")
    with pytest.raises(RuntimeError):
        torch.Generator("meta")


def test_a_class_of_the_users() -> None:
    class Mine(torch.Generator):
        pass

    assert type(Mine("jax")) is Mine and isinstance(Mine(), generators.Generator)
    assert not isinstance(torch.Generator(), Mine)


@pytest.mark.exhaustive
def test_torch_asks_for_one_itself() -> None:
    a = torch.randn(9, 9, generator=torch.Generator().manual_seed(1))
    a = a @ a.T
    largest = torch.lobpcg(a.to("jax"), 2, niter=40)[0]
    torch.testing.assert_close(largest.cpu(), torch.linalg.eigvalsh(a).flip(0)[:2], rtol=1e-3, atol=1e-3)
