"""`compile_step`: a whole training step as one executable computes what the step does as it is."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from jaten_ops import Tensor, compile_step, to_jax
from jaten_ops.errors import UnsupportedInputError
from jaten_ops.tensor.operand_values import is_traced
from jaten_ops.tensor.tensor import array_of

from ..programs import steps_of_models, steps_of_optimizers, steps_that_keep, steps_with_settings  # noqa: F401  # their scenarios
from ..programs.steps import SCENARIOS, assert_as_plain_torch, copied, linear, numbers_in


def test_gradients_accumulate_over_calls() -> None:
    model, optimizer = linear()
    reference = nn.Linear(3, 2)
    reference.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    fn = compile_step(lambda x: model(x).square().sum().backward(), model, optimizer)
    for x in torch.randn(4, 5, 3):
        fn(x.to("jax"))
        reference(x).square().sum().backward()
    torch.testing.assert_close(model.weight.grad.cpu(), reference.weight.grad)


def test_gradients_that_the_step_drops_are_gone() -> None:
    model, optimizer = linear()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    fn = compile_step(step, model, optimizer)
    losses = [fn(torch.ones(5, 3, device="jax")).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert model.weight.grad is None


def test_random_numbers_differ_and_come_again() -> None:
    x = torch.ones(100, device="jax")
    fn = compile_step(lambda: F.dropout(x), x)

    def draws() -> list[list[float]]:
        torch.manual_seed(3)
        return [fn().tolist() for _ in range(3)]

    fn()
    first = draws()
    assert first[0] != first[1] != first[2]
    assert draws() == first


def test_random_numbers_of_a_generator_come_again() -> None:
    own, x = torch.Generator(device="jax"), torch.ones(20, device="jax")
    fn = compile_step(lambda: [torch.rand(20, generator=own, device="jax") for _ in range(2)] + [torch.rand_like(x)])
    fn()
    draws = []
    for seed in (3, 3, 4):
        own.manual_seed(seed)
        torch.manual_seed(5)
        draws.append([[found.tolist() for found in fn()] for _ in range(2)])
    assert draws[0] == draws[1]
    assert [a != b for a, b in zip(draws[0][0], draws[2][0], strict=True)] == [True, True, False]
    assert len({str(found) for call in draws[0] for found in call}) == 6


def test_arrays_and_views_that_others_have_stay() -> None:
    model, optimizer = linear()

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    fn = compile_step(step, model, optimizer)
    x = torch.ones(5, 3, device="jax")
    fn(x)
    array, row, before = to_jax(model.weight), model.weight.detach()[0], model.weight.detach().clone()
    fn(x)
    torch.testing.assert_close(torch.tensor(array.tolist()), before.cpu())
    torch.testing.assert_close(row, model.weight.detach()[0])
    assert not torch.equal(row, before[0])


def test_what_is_replaced_is_noticed() -> None:
    model, _ = linear()
    fn = compile_step(lambda x: model(x), model)
    x = torch.ones(1, 3, device="jax")
    fn(x), fn(x)
    model.weight = nn.Parameter(torch.zeros(2, 3, device="jax"))
    torch.testing.assert_close(fn(x)[0], model.bias.detach())
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        momentum.zero_grad()
        model(x).sum().backward()
        momentum.step()

    run = compile_step(step, model, momentum)
    run()
    saved = {k: v.clone() for k, v in model.state_dict().items()}, momentum.state_dict()
    run()
    after = model.weight.detach().clone()
    model.load_state_dict(saved[0])
    momentum.load_state_dict(saved[1])
    momentum.state[model.weight]["momentum_buffer"].fill_(7)
    run()
    assert not torch.equal(after, model.weight.detach())


def test_bad_steps_say_what_to_do() -> None:
    model, _ = linear()
    x = torch.ones(1, 3, device="jax")
    reads = compile_step(lambda x: model(x).sum().item(), model)
    reads(x)
    with pytest.raises(UnsupportedInputError, match="reads the value"):
        reads(x)
    assert model(x).shape == (1, 2)  # the parameters are what they were
    adam = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(x).sum().backward()
        adam.step()

    counted = compile_step(step, model, adam)  # it keeps its count on the CPU
    counted(), counted()
    assert adam.state[model.weight]["step"].item() == 2
    with pytest.raises(UnsupportedInputError, match=r"\.to\('jax'\)"):
        fn = compile_step(lambda: None, nn.Linear(2, 2), model)
        fn(), fn()


# a step of an operator that checks values, with what it takes and what it refuses
_SCORES = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
_TABLE = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
CHECKED: dict[str, tuple[Callable[..., torch.Tensor], list[Any], list[list[Any]]]] = {
    "embedding": (lambda i: F.embedding(i, _TABLE.to(i.device)), [[1, 2]], [[[7]], [[-1]]]),
    "one_hot": (lambda i: F.one_hot(i, 4), [[3, 0]], [[[4, 0]], [[-1, 0]]]),
    "ctc_loss": (
        lambda *lengths: F.ctc_loss(_SCORES.to(lengths[0].device), torch.ones(2, 2, dtype=torch.int64), *lengths),
        [[5, 4], [2, 0]],
        [[[6, 4], [2, 0]], [[5, 4], [3, 0]], [[5, 4], [-1, 0]]],
    ),
    "ctc_loss of targets in a row": (
        lambda *lengths: F.ctc_loss(_SCORES.to(lengths[0].device), torch.tensor([1, 3, 2]), *lengths),
        [[5, 4], [1, 2]],
        [[[5, 4], [1, 1]], [[5, -1], [1, 2]]],
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHECKED)
def test_values_are_checked_after_a_step(name: str) -> None:
    fn, right, wrongs = CHECKED[name]
    step = compile_step(fn)
    given = [torch.tensor(values) for values in right]
    for _ in range(3):
        torch.testing.assert_close(step(*(t.to("jax") for t in given)).cpu(), fn(*given))
    for wrong in wrongs:
        given = [torch.tensor(values) for values in wrong]
        with pytest.raises((RuntimeError, IndexError)) as error:
            fn(*given)
        with pytest.raises(error.type):
            step(*(t.to("jax") for t in given))
    assert step._compiles == 1


def test_a_failing_step_leaves_the_state() -> None:
    model, _ = linear()
    before = model.weight.detach().clone()

    def step(x: torch.Tensor) -> None:
        with torch.no_grad():
            model.weight.mul_(2)
        raise KeyError("mine")

    fn = compile_step(step, model)
    fn._warm = True
    with pytest.raises(KeyError, match="mine"):
        fn(torch.ones(1))
    torch.testing.assert_close(model.weight.detach(), before)


SAMPLE = (
    "supervised: AdamW", "supervised: Adagrad", "late parameter: Adam", "accumulated: SGD momentum",
    "schedule: OneCycleLR", "schedule in the step: StepLR", "keeps: view", "keeps: buffer replaced", "keeps: tuple",
    "closure_list_and_nonlocal", "averaged: SWA", "scaler, clipped: SGD nesterov", "arguments", "tied_and_swapped",
    "teacher_and_tensors_of_the_closure", "cpu_tensors_of_the_closure", "gradients_of_arguments", "model: compiled",
    "model: checkpoint", "scaler, bad at first: SGD momentum", "scaler, bad at first: Lion",
    "settings: default_of_objects", "settings: of_module", "settings: namespaces", "settings: new_attributes",
    "settings: of_parameters", "settings: globals_of_forward", "settings: sets", "settings: random_of_python",
    "settings: what_comes_next", "settings: an argument", "settings: on_the_cpu", "settings: counted_on_the_cpu",
)  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.exhaustive) for n in SCENARIOS]
)
def test_computes_what_plain_torch_does(name: str) -> None:
    steps = assert_as_plain_torch(SCENARIOS[name])
    assert all(step._compiles for step in steps)


@pytest.mark.exhaustive
def test_autocast_in_a_step() -> None:
    def train(device: str, wrap: Callable[[Any], Any]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                hidden = model(x)
            hidden.float().square().mean().backward()
            optimizer.step()
            return hidden

        run = wrap(step)
        for x in torch.linspace(-2, 2, 80).view(4, 5, 4):
            found = run(x.to(device))
        return found.detach().cpu(), [p.detach().cpu() for p in model.parameters()]

    expected, got = train("cpu", lambda step: step), train("jax", compile_step)
    assert got[0].dtype == expected[0].dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=1.6e-2, atol=1e-3)  # two units of the last place in the forward pass


def _reads() -> dict[str, Callable[[torch.Tensor], Any]]:
    model, optimizer = linear()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = model(torch.ones(2, 3, device="jax")).square().mean()
        loss.backward()
        return loss

    return {
        "item": lambda x: model(x).sum().item(),
        "bool": lambda x: model(x) if model(x).sum() > 0 else x,
        "float of a state": lambda x: float(x.sum() + optimizer.param_groups[0]["lr"]),
        "cpu": lambda x: model(x).cpu(),
        "tolist": lambda x: model(x).tolist(),
        "masked_select": lambda x: model(x)[model(x) > 0],
        "one_hot of all there are": lambda x: F.one_hot(model(x).long().abs()),
        "copied": lambda x: torch.zeros(2, 2).copy_(model(x)),
        "error_if_nonfinite": lambda x: (
            model(x).sum().backward(), nn.utils.clip_grad_norm_(model.parameters(), 1, error_if_nonfinite=True)
        ),
        "LBFGS": lambda x: lbfgs.step(closure),
    }  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", _reads())
def test_a_step_that_reads_values_is_refused(name: str) -> None:
    fn = compile_step(_reads()[name])
    x = torch.ones(2, 3, device="jax")
    fn(x)
    with pytest.raises(UnsupportedInputError, match=r"reads the value of a tensor.*return the tensor"):
        fn(x)
    with pytest.raises(UnsupportedInputError, match="reads the value of a tensor"):
        fn(x)
    assert x.tolist() == [[1.0] * 3] * 2


def test_a_step_that_raises_leaves_everything() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    kept: list[Any] = []
    box = {"last": torch.zeros(2, device="jax")}

    def step(x: torch.Tensor, fail: bool) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        kept.append(loss)
        box["last"] = loss
        optimizer.param_groups[0]["lr"] = 7.0
        model.eval()
        if fail:
            raise KeyError("mine")
        optimizer.param_groups[0]["lr"] = 0.1
        model.train()
        optimizer.zero_grad()
        return loss

    fn = compile_step(step)
    x = torch.randn(4, 3, device="jax")
    fn(x, False)

    def state() -> Any:
        found = model.state_dict(), optimizer.state_dict(), kept, box, model.training
        return numbers_in(tree_map(copied, found))

    for _ in range(2):
        before = state()
        with pytest.raises(KeyError, match="mine"):
            fn(x, True)
        assert all(p.grad is None for p in model.parameters())
        torch.testing.assert_close(state(), before)
        fn(x, False)


def test_no_tracer_is_left() -> None:
    model, optimizer = linear()

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        hidden = model(x)
        model.kept, model.row = hidden, [hidden[0]]
        hidden.square().sum().backward()
        optimizer.step()
        return hidden[1:]

    fn = compile_step(step)
    for _ in range(3):
        fn(torch.ones(2, 3))
        gc.collect()
        tensors = [t for t in gc.get_objects() if type(t) is Tensor and not is_traced(t)]  # Dynamo keeps fake ones
        traced = [t for t in tensors if isinstance(array_of(t), jax.core.Tracer)]
        assert not traced


def test_compiles_are_told(caplog: pytest.LogCaptureFixture) -> None:
    fn = compile_step(lambda x: x + 1)
    with caplog.at_level(logging.INFO, "jaten_ops"):
        for size in (1, 2, 3, 4, 5, 6):
            fn(torch.ones(size, device="jax"))
    messages = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "jaten_ops.step"]
    assert [level for level, _ in messages] == ["INFO"] * 4 + ["WARNING", "INFO"]
    assert "the 4th time: arguments" in messages[4][1]


def test_threads_take_turns() -> None:
    model, optimizer = linear()
    count = torch.zeros((), device="jax")

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        count.add_(1)
        return loss

    fns = [compile_step(step), compile_step(step)]
    with ThreadPoolExecutor(4) as pool:
        losses = [*pool.map(lambda i: fns[i % 2](torch.ones(1 + i % 3, 3)).item(), range(40))]
    assert count.item() == 40
    assert all(map(math.isfinite, losses))
    assert not torch.compiler.is_compiling()


def test_what_is_written_is_given_away() -> None:
    model, optimizer = linear()
    fn = compile_step(lambda x: (model(x).sum().backward(), optimizer.step(), optimizer.zero_grad())[0])
    x = torch.ones(1, 3, device="jax")
    fn(x)
    old = weakref.ref(to_jax(model.weight))
    fn(x)
    assert old() is None  # no copy of it is kept


def test_a_compiled_part_of_a_step_within_a_compiled_function() -> None:
    model, optimizer = linear()
    part = torch.compile(model, backend="jaten")

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = part(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    fn = compile_step(step)
    outer = torch.compile(lambda x: fn(x * 2) + 1, backend="jaten")
    losses = [outer(torch.ones(2, 3, device="jax")).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and losses[3] < losses[0]
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_arguments_in_any_structure_take_the_program_that_they_had() -> None:
    fn = compile_step(lambda *args, **kwargs: [a for a in tree_leaves((args, kwargs)) if a is not None])
    x = torch.ones(2, device="jax")
    calls = (
        lambda: fn(x, x + 1), lambda: fn(x, x, x), lambda: fn(x, b=x), lambda: fn(x, c=x), lambda: fn([x], b=None),
        lambda: fn({"a": x}, (x, 2)), lambda: fn({"b": x}, (x, 2)), lambda: fn(x, 2), lambda: fn(x, 2.5),
    )  # fmt: skip
    for call in calls:
        for _ in range(3):
            call()
    assert fn._compiles == len(calls)
    assert [len(call()) for call in calls] == [2, 3, 2, 2, 1, 3, 3, 2, 2]


elsewhere = nn.Linear(3, 2)  # on the CPU: no step has it


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.elsewhere = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.elsewhere(x)


def test_an_attribute_is_no_global_of_the_same_name() -> None:
    model = _Named().to("jax")
    fn = compile_step(lambda x: model(x).sum().backward())
    for _ in range(3):
        fn(torch.ones(1, 3))
    assert model.elsewhere.bias.grad.tolist() == [3, 3] and elsewhere.bias.grad is None


def test_a_step_that_reaches_no_tensor_computes_where_its_arguments_are() -> None:
    joined = compile_step(lambda x: torch.cat([x, torch.zeros(1)]))
    assert [joined(torch.ones(1)).tolist() for _ in range(3)] == [[1, 0]] * 3
    doubled = compile_step(lambda x: x * 2)
    for device in ("cpu", "cpu", "jax", "jax", "cpu"):
        assert doubled(torch.ones(1, device=device)).device.type == device
