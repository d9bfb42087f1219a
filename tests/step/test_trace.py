"""Changes that a step makes in Python: those that calls of its program make, too, and those that trace it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from jaten_ops import compile_step


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.calls = torch.nn.Dropout(0.5), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("counts", [False, True])
def test_what_traces_a_step_again(device: str, counts: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Other modes of modules do not; a counter does."""
    model = _Model()

    def evaluate(x: torch.Tensor) -> torch.Tensor:
        model.eval()
        model.calls += counts
        return model(x)

    run, x = compile_step(evaluate), torch.ones(3, device=device)
    for call in range(6):
        model.train(call % 2 == 0)
        assert run(x).tolist() == [1, 1, 1]
        assert not model.training and not model.part.training
    assert any("traced again" in message for message in caplog.messages) is counts
    assert model.calls == 6 * counts


@dataclass(frozen=True)
class _Outputs:
    loss: torch.Tensor
    others: dict[str, Any]


@dataclass
class _State:
    count: torch.Tensor


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_dataclasses_are_results(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """New ones are made at each call; one that the step has found is the same."""
    layer, state = torch.nn.Linear(3, 2).to(device), _State(torch.zeros((), device=device))

    def step(x: torch.Tensor) -> tuple[_Outputs, _State]:
        state.count += 1
        found = layer(x)
        return _Outputs(found.square().sum(), {"found": [found], "weight": layer.weight, "name": "layer"}), state

    run, seen = compile_step(step), []
    for call in range(4):
        x = torch.full((1, 3), float(call), device=device)
        outputs, same = run(x)
        assert same is state and state.count.item() == call + 1
        expected = layer(x).detach()
        torch.testing.assert_close(outputs.others["found"][0].detach(), expected)
        torch.testing.assert_close(outputs.loss.detach(), expected.square().sum())
        assert outputs.others["weight"] is layer.weight and outputs.others["name"] == "layer"
        seen.append(outputs)
    assert len({id(outputs) for outputs in seen}) == 4
    assert not any("traced again" in message for message in caplog.messages)
