"""Changes that a step makes in Python: those that calls of its program make, too, and those that trace it again."""

from __future__ import annotations

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
