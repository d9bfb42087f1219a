"""Names of what can be overridden, functions that are no operators, and what is refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

import jaten_ops
from jaten_ops.errors import (
    OverrideTargetError,
    UnknownOpError,
)
from jaten_ops.ops.override_targets import FUNCTIONS

from ..harness.overridden import Counted, differentiated

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_override_left")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_other_names_call_their_operator(name: str) -> None:
    x = torch.randn(2, 4, device="jax")
    calls: dict[str, tuple[Any, ...]] = {
        "cross_entropy": (x, torch.tensor([1, 0], device="jax")),
        "nll_loss": (x, torch.tensor([1, 0], device="jax")),
        "fold": (x, (2, 2), (1, 1)),
        "softmax": (x, 1),
        "log_softmax": (x, 1),
        "logsigmoid": (x,),
    }
    expected = getattr(F, name)(*calls[name])
    run = Counted(lambda *args: jnp.zeros(expected.shape))
    with jaten_ops.override(name, kernel=run):
        assert not getattr(F, name)(*calls[name]).any() and run.count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("parts", ["kernel", "gradient"])
def test_a_function_that_is_no_operator(parts: str) -> None:
    def normalize(input, p, dim, eps):
        return 3 * input / jnp.linalg.norm(input, axis=dim, keepdims=True)

    options = (
        {"kernel": normalize} if parts == "kernel" else {"gradient": lambda g, a, r: {"input": 7 * jnp.ones_like(a[0])}}
    )
    override, known = jaten_ops.override("normalize", **options), F.normalize
    x = torch.randn(2, 4)
    factor = 3 if parts == "kernel" else 1
    y, grad = differentiated(F.normalize, x)
    for run, operand in (
        (lambda x: F.normalize(x), x.to("jax")),
        (torch.compile(lambda x: F.normalize(x), backend="jaten", fullgraph=True), x),
        (lambda x: torch.vmap(lambda x: F.normalize(x, dim=0))(x), x.to("jax")),
    ):
        with override:
            found, its_grad = differentiated(run, operand)
        torch.testing.assert_close(found, factor * y)
        torch.testing.assert_close(
            its_grad, 3 * grad if parts == "kernel" else torch.full_like(x, 7), atol=1e-6, rtol=1e-5
        )
        torch.testing.assert_close(run(operand).cpu(), y)
    with override:
        torch.testing.assert_close(F.normalize(x), y)  # on the CPU, PyTorch's own
    assert F.normalize is known
    with pytest.raises(Exception, match="of a Python function, expected one of an operator"):
        torch.compile(lambda x: F.normalize(x), backend="jaten", options={"overrides": [override]})(x)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no such": ("geluu", UnknownOpError, "Did you mean gelu"),
    "in place": ("relu_", OverrideTargetError, "writes to an argument. Fix: override 'relu'"),
    "out": ("add.out", OverrideTargetError, "writes its result to `out`. Fix: override 'add.Tensor'"),
    "view": ("transpose.int", OverrideTargetError, "may return a view"),
    "composed view": ("reshape", OverrideTargetError, "may return a view"),
    "random": ("bernoulli", OverrideTargetError, "draws random numbers"),
    "random function": ("gumbel_softmax", OverrideTargetError, "draws random numbers"),
    "without tensors": ("arange", OverrideTargetError, "takes no tensor"),
    "no tensors": ("size.int", OverrideTargetError, "returns int"),
    "statistics": ("batch_norm", OverrideTargetError, "running statistics"),
    "without types": ("scaled_mm", OverrideTargetError, "has no type of an operator's"),
    "an operator": (torch.ops.aten.relu_.default, OverrideTargetError, "writes to an argument"),
}


@pytest.mark.parametrize(("target", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_targets_that_are_refused(target: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        jaten_ops.override(target, gradient=lambda grads, args, results: {})
