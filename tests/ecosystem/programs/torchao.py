"""Weights quantized by torchao's `quantize_`: of 8 bits, alone and with activations quantized as they come."""

from __future__ import annotations

import copy

import torch
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

from ..run import Run


class Network(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 128), torch.nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


def main(run: Run) -> None:
    original = Network().eval()
    x = torch.randn(16, 64).to(run.device)
    run.start()
    for config in (Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()):
        model = copy.deepcopy(original).to(run.device)
        quantize_(model, config)
        with torch.no_grad():
            output = run.compile(model)(x)
        run.record(*output[0], output.square().mean())
