"""`compile_step(..., microbatches=k)` beside plain torch: the step on the whole batch, or a loop that accumulates."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from jaten_ops import compile_step
from jaten_ops.errors import UnsupportedInputError

from ..programs import steps_of_models, steps_of_optimizers, steps_that_keep, steps_with_settings  # noqa: F401  # their scenarios
from ..programs.steps import SCENARIOS, assert_as_plain_torch

Step = Callable[..., Any]
PARTS = 4


def _perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _batches(count: int = 3) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(8, 4, dtype=torch.float64, generator=generator),
            "y": torch.randint(0, 3, (8,), generator=generator),
        }
        for _ in range(count)
    ]


def _on(device: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.to(device) for k, v in batch.items()}


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    state = tree_leaves([*optimizer.state.values()])
    return [t.detach().cpu().clone() for t in [*model.state_dict().values(), *state] if isinstance(t, Tensor)]


def _close(mine: Any, its: Any) -> None:
    torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-9)


# Scenarios of steps in which a batch is no more than its rows; which others do is in `tests/programs`.
SAMPLE = (
    "saved_and_resumed", "a_trainer", "zeroed_gradients_that_stay", "groups_and_frozen_parameters", "ema_of_a_dict",
)  # fmt: skip
RUN_ALWAYS = ("zeroed_gradients_that_stay", "scaler, clipped: SGD")
OF_ROWS = [
    name for name in SCENARIOS
    if name in SAMPLE
    or name.startswith(("supervised", "late parameter", "accumulated", "schedule", "scaler", "parametrized"))
    or name in ("model: LSTM", "model: checkpoint", "model: checkpoint, reentrant", "double_backward", "own_optimizer")
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in RUN_ALWAYS else pytest.mark.exhaustive) for n in OF_ROWS]
)
def test_as_the_step_on_the_whole_batch(name: str) -> None:
    assert_as_plain_torch(SCENARIOS[name], microbatches=2)


def _results(device: str, wrap: Callable[[Step], Step]) -> list[Any]:
    model = _perceptron().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    average = torch.zeros((), dtype=torch.float64, device=device)

    def step(batch: dict[str, Tensor], scale: float, *, temperature: Tensor) -> Any:
        logits = model(batch["x"]) / temperature
        loss = F.cross_entropy(logits, batch["y"]) * scale
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        right = logits.argmax(1) == batch["y"]
        average.mul_(0.9).add_(right.double().mean())
        return {"loss": loss, "norm": norm, "right": right, "logits": logits.t().t()[:, 1:], "x": batch["x"], "n": 3}

    run, temperature = wrap(step), torch.tensor(2.0, dtype=torch.float64, device=device)
    found = []
    for batch in _batches():
        result = run(_on(device, batch), 0.5, temperature=temperature)
        found.append(tree_map(lambda v: v.detach().cpu() if isinstance(v, Tensor) else v, result))
        found.append([average.cpu().clone(), *_state(model, optimizer)])
    return found


def test_results_are_means_or_pieces() -> None:
    _close(_results("jax", lambda step: compile_step(step, microbatches=PARTS)), _results("cpu", lambda step: step))


class Normed(nn.Module):
    """BatchNorm, whose statistics each part has of its own, and a count that it writes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv1d(1, 6, 3), nn.BatchNorm1d(6), nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.two(torch.relu(self.norm(self.one(x[:, None]))).flatten(1))


def test_as_a_loop_that_accumulates() -> None:
    torch.manual_seed(0)
    plain = Normed().double()
    model = copy.deepcopy(plain).to("jax")
    ours, its = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain))

    def step(x: Tensor, y: Tensor) -> Tensor:
        ours.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        ours.step()
        return loss

    run = compile_step(step, microbatches=PARTS)
    for batch in _batches():
        its.zero_grad()
        losses = []
        for x, y in zip(batch["x"].chunk(PARTS), batch["y"].chunk(PARTS), strict=True):
            losses.append(F.cross_entropy(plain(x), y) / PARTS)
            losses[-1].backward()
        its.step()
        loss = run(*_on("jax", batch).values())
        _close(loss.cpu(), torch.stack(losses).sum().detach())
        _close(_state(model, ours), _state(plain, its))
    assert plain.seen == 24


def test_gradients_that_there_are_stay_in_the_sum() -> None:
    plain = _perceptron()
    model = copy.deepcopy(plain).to("jax")
    run = compile_step(lambda x: model(x).square().mean().backward(), microbatches=PARTS)
    for batch in _batches():
        run(batch["x"])  # a tensor on the CPU, which moves
        plain(batch["x"]).square().mean().backward()
    _close([p.grad.cpu() for p in model.parameters()], [p.grad for p in plain.parameters()])


def test_two_losses_before_one_update() -> None:
    def train(device: str, wrap: Callable[[Step], Step]) -> list[Any]:
        model = _perceptron().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            model(x * 2).abs().mean().backward()
            optimizer.step()
            return loss

        run = wrap(step)
        return [(run(b["x"].to(device)).detach().cpu(), _state(model, optimizer)) for b in _batches()]

    _close(train("jax", lambda s: compile_step(s, microbatches=PARTS)), train("cpu", lambda s: s))


def test_parts_draw_their_own_random_numbers() -> None:
    weight = torch.ones(16, device="jax", requires_grad=True)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        dropped = F.dropout(x * weight)
        dropped.mean().backward()
        with torch.no_grad():
            weight.add_(torch.randn_like(weight))  # once
        weight.grad = None
        return dropped

    run, x = compile_step(step, microbatches=PARTS), torch.ones(PARTS, 16, device="jax")
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append([(run(x) != 0).tolist() for _ in range(2)])
    rows = [str(row) for call in draws[0] for row in call]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(rows)) == 2 * PARTS


