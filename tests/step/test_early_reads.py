"""Steps that read values which are known before they run: computed from arguments and from what they leave as it is."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jaten_ops
from jaten_ops import UnsupportedInputError, compile_step

from ..harness.crossings import crossed

X = [torch.tensor(v) for v in ([-1.0, 2.0, 3.0, -0.5], [1.0, -2.0, 3.0, 4.0], [3.0, -1.0, 1.0, -2.0], [-1.0] * 4)]
NUMBERS = [torch.tensor(v) for v in ([1, 0, 3, 3, 2], [2, 2, 1, 1, 0], [0, 3, 2, 3, 1], [4, 4, 4, 4, 4])]
LENGTHS = [torch.tensor(v) for v in ([3, 1, 2], [2, 2, 1], [3, 2, 1], [1, 1, 1])]


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def _packed(lengths: torch.Tensor) -> torch.Tensor:
    x = torch.arange(9.0, device=lengths.device).view(3, 3)
    return nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False).data


def _neighbours(i: torch.Tensor) -> torch.Tensor:
    """The sum of the numbers of each node's neighbours in a graph, from which edges to a node itself are taken out."""
    edges = torch.stack([i, i.flip(0)])
    source, target = edges[:, edges[0] != edges[1]]
    return torch.zeros(5, device=i.device).index_add(0, target, source.float())


# a step, and the values of its argument in four calls
READS: dict[str, tuple[Callable[[torch.Tensor], Any], list[torch.Tensor]]] = {
    "x[mask]": (lambda x: x[x > 0] * 2, X),
    "x[:, mask]": (lambda x: torch.stack([x, -x])[:, x > 0], X),
    "x[mask] = y[mask]": (lambda x: x.clone().masked_fill(x > 1, 0).index_put((x > 0,), -x[x > 0]), X),
    "masked_select": (lambda x: torch.masked_select(torch.stack([x, 2 * x]), x > 0), X),
    "nonzero": (lambda x: (x > 0).nonzero(), X),
    "nonzero as a tuple": (lambda x: torch.where(x.view(2, 2) > 0), X),
    "argwhere": (lambda x: torch.argwhere(x.view(2, 2)), X),
    "unique": (torch.unique, NUMBERS),
    "unique of floats": (lambda x: torch.unique(x.round(), return_counts=True), X),
    "unique with all": (lambda i: torch.unique(i, return_inverse=True, return_counts=True), NUMBERS),
    "unique rows": (lambda i: torch.unique(i[:4].view(2, 2), dim=0, return_inverse=True), NUMBERS),
    "unique_consecutive": (lambda i: torch.unique_consecutive(i, return_counts=True), NUMBERS),
    "bincount": (torch.bincount, NUMBERS),
    "bincount with weights": (lambda i: torch.bincount(i, weights=i * 0.5, minlength=3), NUMBERS),
    "one_hot": (F.one_hot, NUMBERS),
    "repeat_interleave": (lambda i: torch.repeat_interleave(torch.arange(5, device=i.device), i), NUMBERS),
    "a size": (lambda i: torch.zeros(int(i.max()) + 1, device=i.device).index_add(0, i, i.float()), NUMBERS),
    "a branch": (_branch, X),
    "any": (lambda x: x * 2 if (x > 3).any() else x, X),
    "equal": (lambda x: x * 2 if torch.equal(x, x.abs()) else x, X),
    "allclose": (lambda x: x * 2 if torch.allclose(x, -x.abs()) else x, X),
    "tolist": (lambda i: torch.cat([i[:n] for n in i.tolist()]), NUMBERS),
    "split": (lambda n: torch.arange(9, device=n.device)[: n.sum()].split(n.tolist()), LENGTHS),
    "pack_padded_sequence": (_packed, LENGTHS),
    "an index without dimensions": (lambda i: i[i[1]], NUMBERS),
    "a graph without loops": (_neighbours, NUMBERS),
    "a number": (lambda i: i * i[0].item(), NUMBERS),
}  # fmt: skip


@pytest.mark.parametrize(("name", "device"), crossed(READS, ["cpu", "jax"]))
def test_values_of_arguments_are_read(name: str, device: str) -> None:
    step, values = READS[name]
    compiled = compile_step(step)
    for x in [*values, *values]:
        torch.testing.assert_close(_home(compiled(x.to(device))), step(x))


def _home(found: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), found)


