"""`compile_step` of plain CPU tensors and modules: they stay what and where they are, and are updated in place."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaten_ops
from jaten_ops import Tensor, compile_step
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.tensor.operand_values import is_traced

from ..programs import steps_of_models, steps_of_optimizers, steps_that_keep, steps_with_settings  # noqa: F401  # their scenarios
from ..programs.steps import SCENARIOS, Scenario, Wrap, assert_as_plain_torch, batches, make, state_of, training
from .test_tensor_changes import CHANGES

OTHERS = {  # what they show holds on the device alone
    "settings: on_the_cpu": "reads a tensor that is there a number in torch's memory",
    "settings: counted_on_the_cpu": "the same",
    "gradients_of_arguments": "reaches no tensor, so that its arguments move to the device",
}
ALL = {**{n: run for n, run in SCENARIOS.items() if n not in OTHERS}, **{f"{n} changes": c for n, c in CHANGES.items()}}
SAMPLE = (
    "supervised: AdamW fused", "late parameter: Adam", "accumulated: SGD momentum", "keeps: view", "tied_and_swapped",
    "closure_list_and_nonlocal", "averaged: SWA", "scaler, clipped: AdamW fused", "scaler, bad at first: SGD momentum",
    "arguments", "saved_and_resumed", "modes_and_statistics", "hooks", "zeroed_gradients_that_stay",
    "groups_and_frozen_parameters", "settings: random_of_python", "schedule: OneCycleLR",
    "two_steps_and_eager_training",
)  # fmt: skip


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.exhaustive) for n in ALL])
def test_computes_what_plain_torch_does(name: str) -> None:
    steps = assert_as_plain_torch(ALL[name], device="cpu")
    assert all(step._compiles and step._reach.memory is not None for step in steps)


IN_MEMORY: dict[str, Scenario] = {}


def in_memory(fn: Scenario) -> Scenario:
    IN_MEMORY[fn.__name__] = fn
    return fn


def _layer() -> nn.Linear:
    layer = nn.Linear(3, 3, dtype=torch.float64)
    nn.init.constant_(layer.weight, 0.5)
    nn.init.zeros_(layer.bias)
    return layer


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64)


@in_memory
def parameters_in_one_buffer(_: str, wrap: Wrap) -> Iterator[Any]:
    flat = torch.linspace(-1, 1, 12, dtype=torch.float64)
    model = _layer()
    model.weight.data, model.bias.data, model.flat = flat[:9].view(3, 3), flat[9:], flat
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = (model(x) * model.flat.sum()).square().mean()  # type: ignore[operator]  # a tensor
        loss.backward()
        optimizer.step()
        return loss, model.flat[2:5]  # type: ignore[index]  # a tensor

    run = wrap(step)
    for i in range(4):
        loss, part = run(_ones(2, 3) * i + 1)
        assert part.data_ptr() == flat.data_ptr() + 16
        assert model.weight.data_ptr() == flat.data_ptr()
        yield loss, part, flat.clone(), model.weight.grad


@in_memory
def layouts(_: str, wrap: Wrap) -> Iterator[Any]:
    """Channels last, transposed, with gaps, not aligned, expanded, empty."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).double().to(memory_format=torch.channels_last)
    model.gaps = nn.Parameter(torch.randn(6, 4, dtype=torch.float64).t()[:, ::2])
    raw = np.zeros(80, np.uint8)
    model.raw = nn.Parameter(torch.from_numpy(np.frombuffer(raw, np.float64, offset=8, count=9)))
    model.empty = torch.zeros(0, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = (nn.Sequential.forward(model[:2], x) * y).square().mean()  # type: ignore[arg-type]  # a Sequential
        loss = loss + model.gaps.square().sum() + (model.raw - 1).square().sum() + model.empty.sum()  # type: ignore[operator, union-attr]
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    for i in range(4):
        x = torch.linspace(-1, 1, 96, dtype=torch.float64).view(1, 3, 4, 8) * i
        loss = run(x.to(memory_format=torch.channels_last), _ones(1, 1, 1, 6).expand(1, 4, 2, 6))
        yield (
            loss,
            state_of(model, optimizer),
            np.frombuffer(raw, np.float64, offset=8).tolist(),
            [p.stride() for p in model.parameters()],
        )


@in_memory
def windows_of_a_data_set(_: str, wrap: Wrap) -> Iterator[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)).double()
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    run, data = wrap(step), torch.arange(90).view(10, 9) % 11
    for i in range(5):
        yield run(data[i : i + 4, :-1], data[i : i + 4, 1:]), state_of(model, optimizer)
    assert getattr(run, "_compiles", 1) == 1


