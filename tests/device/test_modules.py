"""PyTorch's databases of modules and optimizers on the device `jax`, beside the CPU."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._pytree import tree_leaves, tree_map_only

import jaten_ops
from jaten_ops.ops import executor

from ..harness.checks import assert_same_derivatives, gradients_of
from ..harness.crossings import crossed

MODULES = {info.formatted_name: info for info in module_db if torch.float64 in info.dtypes}
OPTIMIZERS = {info.optim_cls.__name__: info for info in optim_db}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _to_jax(tree: Any) -> Any:
    moved: dict[int, torch.Tensor] = {}  # a sample may take one tensor twice

    def move(t: torch.Tensor) -> torch.Tensor:
        return moved.setdefault(id(t), t.detach().to("jax").requires_grad_(t.requires_grad))

    return tree_map_only(torch.Tensor, move, tree)


def _outcome(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The results, and the gradients of parameters and inputs."""
    torch.manual_seed(0)
    results = module(*args, **kwargs)
    leaves = [*module.parameters(), *tree_leaves((args, kwargs))]
    return results, gradients_of(results, leaves)


def _randomly(module: torch.nn.Module) -> bool:
    return module.training and any(getattr(m, "p", 0) or getattr(m, "dropout", 0) for m in module.modules())


@pytest.mark.sampled(48)
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    info = MODULES[name]
    compared = 0
    for training in (True, False):
        inputs = info.module_inputs_func(info, "cpu", torch.float64, True, training, set_seed=True)
        for given in list(inputs)[:2]:
            torch.manual_seed(0)
            args, kwargs = given.constructor_input.args, given.constructor_input.kwargs
            module = info.module_cls(*args, **kwargs).double().train(training)
            on_jax = copy.deepcopy(module).to("jax")
            call = given.forward_input.args, given.forward_input.kwargs
            moved = _to_jax(call)
            expected, gradients = _outcome(module, *call)
            if "Lazy" in name:  # draws its parameters only now
                on_jax.load_state_dict(module.state_dict())
            got, got_gradients = _outcome(on_jax, *moved)
            assert all(type(t) is jaten_ops.Tensor for t in tree_leaves(got) if isinstance(t, torch.Tensor))
            if _randomly(module) or "Fractional" in name or "RReLU" in name:
                continue  # draws other numbers than the CPU's
            compared += 1
            torch.testing.assert_close(tree_map_only(torch.Tensor, torch.Tensor.cpu, got), expected, equal_nan=True)
            assert_same_derivatives([g if g is None else g.cpu() for g in got_gradients], gradients)
            state = {n: t.cpu() for n, t in on_jax.state_dict().items()}
            torch.testing.assert_close(state, dict(module.state_dict()), equal_nan=True)
    if not compared:
        pytest.skip("draws random numbers")


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def _trained(info: Any, options: dict[str, Any], device: str) -> list[torch.Tensor]:
    model = _model().to(device)
    if info.optim_cls.__name__ == "Muon":  # takes matrices only
        parameters: Any = [p for p in model.parameters() if p.dim() == 2]
    else:
        parameters = list(model.parameters())
    optimizer = info.optim_cls(parameters, **options)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)).to(device)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    for _ in range(20):
        optimizer.step(closure)
    return [p.detach().cpu() for p in parameters]


def _settings() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, info in OPTIMIZERS.items():
        for given in info.optim_inputs_func(device="cpu"):
            if name == "SparseAdam" or any(isinstance(v, torch.Tensor) for v in given.kwargs.values()):
                continue
            for flags in ({"foreach": False}, {"foreach": True}, {"fused": True}):
                if all(flag in info.supported_impls for flag in flags):
                    found.append((name, given.kwargs | flags))
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(n, o, id=f"{n}-{o}", marks=[] if i % 13 == 0 else [pytest.mark.exhaustive])
        for i, (n, o) in enumerate(_settings())
    ],
)
def test_optimizers(name: str, options: dict[str, Any]) -> None:
    expected, got = (_trained(OPTIMIZERS[name], options, device) for device in ("cpu", "jax"))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("name", "device"),
    crossed([name for name, info in OPTIMIZERS.items() if "foreach" in info.supported_impls], ["cpu", "jax"]),
)
def test_compiled_steps_of_optimizers(name: str, device: str, fresh_dynamo: None) -> None:
    trained = []
    for where, compiled in (("cpu", False), (device, True)):
        model = _model().to(where)
        rate = torch.tensor(0.01, device=where) if name == "AdamW" else 0.01
        optimizer = OPTIMIZERS[name].optim_cls(model.parameters(), lr=rate, foreach=False)
        step = torch.compile(optimizer.step, backend="jaten") if compiled else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 24).view(8, 3).to(where)).square().sum().backward()
            step()
        trained.append([p.detach().cpu() for p in model.parameters()])
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-6)


def test_a_schedule_compiles_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    validate = executor.Executor.validate
    monkeypatch.setattr(
        executor.Executor, "validate", lambda self, values: (traced.append(self), validate(self, values))[1]
    )
    model = _model().to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    x = torch.randn(8, 3, device="jax")
    counts = []
    for _ in range(100):
        model(x).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        counts.append(len(traced))
    # a rate that was compiled would add one in each step; an operator that has shared a program so far adds one
    assert counts[-1] - counts[3] < 10
