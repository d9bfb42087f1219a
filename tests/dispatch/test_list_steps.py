"""Steps of Adam and SGD over lists on the device: their values and what they leave to torch, by what is around."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import jaten_ops
from jaten_ops.dispatch import adam_step, in_place, list_steps, sgd_step
from jaten_ops.hooks import optimizer_lists
from tests.harness.crossings import crossed

Params = list[torch.nn.Parameter]
Step = Callable[[torch.optim.Optimizer, Params], None]


class _Passing(TorchDispatchMode):
    """A mode that sees operators, and runs them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


def _gradients(params: Params, time: int) -> None:
    for n, p in enumerate(params):
        p.grad = (torch.arange(p.numel(), dtype=torch.float64).reshape(p.shape) - n - time).sin().to(p)


def _plain(optimizer: torch.optim.Optimizer, params: Params) -> None:
    _gradients(params, len(optimizer.state))
    optimizer.step()


def _of_views(optimizer: torch.optim.Optimizer, params: Params) -> None:
    """Gradients are parts of one tensor."""
    flat = torch.arange(float(sum(p.numel() for p in params)), device=params[0].device, dtype=params[0].dtype).cos()
    for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
        p.grad = part.view(p.shape)
    optimizer.step()


def _accumulated(optimizer: torch.optim.Optimizer, params: Params) -> None:
    """Two backward passes, with hooks, over a graph that is kept; the gradients are seen afterwards, too."""
    hook = params[0].register_hook(lambda g: g * 2)
    loss = torch.stack([(p * p).sum() for p in params]).sum()
    loss.backward(retain_graph=True)
    kept = params[0].grad
    loss.backward()
    assert params[0].grad is kept
    optimizer.step()
    hook.remove()


def _some_without(optimizer: torch.optim.Optimizer, params: Params) -> None:
    _gradients(params, 3)
    params[1].grad = None
    optimizer.step()


def _watched(optimizer: torch.optim.Optimizer, params: Params) -> None:
    _gradients(params, 1)
    with _Passing():
        optimizer.step()


def _another_rate(optimizer: torch.optim.Optimizer, params: Params) -> None:
    _gradients(params, 2)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    optimizer.step()


def _loaded(optimizer: torch.optim.Optimizer, params: Params) -> None:
    _gradients(params, 4)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


STEPS: list[Step] = [_plain, _of_views, _accumulated, _some_without, _watched, _another_rate, _loaded]
ADAM: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no decay": {"weight_decay": 0.0},
    "decay": {"weight_decay": 0.1},
    "amsgrad": {"amsgrad": True},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "far betas": {"betas": (0.3, 0.5)},
}
SGD: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampened": {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "nesterov, decay, maximize": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
    "decay, maximize": {"weight_decay": 0.1, "maximize": True},
}
OPTIMIZERS = [(cls, name) for cls in (torch.optim.Adam, torch.optim.AdamW) for name in ADAM]
OPTIMIZERS += [(torch.optim.SGD, name) for name in SGD]  # type: ignore[list-item]  # mypy joins the classes too narrowly


def _state(optimizer: torch.optim.Optimizer, params: Params) -> list[torch.Tensor]:
    states = [v for p in params for v in optimizer.state[p].values()]
    return [t.detach().cpu() for t in (*params, *(p.grad for p in params if p.grad is not None), *states)]