@in_memory
def arguments_that_are_written_to(_: str, wrap: Wrap) -> Iterator[Any]:
    model, base = _layer(), torch.zeros(4, 6, dtype=torch.float64)

    def step(x: torch.Tensor, state: torch.Tensor) -> Any:
        state.mul_(0.5).add_(model(x).detach().mean(0))
        x[0] = 7.0
        return state, x, x[0]

    run = wrap(step)
    for _i in range(4):
        x, state = _ones(2, 3), base[1, ::2]
        version = x._version
        found = run(x, state)
        assert found[0] is state
        assert found[1] is x
        assert x._version > version
        yield found, base.clone(), x


@in_memory
def devices_by_name(_: str, wrap: Wrap) -> Iterator[Any]:
    model, device = _layer(), torch.device("cpu")

    def step(x: torch.Tensor) -> Any:
        x = x.to(device).to("cpu").cpu()
        scale = torch.zeros(3) + torch.arange(3) + torch.tensor([1.0, 2.0, 3.0], device="cpu")
        loss = (model(x) * scale + torch.empty(2, 3, device=device).fill_(2) + torch.ones(3, device=x.device)).sum()
        loss.backward()
        return loss, torch.linspace(0, 1, 3), x.new_zeros(2), torch.eye(2)

    run = wrap(step)
    for _i in range(3):
        yield run(_ones(2, 3)), model.weight.grad


@in_memory
def results_and_what_shares_their_memory(_: str, wrap: Wrap) -> Iterator[Any]:
    model, x = _layer(), _ones(2, 3)

    def step(x: torch.Tensor) -> Any:
        y = model(x)
        with torch.no_grad():
            model.bias.add_(1)
        copies = model.weight.detach().clone(), x.clone(), torch.ones(2), torch.ones(2)
        return copies, y, y.detach(), y[0], model.weight.detach(), model.bias, x.view(-1)

    run = wrap(step)
    for _i in range(4):
        copies, y, same, row, weight, bias, flat = found = run(x)
        assert bias is model.bias
        assert (weight.data_ptr(), flat.data_ptr()) == (model.weight.data_ptr(), x.data_ptr())
        assert y.data_ptr() == same.data_ptr() == row.data_ptr()
        with torch.no_grad():
            for copy in (*copies, same):
                copy.add_(100)
        yield found, model.weight, x
        weight.mul_(1.5)


@in_memory
def memory_replaced_between_calls(_: str, wrap: Wrap) -> Iterator[Any]:
    model = _layer()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
            with torch.no_grad():
                p.sub_(g * 0.1)
        return loss

    run = wrap(step)
    for i in range(7):
        if i == 3:
            model.weight.data = torch.arange(9.0, dtype=torch.float64).view(3, 3)
        if i == 4:
            model.weight.data = model.weight.data.t()
        if i == 5:
            model.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()}, assign=True)
        yield run(_ones(2, 3)), state_of(model)


@in_memory
def types(_: str, wrap: Wrap) -> Iterator[Any]:
    kinds = (torch.bfloat16, torch.float16, torch.complex64)
    params = [torch.ones(3, dtype=kind, requires_grad=True) for kind in kinds]
    flag, count = torch.zeros(3, dtype=torch.bool), torch.zeros((), dtype=torch.int32)

    def step(x: torch.Tensor) -> torch.Tensor:
        flag.logical_not_()
        count.add_(1)
        loss = sum((p * x).abs().float().sum() for p in params)
        loss.backward()  # type: ignore[union-attr]  # a tensor
        with torch.no_grad():
            for p in params:
                p.sub_(p.grad * 0.5)  # type: ignore[operator]  # it has one
                p.grad = None
        return loss  # type: ignore[return-value]  # a tensor

    run = wrap(step)
    for _i in range(4):
        yield run(torch.ones(3)), [p.detach().abs().float() for p in params], flag.int(), count.clone()


@in_memory
def graphs_that_the_loop_keeps(_: str, wrap: Wrap) -> Iterator[Any]:
    model = _layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run, kept, later = wrap(step), [], model.bias.sum() * 2
    for _i in range(4):
        kept.append(run(_ones(2, 3)))
        model.weight.sum().backward()
        later.backward(retain_graph=True)
        yield kept, state_of(model)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", IN_MEMORY)
def test_of_memory_computes_what_plain_torch_does(name: str) -> None:
    (step,) = assert_as_plain_torch(IN_MEMORY[name], device="cpu")
    assert step._reach.memory is not None


