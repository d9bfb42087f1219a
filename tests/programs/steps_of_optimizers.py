"""Training steps with each optimizer, schedules, a scaler, and gradients that add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .steps import SCENARIOS, Scenario, Wrap, batches, make, scenario, state_of, training

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "SGD maximize, not foreach": lambda p: torch.optim.SGD(p, lr=0.005, momentum=0.5, maximize=True, foreach=False),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam amsgrad, foreach": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True, weight_decay=0.01),
    "Adam, not foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, maximize=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.01),
    "Adagrad, foreach": lambda p: torch.optim.Adagrad(p, lr=0.05, foreach=True, weight_decay=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adadelta, foreach": lambda p: torch.optim.Adadelta(p, lr=0.5, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "RMSprop, foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Rprop, foreach": lambda p: torch.optim.Rprop(p, lr=0.01, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "NAdam, foreach": lambda p: torch.optim.NAdam(p, lr=0.01, foreach=True, decoupled_weight_decay=True),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RAdam, foreach": lambda p: torch.optim.RAdam(p, lr=0.01, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Adamax, foreach": lambda p: torch.optim.Adamax(p, lr=0.01, foreach=True),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01, t0=3),
    "ASGD, foreach": lambda p: torch.optim.ASGD(p, lr=0.01, foreach=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
    "Adafactor, foreach": lambda p: torch.optim.Adafactor(p, lr=0.05, foreach=True),
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2], lr=0.01),
}  # fmt: skip


def supervised(device: str, wrap: Wrap, optimizer_of: Any, count: int = 5) -> Iterator[Any]:
    model = make(device)
    optimizer = optimizer_of(model.parameters())

    run = wrap(training(model, optimizer), model, optimizer)
    for x, y in batches(device, count):
        yield run(x, y), state_of(model, optimizer)


def _late(optimizer_of: Any) -> Scenario:
    def late_parameter(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        optimizer = optimizer_of(model.parameters())

        run = wrap(training(model, optimizer), model, optimizer)
        for i, (x, y) in enumerate(batches(device, 6)):
            yield run(x, y, i > 2), state_of(model, optimizer)

    return late_parameter


def _accumulated(optimizer_of: Any) -> Scenario:
    def accumulated(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        optimizer = optimizer_of(model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor, last: bool) -> torch.Tensor:
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
            return loss

        run = wrap(step, model, optimizer)
        for i, (x, y) in enumerate(batches(device, 6)):
            yield run(x, y, i % 2 == 1), state_of(model, optimizer)

    return accumulated


for _name, _make in OPTIMIZERS.items():
    SCENARIOS[f"supervised: {_name}"] = lambda device, wrap, m=_make: supervised(device, wrap, m)  # type: ignore[misc]
    if "foreach" not in _name or _name in ("Adam amsgrad, foreach", "ASGD, foreach", "RAdam, foreach"):
        SCENARIOS[f"late parameter: {_name}"] = _late(_make)
        SCENARIOS[f"accumulated: {_name}"] = _accumulated(_make)

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=True),
    "LambdaLR to 0": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda i: max(0.0, 1 - i / 3)),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=1.0),
}


def _scheduled(schedule_of: Any, optimizer_of: Any, inside: bool) -> Scenario:
    def scheduled(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        optimizer = optimizer_of(model.parameters())
        schedule = schedule_of(optimizer)
        plateau = isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if inside:
                schedule.step()
            return loss

        run = wrap(step, model, optimizer)
        for x, y in batches(device, 6):
            loss = run(x, y)
            if not inside:
                schedule.step(*([float(loss)] if plateau else []))
            yield loss, state_of(model, optimizer)

    return scheduled


for _name, _schedule in SCHEDULES.items():
    SCENARIOS[f"schedule: {_name}"] = _scheduled(_schedule, OPTIMIZERS["SGD nesterov"], inside=False)
    if _name != "ReduceLROnPlateau":
        SCENARIOS[f"schedule in the step: {_name}"] = _scheduled(_schedule, OPTIMIZERS["SGD momentum"], inside=True)
SCENARIOS["schedule: OneCycleLR, AdamW"] = _scheduled(SCHEDULES["OneCycleLR"], OPTIMIZERS["AdamW"], inside=False)
SCENARIOS["schedule: OneCycleLR, fused"] = _scheduled(SCHEDULES["OneCycleLR"], OPTIMIZERS["AdamW fused"], inside=False)


class Lion(torch.optim.Optimizer):
    """An optimizer that replaces its state instead of writing to it."""

    def __init__(self, params: Any, lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["n"] = p.grad.clone(), 0
                b1, b2 = group["betas"]
                p.add_((state["m"] * b1 + p.grad * (1 - b1)).tanh(), alpha=-group["lr"])
                state["m"] = state["m"] * b2 + p.grad * (1 - b2)


def _scaled(optimizer_of: Any, clip: bool, inside: bool = True, bad: tuple[int, ...] = (3,)) -> Scenario:
    def scaled(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        optimizer = optimizer_of(model.parameters())
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            if inside:
                scaler.update()
            return loss

        run = wrap(step, model, optimizer)
        for i, (x, y) in enumerate(batches(device, 7)):
            loss = run(x * float("inf") if i in bad else x, y)
            if not inside:
                scaler.update()
            yield loss, state_of(model, optimizer), scaler.get_scale(), scaler._get_growth_tracker()

    return scaled


for _name in ("SGD", "SGD nesterov", "Adam", "AdamW fused", "NAdam"):
    SCENARIOS[f"scaler: {_name}"] = _scaled(OPTIMIZERS[_name], clip=False)
    SCENARIOS[f"scaler, clipped: {_name}"] = _scaled(OPTIMIZERS[_name], clip=True)
_DAMPENED = OPTIMIZERS["SGD momentum"]
SCENARIOS["scaler, bad at first: SGD momentum"] = _scaled(_DAMPENED, clip=False, bad=(0, 1, 4))
SCENARIOS["scaler, bad at first, clipped: SGD momentum"] = _scaled(_DAMPENED, clip=True, bad=(0, 5))
for _name in ("Adam", "RMSprop", "Rprop", "Adafactor", "ASGD"):
    SCENARIOS[f"scaler, bad at first: {_name}"] = _scaled(OPTIMIZERS[_name], clip=False, bad=(0, 1, 4))
SCENARIOS["scaler: Lion"] = _scaled(Lion, clip=False)
SCENARIOS["scaler, bad at first: Lion"] = _scaled(Lion, clip=False, bad=(0, 1, 4))
SCENARIOS["scaler updated outside"] = _scaled(OPTIMIZERS["AdamW"], clip=False, inside=False)


@scenario
def zeroed_gradients_that_stay(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        return loss

    run = wrap(step, model, optimizer)
    for x, y in batches(device):
        yield run(x, y), state_of(model, optimizer)


@scenario
def groups_and_frozen_parameters(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=0.01, weight_decay=0.1)  # type: ignore[union-attr]

    run = wrap(training(model, optimizer), model, optimizer)
    model.late.requires_grad_(False)
    for i, (x, y) in enumerate(batches(device, 7)):
        if i == 3:
            optimizer.add_param_group({"params": [*model.one.parameters()], "lr": 0.1})  # type: ignore[union-attr]
        if i == 5:
            model.head.weight.requires_grad_(False)  # type: ignore[union-attr]
        yield run(x, y), state_of(model, optimizer)


@scenario
def a_counter_in_the_step(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    calls = {"n": 0}

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        calls["n"] += 1
        if calls["n"] % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    run = wrap(step, model, optimizer)
    for x, y in batches(device, 7):
        yield run(x, y), state_of(model, optimizer), calls["n"]


@scenario
def own_optimizer(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = Lion(model.parameters())

    run = wrap(training(model, optimizer))
    for i, (x, y) in enumerate(batches(device)):
        optimizer.param_groups[0]["lr"] = 0.01 * (i + 1)
        yield run(x, y), state_of(model, optimizer)
