"""Training steps as people write them, for `compile_step`: the curve and all state against plain torch in float64."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from jaten_ops import Tensor, compile_step

Wrap = Callable[..., Callable[..., Any]]
Scenario = Callable[[str, Wrap], Iterator[Any]]
"""From a device and what is done to a step: what each call returns and leaves behind, tensors in any structure."""

SCENARIOS: dict[str, Scenario] = {}


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


def classify(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """A training step as most are written."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small layer on the device, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to("jax")
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


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


def training(model: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """The step that most loops have: the loss of a batch's classes, and the optimizer's step."""

    def step(x: torch.Tensor, y: torch.Tensor, *options: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, *options), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def numbers_in(tree: Any) -> list[Any]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor | float | int)]


def copied(value: Any) -> Any:
    """A tensor's values on the CPU; another value as it is."""
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def assert_as_plain_torch(run: Scenario, microbatches: int = 1, device: str = "jax") -> list[Any]:
    """Compares each call's results, compiled, with those of plain torch on the CPU.

    Args:
        run: the training.
        microbatches: of the compiled steps.
        device: where they compute; "cpu" for torch's memory, in which then all tensors must be.

    Returns:
        The compiled steps.
    """
    expected = [tree_map(copied, found) for found in run("cpu", lambda step, *_: step)]
    steps: list[Any] = []

    def wrap(step: Callable[..., Any], *holders: Any) -> Callable[..., Any]:
        steps.append(compile_step(step, *holders, microbatches=microbatches))
        return steps[-1]

    got = []
    for found in run(device, wrap):
        assert device == "jax" or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(found))
        got.append(tree_map(copied, found))
    for call, (mine, its) in enumerate(zip(got, expected, strict=True)):
        torch.testing.assert_close(
            numbers_in(mine), numbers_in(its), rtol=1e-6, atol=1e-8, equal_nan=True,
            msg=lambda m, i=call: f"call {i}: {m}",
        )  # fmt: skip
    return steps


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
def modes_and_statistics(device: str, wrap: Wrap) -> Iterator[Any]:
    model = nn.Sequential(make(device), nn.BatchNorm1d(3).double().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    run = wrap(training(model, optimizer), model, optimizer)
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

    run = wrap(training(model, optimizer), model, optimizer)
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

        run = wrap(training(model, optimizer), model, optimizer)
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

    step = classify(model, optimizer)

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

    step = classify(model, optimizer)

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