@pytest.mark.exhaustive
def test_microbatches_of_a_batch_on_the_cpu() -> None:
    def run(device: str, wrap: Wrap) -> Iterator[Any]:
        model = make(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        step = wrap(training(model, optimizer))
        for x, y in batches(device):
            yield step(x, y), state_of(model, optimizer)

    assert_as_plain_torch(run, microbatches=2, device="cpu")


def test_tensors_stay_what_and_where_they_are() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    step = compile_step(training(model, optimizer))
    x, y = torch.randn(6, 3), torch.tensor([0, 1] * 3)
    step(x, y)
    held = [*model.parameters(), *model.buffers(), *(v for s in optimizer.state.values() for v in s.values())]
    before = [(id(t), t.data_ptr(), type(t), t._version) for t in held]
    attributes = [t.__dict__ for t in held]
    for rate in (0.1, 0.01, 0.001):
        optimizer.param_groups[0]["lr"] = rate
        loss = step(x, y)
        assert type(loss) is torch.Tensor
        assert loss.is_cpu
        torch.save((model.state_dict(), optimizer.state_dict()), io.BytesIO())
    assert step._compiles == 1
    after = [*model.parameters(), *model.buffers(), *(v for s in optimizer.state.values() for v in s.values())]
    assert [(id(t), t.data_ptr(), type(t)) for t in after] == [known[:3] for known in before]
    assert all(t._version > known[3] for t, known in zip(after, before, strict=True))
    assert all(t.__dict__ is known for t, known in zip(after, attributes, strict=True))
    gc.collect()
    tensors = [t for t in gc.get_objects() if type(t) is Tensor and not is_traced(t)]
    assert not [t for t in tensors if t.shape in {(4, 3), (2, 4)}]  # those that stood in their places are gone


def _trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def _raises(model: nn.Module, *args: Any) -> None:
    model.kept = _trained(model, *args)
    raise KeyError("mine")


def _in_autocast(*args: Any) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return _trained(*args)


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[nn.Module], torch.Tensor], str]] = {
    "item": (lambda *args: _trained(*args).item(), lambda _: torch.ones(2, 3), "reads the value of a tensor"),
    "numpy": (lambda *args: _trained(*args).detach().numpy(), lambda _: torch.ones(2, 3), "reads the value"),
    "error": (_raises, lambda _: torch.ones(2, 3), "mine"),
    "autocast": (_in_autocast, lambda _: torch.ones(2, 3), r"autocast.*\.to\('jax'\)"),
    "overlap": (_trained, lambda model: model.weight.detach()[1:], r"clone\(\).*\.to\('jax'\)"),  # type: ignore[index, operator, union-attr, dict-item]
    "device": (_trained, lambda _: torch.ones(2, 3, device="jax"), r"Linear.weight.*\.to\('jax'\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_leaves_everything(name: str) -> None:
    fn, argument, message = REFUSED[name]
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    _trained(model, optimizer, torch.ones(2, 3))
    step = compile_step(lambda x: fn(model, optimizer, x))
    step._warm = True  # the first call would run as it is
    held = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]

    def state() -> Any:
        return [(type(t), id(t), t.data_ptr(), t._version, id(t.grad), t.tolist()) for t in held], [*model.__dict__]

    for _ in range(2):
        before = state()
        with pytest.raises((UnsupportedInputError, KeyError), match=message):
            step(argument(model))
        assert state() == before
    torch.testing.assert_close(compile_step(model)(torch.ones(2, 3)), model(torch.ones(2, 3)))


def test_a_sparse_gradient_from_before_is_refused() -> None:
    rows = nn.Embedding(3, 2, sparse=True)
    step = compile_step(lambda indices: rows(indices).sum().backward())
    step(torch.tensor([1]))  # the first call runs as it is
    with pytest.raises(UnsupportedInputError, match=r"torch.sparse_coo.*expected a dense one.*sparse=False"):
        step(torch.tensor([1]))


def test_where_the_device_is_no_cpu_modules_are_to_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(UnsupportedInputError, match=r"Linear.weight.*\.to\('jax'\)"):
        compile_step(nn.Linear(3, 3))(torch.ones(2, 3))


def test_an_exported_step_has_a_state_of_its_own() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = _trained(model, optimizer, x)
        optimizer.zero_grad()
        return loss

    run, x = compile_step(step), torch.ones(2, 3)
    run(x)
    exported = jaten_ops.export(run, (x,), training=True)
    first = run(x)
    run(x)
    torch.testing.assert_close(torch.tensor(exported.call(x).tolist()), first)


def test_arguments_grow_when_they_are_results_of_an_operator() -> None:
    given = torch.ones(3)
    step = compile_step(lambda x: x.add_(1))
    for _ in range(3):
        step(given)
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(torch.arange(5.0), 1, out=given)
    step(given)
    assert given.tolist() == [2, 3, 4, 5, 6]