def test_half_precision_is_summed_in_single() -> None:
    weight = torch.zeros(1, dtype=torch.bfloat16, device="jax", requires_grad=True)
    x = torch.tensor([256.0, *[1.0] * 15], dtype=torch.bfloat16)[:, None]  # in bfloat16, 256 + 1 is 256
    compile_step(lambda x: (x * weight).mean().backward(), microbatches=16)(x)
    assert weight.grad is not None and weight.grad.item() == 17


@pytest.mark.exhaustive
def test_resumed_and_other_sizes() -> None:
    def train(device: str, wrap: Callable[[Step], Step], resume: bool) -> list[Any]:
        model = _perceptron().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run, found = wrap(step), []
        for i, batch in enumerate(_batches(4)):
            if i == 2 and resume:
                file = io.BytesIO()
                torch.save((model.state_dict(), optimizer.state_dict()), file)
                file.seek(0)
                weights, state = torch.load(file)
                model.load_state_dict(weights)
                optimizer.load_state_dict(state)
            size = 8 if i < 3 else 4
            found.append(run(*(v[:size] for v in _on(device, batch).values())).detach().cpu())
        return found

    expected = train("cpu", lambda s: s, False)
    for resume in (False, True):
        _close(train("jax", lambda s: compile_step(s, microbatches=PARTS), resume), expected)


@pytest.mark.exhaustive
def test_one_part_is_the_step_itself() -> None:
    _close(_results("jax", lambda step: compile_step(step, microbatches=1)), _results("jax", compile_step))


@pytest.mark.exhaustive
def test_memory_of_one_part() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(8)]).to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.randn(4096, 32, device="jax")
    taken = {}
    for parts in (1, 8):
        run = compile_step(step, microbatches=parts)
        run(x)
        taken[parts] = run.executable_for(x).memory_analysis().temp_size_in_bytes
    assert taken[8] < taken[1] / 6


def test_the_first_call_has_the_memory_of_one_part_and_runs_python_once() -> None:
    weight = torch.ones(4, device="jax", requires_grad=True)
    sizes = []

    def step(x: Tensor) -> None:
        sizes.append(x.shape)
        (x * weight).mean().backward()
        weight.grad = None

    compile_step(step, microbatches=4)(torch.ones(8, 4))
    assert sizes == [(2, 4)]


# Steps and batches that it refuses: a step, its arguments, words of the message.


def _weight() -> Tensor:
    return torch.ones(4, device="jax", requires_grad=True)


def _loss(x: Tensor, w: Tensor) -> Tensor:
    loss = (x * w).mean()
    loss.backward()
    return loss


def _updates_twice(x: Tensor, w: Tensor) -> None:
    _loss(x, w)
    with torch.no_grad():
        w.sub_(0.1)
    _loss(x, w)


def _lower(p: Tensor) -> None:
    p.detach().sub_(0.1)


def _updates_in_backward(x: Tensor, w: Tensor) -> None:
    handle = w.register_post_accumulate_grad_hook(_lower)
    _loss(x, w)
    handle.remove()


def _stores_after(x: Tensor, w: Tensor, seen: Tensor) -> None:
    _loss(x, w)
    seen.add_((x > 0).sum())


SEEN = torch.zeros((), dtype=torch.int64, device="jax")
REFUSED: dict[str, tuple[Callable[[Tensor], Callable[..., Any]], tuple[Any, ...], str]] = {
    "not divisible": (lambda w: lambda x: _loss(x, w), (torch.ones(6, 4),), "x: got 6.*multiple of 4"),
    "sizes that disagree": (
        lambda w: lambda batch: _loss(batch["x"], w), ({"x": torch.ones(8, 4), "mask": [torch.ones(4)]},),
        r"batch\['mask'\]\[0\]: got 4.*expected 8, as in batch\['x'\]",
    ),
    "no batch": (lambda w: lambda x: _loss(x, w), (torch.ones(()),), "no tensor among its arguments"),
    "a gradient of an argument": (
        lambda w: lambda x: _loss(x, w), (torch.ones(8, 4, requires_grad=True),), "x: got an argument that requires"
    ),
    "an argument written to": (lambda w: lambda x: _loss(x.mul_(2), w), (torch.ones(8, 4),), "x: .*writes to"),
    "no backward": (lambda w: lambda x: (x * w).mean(), (torch.ones(8, 4),), r"without backward\(\)"),
    "two updates": (lambda w: lambda x: _updates_twice(x, w), (torch.ones(8, 4),), "step of its own for each"),
    "an update in backward": (
        lambda w: lambda x: _updates_in_backward(x, w), (torch.ones(8, 4),), "in a backward pass"
    ),
    "a count as a result": (
        lambda w: lambda x: (_loss(x, w), (x > 0).sum()), (torch.ones(8, 4),), r"each part of shape \(\), int64"
    ),
    "a count after backward": (
        lambda w: lambda x: _stores_after(x, w, SEEN), (torch.ones(8, 4),), r"\(2, 4\).*that it stores, or uses"
    ),
    "a part after backward": (
        lambda w: lambda x: (_loss(x, w), w.data.sub_(w.grad), (x * w).mean())[2].detach(), (torch.ones(8, 4),),
        r"one part, of shape \(2, 4\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_says_what_to_do(name: str) -> None:
    make, args, words = REFUSED[name]
    weight = _weight()
    fn = make(weight)
    run = compile_step(fn, microbatches=4)
    with pytest.raises(UnsupportedInputError, match=words):
        run(*args)
    assert weight.tolist() == [1.0] * 4 and weight.grad is None  # all is as it was


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_a_number_of_parts_is_an_int(count: Any) -> None:
    with pytest.raises(UnsupportedInputError, match="microbatches"):
        compile_step(lambda: None, microbatches=count)
