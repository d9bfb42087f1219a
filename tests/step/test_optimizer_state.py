"""Optimizers in a compiled step: each trains as on the CPU; rates are operands, schedules compile nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from jaten_ops import compile_step
from jaten_ops.errors import UnsupportedInputError

from ..harness.crossings import crossed
from ..programs import steps_of_models, steps_of_optimizers, steps_that_keep, steps_with_settings  # noqa: F401  # their scenarios
from ..programs.steps import SCENARIOS, Scenario, Wrap, assert_as_plain_torch, batches, linear, make, state_of

Optimizer = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda p, lr, **_: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True, foreach=True),
    "Adam": lambda p, lr, **options: torch.optim.Adam(p, lr=lr, **options),
    "AdamW": lambda p, lr, **options: torch.optim.AdamW(p, lr=lr, foreach=True, **options),
    "Adamax": lambda p, lr, **options: torch.optim.Adamax(p, lr=lr, **options),
    "NAdam": lambda p, lr, **options: torch.optim.NAdam(p, lr=lr, **options),
}


def _model(device: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 5)
    return nn.Sequential(*layers).double().to(device)


def _batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(6, 3, 6, 6, dtype=torch.float64), torch.randint(0, 5, (6,))) for _ in range(count)]


def _train(device: str, make: Optimizer, *, compiled: bool, steps: int = 6) -> tuple[list[float], nn.Module, Any]:
    model = _model(device)
    on_jax = device == "jax"
    rate = torch.tensor(0.01, device="jax") if on_jax else 0.01
    optimizer = make(model.parameters(), rate, **({"capturable": True} if on_jax else {}))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    run = compile_step(step, model, optimizer) if compiled else step
    losses = []
    for x, y in _batches(steps):
        losses.append(run(x.to(device), y.to(device)).item())
        schedule.step()
    return losses, model, run


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_on_the_cpu(name: str) -> None:
    expected, reference, _ = _train("cpu", OPTIMIZERS[name], compiled=False)
    got, model, run = _train("jax", OPTIMIZERS[name], compiled=True)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    state = {k: v.cpu() for k, v in model.state_dict().items()}
    torch.testing.assert_close(state, reference.state_dict(), rtol=1e-5, atol=1e-6)
    assert run._compiles == 1  # one program, whatever the learning rate
    assert all(p.grad is not None for p in model.parameters())


def test_a_rate_that_is_a_number_is_an_operand() -> None:
    model, _ = linear()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, capturable=True)
    reference = nn.Linear(3, 2)
    reference.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    on_cpu = torch.optim.RMSprop(reference.parameters(), lr=0.01)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    fn = compile_step(lambda x: step(model, optimizer, x), model, optimizer)
    for rate in (0.01, 0.01, 0.1, 0.01):
        optimizer.param_groups[0]["lr"] = on_cpu.param_groups[0]["lr"] = rate
        fn(torch.ones(2, 3, device="jax"))
        step(reference, on_cpu, torch.ones(2, 3))
    torch.testing.assert_close(model.weight.detach().cpu(), reference.weight.detach())


def test_flags_and_hyperparameters_are_part_of_the_program() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 1)).to("jax")
    fn = compile_step(lambda x: model(x), model)
    x = torch.ones(1, 50, device="jax")
    fn(x)
    assert fn(x).item() != fn(x).item()
    model.eval()
    assert fn(x).item() == fn(x).item()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["schedule: StepLR", "schedule: CyclicLR", "schedule: LambdaLR to 0"])
def test_a_schedule_compiles_nothing(schedule: str) -> None:
    steps: list[Any] = []

    def wrap(step: Callable[..., Any], *holders: Any) -> Callable[..., Any]:
        steps.append(compile_step(step, *holders))
        return steps[-1]

    list(SCENARIOS[schedule]("jax", wrap))
    assert steps[0]._compiles == 1


def test_optimizers_that_no_code_names_are_found() -> None:
    model, optimizer = linear()
    hidden = {"it": [optimizer]}.values()
    fn = compile_step(lambda x: (model(x).sum().backward(), [o.step() for os in hidden for o in os]))
    for rate in (0.1, 0.1, 0.2, 0.4):
        optimizer.param_groups[0]["lr"], before = rate, model.bias.detach().clone()
        model.zero_grad()
        fn(torch.ones(1, 3))
        torch.testing.assert_close(before - model.bias.detach(), torch.full((2,), rate, device="jax"))
    assert fn._compiles == 1


def test_a_count_in_python_that_a_scaler_may_skip_is_refused() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                self.state[p]["n"] = self.state[p].get("n", 0) + 1
            super().step(closure)

    model = nn.Linear(3, 2).to("jax")
    optimizer, scaler = Counting(model.parameters(), lr=0.1), torch.amp.GradScaler("jax")

    def step(x: torch.Tensor) -> None:
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    fn = compile_step(step)
    fn(torch.ones(1, 3))
    with pytest.raises(UnsupportedInputError, match="keeps 'n' as a int"):
        fn(torch.ones(1, 3))
    assert optimizer.state[model.weight]["n"] == 1


def test_adafactor_is_as_it_was_while_and_after_a_step_is_traced() -> None:
    scope = vars(torch.optim._adafactor)
    model = nn.Linear(3, 2).to("jax")
    optimizer = torch.optim.Adafactor(model.parameters())
    there: list[tuple[list[float], bool]] = []

    def elsewhere() -> list[float]:
        param = torch.ones(3, requires_grad=True)
        param.grad = torch.arange(3.0)
        torch.optim.Adafactor([param]).step()
        return param.tolist()

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        with ThreadPoolExecutor(1) as pool:
            there.append((pool.submit(elsewhere).result(), "max" in scope))
        optimizer.step()

    fn = compile_step(step)
    for _ in range(2):
        fn(torch.ones(1, 3))
    assert [was_traced for _, was_traced in there] == [False, True]
    assert [found for found, _ in there] == [elsewhere()] * 2
    assert not {"max", "min"} & scope.keys()


S = torch.optim.lr_scheduler
WITHIN: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: S.StepLR(o, 2, 0.5),
    "ExponentialLR": lambda o: S.ExponentialLR(o, 0.7),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: S.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=True),
    "OneCycleLR": lambda o: S.OneCycleLR(o, 0.1, total_steps=9),
    "LambdaLR": lambda o: S.LambdaLR(o, lambda i: 1 / (i + 1)),
    "SequentialLR": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=2), S.ExponentialLR(o, 0.9)], [3]),
    "ChainedScheduler": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.5, 2), S.ExponentialLR(o, 0.9)], o),
}


def _within(schedule_of: Callable[..., Any], rate: str) -> Scenario:
    def within(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        lr: Any = 0.05
        if rate != "number":
            lr = torch.tensor(0.05, dtype=torch.float64, device=device if rate == "tensor" else "cpu")
        optimizer = torch.optim.SGD(
            [{"params": model.one.parameters(), "lr": lr}, {"params": model.head.parameters(), "weight_decay": 0.1}],  # type: ignore[union-attr]
            lr=0.01, momentum=0.9,
        )  # fmt: skip
        schedule, kept = schedule_of(optimizer), [0.0]

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            kept[0] = optimizer.param_groups[0]["lr"]
            return loss

        run = wrap(step)
        for x, y in batches(device, 7):
            loss = run(x, y)
            schedules = [schedule, *getattr(schedule, "_schedulers", ())]
            state = [{k: v for k, v in vars(s).items() if k != "optimizer"} for s in schedules]
            found = loss, state_of(model, optimizer), state, schedule.get_last_lr(), kept
            yield found, [torch.is_tensor(v) for v in (lr, kept[0], *schedule.get_last_lr())]
            assert rate == "number" or optimizer.param_groups[0]["lr"] is lr
            assert "SymFloat" not in repr([{type(v) for v in tree_leaves(found)}])

    return within


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "rate"), crossed(WITHIN, ["number", "tensor", "tensor on the CPU"]))
def test_a_schedule_in_a_step_keeps_numbers_and_tensors(name: str, rate: str) -> None:
    assert_as_plain_torch(_within(WITHIN[name], rate))
