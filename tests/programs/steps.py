"""Training steps as people write them, for `compile_step`: the curve and all state against plain torch in float64."""

from __future__ import annotations

import copy
import io
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Wrap = Callable[..., Callable[..., Any]]
Scenario = Callable[[str, Wrap], Iterator[Any]]
"""From a device and what is done to a step: what each call returns and leaves behind, tensors in any structure."""

SCENARIOS: dict[str, Scenario] = {}
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


def scenario(fn: Scenario) -> Scenario:
    SCENARIOS[fn.__name__] = fn
    return fn


class Net(nn.Module):
    """Two layers, the second of which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.late = nn.Linear(4, 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, late: bool = True) -> torch.Tensor:
        x = torch.tanh(self.one(x))
        return self.head(self.late(x) if late else x)


def make(device: str, cls: Callable[[], nn.Module] = Net, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return cls().double().to(device)


def batches(device: str, count: int = 5, size: int = 6) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(size, 4, dtype=torch.float64, generator=generator)
        y = torch.randint(0, 3, (size,), generator=generator)
        yield x.to(device), y.to(device)


def state_of(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Any:
    """All that training has changed, and the gradients."""
    params = [*model.parameters()]
    states = [[o.state[p] for g in o.param_groups for p in g["params"] if p in o.state] for o in optimizers]
    passed = "params", "capturable", "fused"
    rates = [{k: v for k, v in g.items() if k not in passed} for o in optimizers for g in o.param_groups]
    return [*model.state_dict().values()], [p.grad for p in params], states, rates


def supervised(device: str, wrap: Wrap, optimizer_of: Any, count: int = 5) -> Iterator[Any]:
    model = make(device)
    optimizer = optimizer_of(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step, model, optimizer)
    for x, y in batches(device, count):
        yield run(x, y), state_of(model, optimizer)


def _late(optimizer_of: Any) -> Scenario:
    def late_parameter(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        optimizer = optimizer_of(model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor, late: bool) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, late), y)
            loss.backward()
            optimizer.step()
            return loss

        run = wrap(step, model, optimizer)
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


class Keeps(nn.Module):
    """Stores what it computes in ways that people do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = Net(), how
        self.register_buffer("mean", torch.zeros(3))
        self.cache: Any = None
        self.seen: list[Any] = []
        self.by_name: dict[str, Any] = {}
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.net(x)
        if self.how == "attribute":
            self.cache = y.detach()
        elif self.how == "tuple":
            h, c = (torch.zeros_like(y), 0.0) if self.cache is None else self.cache
            self.cache = (h * 0.5 + y.detach(), c + 1.0 + y.detach().sum())
            y = y + self.cache[0]
        elif self.how == "list of two":
            self.seen = [y.detach()[1:], y.detach() * 2]
        elif self.how == "graph":
            self.cache = y
        elif self.how == "view":
            self.cache = y[0]
        elif self.how == "buffer replaced":
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        elif self.how == "buffer written":
            self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        elif self.how == "list":
            self.seen.append(y.detach().sum())
        elif self.how == "dict":
            self.by_name["y"] = y.detach()
        elif self.how == "read back":
            y = y if self.cache is None else y + 0.1 * self.cache
            self.cache = y.detach()
        elif self.how == "counter":
            self.calls += 1
            y = y * self.calls
        return y


def _keeps(how: str) -> Scenario:
    def keeps(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device, lambda: Keeps(how))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run, kept = wrap(step, model, optimizer), []
        for x, y in batches(device):
            loss = run(x, y)
            kept.append(model.cache)
            yield loss, state_of(model, optimizer), list(kept), list(model.seen), dict(model.by_name)

    return keeps


_HOWS = "tuple, list of two, attribute, graph, view, buffer replaced, buffer written, list, dict, read back, counter"
for _how in _HOWS.split(", "):
    SCENARIOS[f"keeps: {_how}"] = _keeps(_how)


