"""The error of a step that reads a value of a tensor names the operator, the module and the line that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from jaten_ops import compile_step
from jaten_ops.errors import UnsupportedInputError


class _Scaled(nn.Module):
    """Reads a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.sum())


READS_AT: dict[str, tuple[nn.Module, Callable[..., Any], str]] = {
    "a mask": (
        nn.Linear(3, 2),
        lambda model, x: (y := model(x))[y > 0].sum(),
        r"\(the number of .*\(.*test_numbers.py:",
    ),
    "module": (
        *(nn.Sequential(nn.Linear(3, 2), _Scaled()), lambda model, x: model(x)),
        r" in the module model\.1 \(.*test_numbers.py:\d+: .*float\(x\.sum\(\)\)",
    ),
}


@pytest.mark.parametrize("name", READS_AT)
def test_what_reads_a_value_is_named(name: str) -> None:
    layer, run, text = READS_AT[name]
    model = layer.to("jax")
    fn = compile_step(lambda x: run(model, x))
    x = torch.ones(2, 3, device="jax")
    fn(x)
    with pytest.raises(UnsupportedInputError, match=text):
        fn(x)