PROGRAMS = {
    "by pieces": ((5, 7), (100.0, 0.0), 8),
    "one piece": ((100, 100), (100.0, 0.0), 8),
    "one each": ((5, 7), (0.0, 0.0), 1),
    "in groups": ((5, 7), (0.0, 0.0), 8),
}
"""The lengths of pieces, the seconds that steps by them may take, and the parameters of a program after them."""


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("optimizer", "step", "dtype", "large", "programs"),
    crossed(OPTIMIZERS, STEPS, [torch.float32, torch.float64], [False, True], PROGRAMS),
)
def test_steps(
    optimizer: tuple[Any, str],
    step: Step,
    dtype: torch.dtype,
    large: bool,
    programs: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _run_by(programs, monkeypatch)
    if large:
        monkeypatch.setattr(in_place, "_LARGE", 0)
    found = []
    cls, name = optimizer
    for device in ("jax", "cpu"):
        params = [
            torch.nn.Parameter(torch.linspace(-1, 1, 12, dtype=dtype).reshape(shape).to(device))
            for shape in ((3, 4), (12,), (2, 6))
        ]
        made = cls(params, lr=0.05, foreach=True, **(SGD if cls is torch.optim.SGD else ADAM)[name])
        for one in (_plain, step, _plain):
            one(made, params)
        found.append(_state(made, params))
    assert len(found[0]) == len(found[1])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def _run_by(programs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (adam_step, sgd_step):
        module._update.cache_clear()  # it counts steps
    for name, value in zip(("_LENGTHS", "_SECONDS", "_MOST_IN_GROUP"), PROGRAMS[programs], strict=True):
        monkeypatch.setattr(list_steps, name, value)


def _fresh(cls: Any = torch.optim.AdamW, **options: Any) -> tuple[Params, torch.optim.Optimizer]:
    params = [torch.nn.Parameter(torch.ones(3, 4, device="jax")) for _ in range(2)]
    optimizer = cls(params, **options)
    _plain(optimizer, params)
    return params, optimizer


def _by_torch(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> bool:
    """True if the step is left to torch's operators."""
    done: list[bool] = []
    for name in ("adam_step", "sgd_step"):
        step = getattr(optimizer_lists, name)
        monkeypatch.setattr(optimizer_lists, name, lambda *a, step=step, **k: (done.append(step(*a, **k)), done[-1])[1])
    run()
    return done != [True]


@pytest.mark.parametrize(("cls", "options"), [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9})])
def test_a_step_is_one_program(cls: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    params, optimizer = _fresh(cls, **options)
    assert not _by_torch(monkeypatch, lambda: _plain(optimizer, params))


LEFT: dict[str, Callable[[Params], Any]] = {
    "half precision": lambda params: torch.optim.AdamW([torch.nn.Parameter(p.detach().bfloat16()) for p in params]),
    "fused": lambda params: torch.optim.AdamW(params, fused=True),
    "one by one": lambda params: torch.optim.AdamW(params, foreach=False),
    "a tensor as rate": lambda params: torch.optim.SGD(params, lr=torch.tensor(0.1)),
    "a view": lambda params: torch.optim.AdamW([torch.nn.Parameter(p.detach()[:, 1:]) for p in params]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LEFT)
def test_the_rest_is_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = LEFT[name](_fresh()[0])
    assert _by_torch(monkeypatch, lambda: _plain(optimizer, optimizer.param_groups[0]["params"]))


def test_a_gradient_sees_that_a_parameter_has_changed() -> None:
    params, optimizer = _fresh()
    loss = (params[0] * params[0]).sum()
    _plain(optimizer, params)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("programs", PROGRAMS)
def test_what_else_holds_an_array_keeps_it(programs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _run_by(programs, monkeypatch)
    monkeypatch.setattr(in_place, "_LARGE", 0)
    params, optimizer = _fresh()
    before, other = params[0].detach().cpu(), params[1].detach().cpu()
    kept, cloned, array = params[0].detach().clone(), params[1].detach().clone(), jaten_ops.to_jax(params[0].detach())
    view = params[0].detach()
    _plain(optimizer, params)
    torch.testing.assert_close(kept.cpu(), before)
    torch.testing.assert_close(cloned.cpu(), other)
    torch.testing.assert_close(torch.from_dlpack(array), before)
    torch.testing.assert_close(view.cpu(), params[0].detach().cpu())
    assert not torch.equal(view.cpu(), before)


def test_first_steps_share_a_program(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of all shapes, until they have taken as long as a program for each shape takes to compile."""
    _run_by("by pieces", monkeypatch)
    params = [torch.nn.Parameter(torch.ones(shape, device="jax")) for shape in [(7, 3), (5,), (2, 2, 2)]]
    optimizer = torch.optim.Adam(params)

    def compiled(steps: int) -> int:
        caplog.clear()
        with jax.log_compiles():
            for _ in range(steps):
                _plain(optimizer, params)
        return sum("XLA compilation of jit(jaten_adam_step)" in message for message in caplog.messages)

    assert compiled(3) == 1
    (course,) = adam_step._update(None, False, False)._courses.values()
    course.seconds = 0
    assert compiled(3) == 3


def test_groups_are_of_one_shape_and_of_nearly_one_size() -> None:
    shapes = [(3,), *[(2, 2)] * 9, (3,)]
    assert list_steps._course_of(tuple(shapes)).groups == [[0, 10], [1, 3, 5, 7, 9], [2, 4, 6, 8]]


def test_pieces_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for programs in PROGRAMS:
        _run_by(programs, monkeypatch)
        torch.manual_seed(0)
        shapes = [(1,), (3, 5), (), (64, 33), (70_000,)]
        params = [torch.nn.Parameter(torch.randn(shape).to("jax")) for shape in shapes]
        optimizer = torch.optim.AdamW(params, amsgrad=True)
        for _ in range(3):
            _plain(optimizer, params)
        found.append(_state(optimizer, params))
    for one, other in itertools.pairwise(found):
        assert all(map(torch.equal, one, other))


def test_a_program_that_fails_loses_no_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    _run_by("by pieces", monkeypatch)
    params, optimizer = _fresh()
    update, calls = adam_step._update(True, False, False), itertools.count()
    program = update.piece

    def failing(*operands: Any) -> Any:
        if next(calls) == 3:  # within the second parameter
            raise MemoryError
        return program(*operands)

    monkeypatch.setattr(update, "piece", failing)
    before = params[1].tolist()
    with pytest.raises(MemoryError):
        _plain(optimizer, params)
    assert params[1].tolist() == before
    assert params[0].tolist() != before
    assert all(state.isfinite().all() for p in params for state in optimizer.state[p].values())


def test_two_that_share_memory_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.ones(4, device="jax")
    params = [torch.nn.Parameter(base), torch.nn.Parameter(base)]
    optimizer = torch.optim.AdamW(params)
    assert _by_torch(monkeypatch, lambda: _plain(optimizer, params))
    values = [p.tolist() for p in params]
    assert all(one == other for one, other in itertools.pairwise(values))