def test_equal_values_share_a_program(caplog: pytest.LogCaptureFixture) -> None:
    compiled = compile_step(lambda x: x[x > 0] * 2)
    with caplog.at_level(logging.INFO, "jaten_ops.step"):
        counts = [len(compiled(x)) for x in (*X, *X[::-1], X[0] + 0)]
    assert counts == [2, 3, 2, 0, 0, 2, 3, 2, 2]
    told = [r.getMessage() for r in caplog.records]
    assert len(told) == 3  # the first call runs as it is; then there are programs for 3, 2 and 0 elements
    assert "a value that it reads (" in told[-1] and "test_early_reads.py" in told[-1]


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_network_trains_on_what_a_mask_takes(device: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
    torch.manual_seed(1)
    batches = [(torch.randint(0, 5, (2, 6)), torch.rand(2, 6) < 0.4) for _ in range(3)] * 2

    def losses(device: str, wrap: Callable[[Any], Any]) -> list[float]:
        model = copy.deepcopy(plain).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids)[mask], ids[mask])
            loss.backward()
            optimizer.step()
            return loss

        run = wrap(step)
        return [run(ids.to(device), mask.to(device)).item() for ids, mask in batches]

    torch.testing.assert_close(losses(device, compile_step), losses("cpu", lambda step: step))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_tensors_that_the_step_holds_are_read_at_each_call(device: str) -> None:
    data = {"mask": torch.tensor([True, False, True, False], device=device)}
    frozen = nn.Parameter(torch.tensor([1.0, -1.0, 1.0, -1.0], device=device), requires_grad=False)
    compiled = compile_step(lambda x: x[data["mask"]].sum() + x[frozen > 0].sum())
    x = torch.arange(4.0, device=device)
    found = [compiled(x).item() for _ in range(2)]
    data["mask"].logical_not_()
    found.append(compiled(x).item())
    data["mask"] = torch.tensor([True, True, True, False], device=device)
    found.append(compiled(x).item())
    with torch.no_grad():
        frozen[3] = 1
    found.append(compiled(x).item())
    assert found == [4, 4, 6, 5, 8]


def test_masks_in_memory_of_the_host_beside_the_device() -> None:
    mask = torch.tensor([True, False, True])
    compiled = compile_step(lambda x: x[mask])
    x = torch.arange(3.0, device="jax")
    found = [compiled(x).tolist() for _ in range(3)]
    mask[1] = True
    found.append(compiled(x).tolist())
    assert found == [[0, 2], [0, 2], [0, 2], [0, 1, 2]]


def _counting(model: nn.Linear) -> Callable[[torch.Tensor], Any]:
    calls = torch.zeros((), dtype=torch.int64, device="jax")

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        return x * 2 if calls > 2 else x

    return step


def _sparse_updates(model: nn.Linear) -> Callable[[torch.Tensor], Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        (model.weight[model.weight > 0]).sum().backward()
        optimizer.step()
        return x

    return step


# what is not known before the step runs, or would be another value at each call
REFUSED: dict[str, Callable[[nn.Linear], Callable[[torch.Tensor], Any]]] = {
    "products": lambda model: lambda x: x[model(x).sum(-1) > 0],
    "what it changes": _counting,
    "parameters that it updates": _sparse_updates,
    "random numbers": lambda model: lambda x: x[torch.rand_like(x) > 0.5],
    "floats": lambda model: lambda x: x * x.max().item(),
    "many values": lambda model: lambda x: torch.zeros(len(x.long().repeat(9999, 1).tolist())),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_values_are_refused(name: str) -> None:
    model = nn.Linear(3, 2).to("jax")
    weight = model.weight.detach().cpu().clone()
    compiled = compile_step(REFUSED[name](model))
    x = torch.ones(2, 3, device="jax")
    compiled(x)
    changed = model.weight.detach().cpu().clone()
    for _ in range(2):
        with pytest.raises(UnsupportedInputError, match=r"reads the value of a tensor.*test_early_reads\.py"):
            compiled(x)
    torch.testing.assert_close(model.weight.detach().cpu(), changed, rtol=0, atol=0)
    assert (name == "parameters that it updates") is not torch.equal(changed, weight)
    assert x.tolist() == [[1.0] * 3] * 2


def test_microbatches_and_exports_are_for_all_values() -> None:
    model = nn.Linear(3, 2).to("jax")

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x[x.sum(1) > 0]).sum()
        loss.backward()
        model.zero_grad()
        return loss

    x = torch.ones(4, 3, device="jax")
    with pytest.raises(UnsupportedInputError, match="reads the value of a tensor"):
        compile_step(step, microbatches=2)(x)
    compiled = compile_step(step)
    compiled(x)
    with pytest.raises(UnsupportedInputError, match="reads values of its inputs"):
        jaten_ops.export(compiled, (x,), training=True)
    assert compiled(x).isfinite()


def test_a_step_that_raises_after_a_read_leaves_everything() -> None:
    w = torch.zeros(3, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        w.sum().backward()
        optimizer.step()
        if x.sum() > 3:
            raise ValueError("too large")
        return x[x > 0]

    compiled = compile_step(step)
    for _ in range(2):
        compiled(torch.ones(3, device="jax"))
    kept = w.detach().cpu().clone(), w.grad
    with pytest.raises(ValueError, match="too large"):
        compiled(torch.ones(3, device="jax") * 2)
    torch.testing.assert_close(w.detach().cpu(), kept[0], rtol=0, atol=0)
    assert w.grad is kept[1]
    compiled(torch.ones(3, device="jax"))
    assert w.tolist() == [-6.0] * 3  # gradients accumulate: 1, 2, 3


def test_a_step_that_is_traced_at_each_call_reads_anew() -> None:
    counts: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        found = x[x > 0]
        counts.append(len(found))
        return found

    compiled = compile_step(step)
    for x, _ in itertools.product(X, range(2)):
        torch.testing.assert_close(compiled(x), x[x > 0])
    assert counts == [2, 2, 3, 3, 2, 2, 0, 0]


def test_the_number_of_programs_is_bounded() -> None:
    compiled = compile_step(lambda i: torch.arange(int(i[0]), device=i.device))
    for n in _numbers():
        assert len(compiled(torch.tensor([n]))) == n


def _numbers() -> Iterator[int]:
    yield from range(70)
    yield from (0, 69, 5)