@scenario
def closure_list_and_nonlocal(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    history: list[torch.Tensor] = []
    last: Any = None
    recent: deque[torch.Tensor] = deque(maxlen=2)
    count = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal last, count
        loss = model(x).square().mean()
        history.append(loss.detach())
        recent.append(loss.detach() * 2)
        last = loss.detach() + count
        count += 1
        return loss

    run = wrap(step, model)
    for x, _ in batches(device):
        yield run(x), list(history), list(recent), last, count


@scenario
def ema_of_a_dict(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    replaced = {k: v.detach().clone() for k, v in model.named_parameters()}
    written = {k: v.detach().clone() for k, v in model.named_parameters()}

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for k, v in model.named_parameters():
                replaced[k] = 0.9 * replaced[k] + 0.1 * v
                written[k].mul_(0.9).add_(v, alpha=0.1)
        return loss

    run = wrap(step)  # nothing named
    for x, y in batches(device):
        yield run(x, y), dict(replaced), {k: v.clone() for k, v in written.items()}, state_of(model, optimizer)


def _averaged(**options: Any) -> Scenario:
    def averaged(device: str, wrap: Wrap) -> Iterator[Any]:
        model = nn.Sequential(make(device), nn.BatchNorm1d(3).double().to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        average = AveragedModel(model, **options)

        def step(x: torch.Tensor, y: torch.Tensor, begun: bool) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if begun:
                average.update_parameters(model)
            return loss

        run = wrap(step, model, optimizer)
        for i, (x, y) in enumerate(batches(device, 6)):
            yield run(x, y, i > 1), state_of(model, optimizer), [*average.state_dict().values()]

    return averaged


SCENARIOS["averaged: SWA"] = _averaged()
SCENARIOS["averaged: EMA, buffers"] = _averaged(multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


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
def gan(device: str, wrap: Wrap) -> Iterator[Any]:
    generator, critic = make(device, lambda: nn.Linear(4, 4)), make(device, lambda: nn.Linear(4, 1), 2)
    one = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9))
    two = torch.optim.RMSprop(critic.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> dict[str, Any]:
        two.zero_grad()
        fake = generator(x)
        loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(x)).mean()
        loss.backward()
        two.step()
        one.zero_grad()
        other = F.softplus(-critic(fake)).mean()
        other.backward()
        one.step()
        return {"critic": loss, "generator": (other, None, 3, "name"), "lr": one.param_groups[0]["lr"]}

    run = wrap(step)
    for x, _ in batches(device):
        yield run(x), state_of(generator, one), state_of(critic, two)


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

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step, model, optimizer)
    model.late.requires_grad_(False)
    for i, (x, y) in enumerate(batches(device, 7)):
        if i == 3:
            optimizer.add_param_group({"params": [*model.one.parameters()], "lr": 0.1})  # type: ignore[union-attr]
        if i == 5:
            model.head.weight.requires_grad_(False)  # type: ignore[union-attr]
        yield run(x, y), state_of(model, optimizer)


@scenario
def modes_and_statistics(device: str, wrap: Wrap) -> Iterator[Any]:
    model = nn.Sequential(make(device), nn.BatchNorm1d(3).double().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step, model, optimizer)
    for i, (x, y) in enumerate(batches(device, 6)):
        model.train(i not in (2, 3))
        yield run(x, y), state_of(model, optimizer)


@scenario
def hooks(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outputs: dict[str, torch.Tensor] = {}
    norms: list[torch.Tensor] = []
    model.one.register_forward_hook(lambda m, a, out: outputs.__setitem__("one", out.detach()))  # type: ignore[union-attr]
    model.head.register_full_backward_hook(lambda m, gi, go: norms.append(go[0].norm()))  # type: ignore[union-attr]
    model.late.weight.register_hook(lambda g: g * 0.5)  # type: ignore[union-attr]
    optimizer.register_step_post_hook(lambda o, a, k: outputs.__setitem__("after", model.one.bias.detach().clone()))  # type: ignore[union-attr]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step, model, optimizer)
    for i, (x, y) in enumerate(batches(device, 6)):
        if i == 4:
            model.head.register_forward_hook(lambda m, a, out: out * 2)  # type: ignore[union-attr]
        yield run(x, y), state_of(model, optimizer), dict(outputs), list(norms)


def _parametrized(apply: Callable[[nn.Module], Any]) -> Scenario:
    def parametrized(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        torch.manual_seed(3)
        apply(model.one)  # type: ignore[arg-type]
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = wrap(step, model, optimizer)
        for x, y in batches(device, 4):
            yield run(x, y), state_of(model, optimizer)

    return parametrized


SCENARIOS["parametrized: weight_norm"] = _parametrized(nn.utils.parametrizations.weight_norm)
SCENARIOS["parametrized: weight_norm by a hook"] = _parametrized(nn.utils.weight_norm)


@scenario
def teacher_and_tensors_of_the_closure(device: str, wrap: Wrap) -> Iterator[Any]:
    model, teacher = make(device), make(device, seed=5)
    rate = torch.tensor(0.05, dtype=torch.float64, device=device)
    counter = torch.zeros((), dtype=torch.int64, device=device)
    hidden = [[torch.ones(3, dtype=torch.float64, device=device)]]

    class Deep:
        __slots__ = ("tensor",)

    deep = Deep()
    deep.tensor = torch.ones(3, dtype=torch.float64, device=device)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - teacher(x).detach()).square().mean() * hidden[0][0].sum() * deep.tensor.sum()
        grads = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= rate * g
            counter.add_(1)
            deep.tensor.mul_(0.9)
        return loss

    run = wrap(step)
    for i, (x, _) in enumerate(batches(device, 6)):
        if i == 3:
            rate.fill_(0.01)
            with torch.no_grad():
                for p in teacher.parameters():
                    p.mul_(1.5)
        if i == 4:
            hidden[0][0] = hidden[0][0] * 2
        yield run(x), state_of(model), counter.clone(), deep.tensor.clone()


@scenario
def saved_and_resumed(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run, file = wrap(step, model, optimizer), io.BytesIO()
    data = [*batches(device, 6)]
    for i, (x, y) in enumerate(data):
        if i == 3:
            torch.save((model.state_dict(), optimizer.state_dict()), file)
        yield run(x, y), state_of(model, optimizer)
    for assign in (False, True):
        file.seek(0)
        weights, state = torch.load(file)
        model.load_state_dict(weights, assign=assign)
        if assign:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer.load_state_dict(state)
        copied = copy.deepcopy(model)
        for x, y in data[3:]:
            yield run(x, y), state_of(model, optimizer)
        yield [*copied.state_dict().values()]


@scenario
def two_steps_and_eager_training(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def other(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    one, two = wrap(step, model, optimizer), wrap(other)
    for i, (x, y) in enumerate(batches(device, 8)):
        found = step(x, y) if i in (3, 6) else two(x) if i % 2 else one(x, y)
        yield found, state_of(model, optimizer)


@scenario
def arguments(device: str, wrap: Wrap) -> Iterator[Any]:
    """Written to, returned, with gradients, views, in structures, of other sizes, the same twice."""
    weight = torch.full((4,), 2.0, dtype=torch.float64, device=device)

    def step(x: torch.Tensor, more: dict[str, Any]) -> Any:
        y = x.clone().requires_grad_()
        more["w"].mul_(2)
        loss = (y * more["w"] * weight).sum() * more["scale"]
        loss.backward()
        return more["w"], y.grad, loss, weight, more["w"][1:], x

    run = wrap(step)
    for i in range(5):
        x = torch.ones(3 + (i > 2), 4, dtype=torch.float64, device=device)
        base = torch.arange(8.0, dtype=torch.float64, device=device)
        w = base[:4] if i % 2 else base.view(4, 2)[:, 0]
        out = run(x, {"w": w, "scale": 2})
        out[0].add_(1)
        out[3].add_(1)
        yield out, base, w, weight.clone()


@scenario
def gradients_of_arguments(device: str, wrap: Wrap) -> Iterator[Any]:
    x = torch.ones(3, dtype=torch.float64, device=device, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = x.square().sum()
        loss.backward()
        return loss

    run = wrap(step)
    for _ in range(4):
        yield run(x), x.grad


@scenario
def tied_and_swapped(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    model.late.weight = nn.Parameter(torch.ones(5, 5, dtype=torch.float64, device=device))  # type: ignore[union-attr]
    model.again = nn.Linear(5, 5).double().to(device)
    model.again.weight = model.late.weight  # type: ignore[union-attr]
    box = {"a": torch.zeros(2, device=device), "b": torch.ones(2, device=device)}

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model.again(torch.tanh(model.late(model.one(x)))).square().mean()  # type: ignore[operator]
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=0.1)
                    p.grad = None
        box["a"], box["b"] = box["b"], box["a"]
        box["a"].add_(1)
        return loss

    run = wrap(step)
    for x, _ in batches(device):
        yield run(x), state_of(model), box["a"].clone(), box["b"].clone()


@scenario
def a_trainer(device: str, wrap: Wrap) -> Iterator[Any]:
    """A class whose loop counts and logs beside the step."""

    class Trainer:
        def __init__(self) -> None:
            self.model = make(device)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.scaler = None
            self.global_step, self.log = 0, []  # type: ignore[var-annotated]
            self.alpha = 1.0
            self.run = wrap(self.training_step)

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.model(x), y) * self.alpha

        def training_step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            self.optimizer.step()
            return loss

    trainer = Trainer()
    for i, (x, y) in enumerate(batches(device, 6)):
        trainer.alpha = 1.0 if i < 4 else 0.5
        trainer.log.append(trainer.run(x, y))
        trainer.global_step += 1
        yield trainer.log[-1], state_of(trainer.model, trainer.optimizer)


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
def cpu_tensors_of_the_closure(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    scale, shift = torch.tensor(2.0, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def step(x: torch.Tensor) -> torch.Tensor:
        return (model(x) * scale + shift.to(device)).sum()

    run = wrap(step)
    for i, (x, _) in enumerate(batches(device)):
        scale.fill_(i)
        shift.add_(1)
        yield run(x)


@scenario
def double_backward(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = (g.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    for x, _ in batches(device, 4):
        yield run(x), state_of(model, optimizer)


@scenario
def own_optimizer(device: str, wrap: Wrap) -> Iterator[Any]:
    model = make(device)
    optimizer = Lion(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    for i, (x, y) in enumerate(batches(device)):
        optimizer.param_groups[0]["lr"] = 0.01 * (i + 1)
        yield run(x, y), state_of(model, optimizer)
