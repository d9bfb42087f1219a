"""`linear` and `matmul` on the device, beside ATen's on the CPU, in every way that a program differentiates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import jaten_ops
from jaten_ops.dispatch import fused_products

from ..harness.crossings import crossed
from ..harness.ways_of_calls import LAID_OUT, WAYS, Call, assert_alike, backward, jacobian, loss, made_of

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

# Each call, the sizes of its operands, and whether it is one operator.
CALLS: dict[str, tuple[Call, Sequence[tuple[int, ...]], bool]] = {
    "linear": (F.linear, [(3, 4), (5, 4), (5,)], True),
    "linear, batches": (F.linear, [(2, 3, 4), (5, 4), (5,)], True),
    "linear, more dimensions": (F.linear, [(2, 1, 3, 4), (5, 4), (5,)], True),
    "linear, no bias": (F.linear, [(2, 3, 4), (5, 4)], True),
    "linear, nothing": (F.linear, [(0, 3, 4), (5, 4), (5,)], False),
    "linear, empty sums": (F.linear, [(2, 3, 0), (5, 0), (5,)], False),
    "linear, one feature": (F.linear, [(2, 3, 1), (1, 1), (1,)], True),
    "linear, a vector": (F.linear, [(4,), (5, 4), (5,)], False),
    "linear, a vector as weight": (F.linear, [(3, 4), (4,)], False),
    "linear, transposed input": (lambda x, *w: F.linear(x.mT, *w), [(2, 4, 3), (5, 4), (5,)], True),
    "linear, transposed batches": (lambda x, *w: F.linear(x.transpose(0, 1), *w), [(2, 3, 4), (5, 4), (5,)], True),
    "linear, a part of the input": (lambda x, *w: F.linear(x[..., 1:5], *w), [(2, 3, 6), (5, 4), (5,)], True),
    "linear, every other row": (lambda x, *w: F.linear(x[:, ::2], *w), [(2, 6, 4), (5, 4), (5,)], True),
    "linear, every other feature": (lambda x, *w: F.linear(x[..., ::2], *w), [(2, 3, 8), (5, 4), (5,)], True),
    "linear, a transposed matrix": (lambda x, *w: F.linear(x.t(), *w), [(4, 3), (5, 4), (5,)], False),
    "linear, transposed weight": (lambda x, w: F.linear(x, w.t()), [(2, 3, 4), (4, 5)], True),
    "linear, repeated input": (lambda x, *w: F.linear(x.expand(2, 3, 4), *w), [(3, 4), (5, 4), (5,)], True),
    "linear, its own weight": (lambda x: F.linear(x, x), [(3, 3)], True),
    "matmul": (torch.matmul, [(3, 4), (4, 5)], True),
    "matmul, batches": (torch.matmul, [(2, 3, 4), (2, 4, 5)], True),
    "matmul, heads": (lambda q, k: q @ k.mT, [(2, 3, 4, 5), (2, 3, 6, 5)], True),
    "matmul, heads that were merged": (
        lambda q, k: q.view(2, 4, 3, 5).transpose(1, 2) @ k.view(2, 6, 3, 5).permute(0, 2, 3, 1),
        [(2, 4, 15), (2, 6, 15)],
        True,
    ),
    "matmul, a matrix": (torch.matmul, [(2, 3, 4), (4, 5)], True),
    "matmul, transposed batches and a matrix": (lambda x, y: x.transpose(0, 1) @ y, [(3, 2, 4), (4, 5)], True),
    "matmul, a transposed matrix": (lambda x, y: x @ y.t(), [(2, 3, 4), (5, 4)], True),
    "matmul, matrices, one transposed": (lambda x, y: x @ y.t(), [(3, 4), (5, 4)], True),
    "matmul, transposed batches and matrix": (lambda x, y: x.transpose(0, 1) @ y.t(), [(3, 2, 4), (5, 4)], True),
    "matmul, every other column": (lambda x, y: x @ y[:, ::2], [(3, 4), (4, 10)], False),
    "matmul, a matrix before": (torch.matmul, [(3, 4), (2, 4, 5)], False),
    "matmul, a matrix before heads": (torch.matmul, [(3, 4), (2, 6, 4, 5)], False),
    "matmul, broadcast": (torch.matmul, [(2, 1, 3, 4), (5, 4, 6)], False),
    "matmul, nothing": (torch.matmul, [(2, 0, 4), (2, 4, 5)], False),
    "matmul, no batch": (torch.matmul, [(0, 1, 3, 4), (5, 4, 6)], False),
    "matmul, empty sums": (torch.matmul, [(2, 3, 0), (2, 0, 5)], False),
    "matmul, outer products": (torch.matmul, [(2, 3, 1), (2, 1, 5)], True),
    "matmul, squares": (lambda x: x @ x, [(3, 3)], True),
    "matmul, transposed": (lambda x, y: x.t() @ y, [(4, 3), (4, 5)], False),
    "matmul, a vector": (torch.matmul, [(2, 3, 4), (4,)], False),
    "matmul, a vector before": (torch.matmul, [(4,), (2, 4, 5)], False),
    "matmul, vectors": (torch.matmul, [(4,), (4,)], False),
}
FUSED = [name for name, (_, _, fused) in CALLS.items() if fused]


def _operands(name: str, device: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return made_of(CALLS[name][1], device, dtype)


@pytest.mark.parametrize(("name", "way"), crossed(CALLS, WAYS))
def test_a_call_in_a_way(name: str, way: Callable[[Call, list[Tensor]], list[Any]]) -> None:
    call, sizes, _ = CALLS[name]
    if way is jacobian and any(0 in size for size in sizes):
        pytest.skip("torch's own has no batch of gradients of nothing")
    expected, found = (way(call, _operands(name, device)) for device in ("cpu", "jax"))
    assert_alike(found, expected, check_stride=way in LAID_OUT)


@pytest.mark.parametrize(("name", "dtype"), crossed(FUSED, (torch.float32, torch.bfloat16, torch.float16)))
def test_a_dtype(name: str, dtype: torch.dtype) -> None:
    """Halves within twice the unit of the largest term: the sums are taken in another order, then rounded once."""
    tolerances = (
        {} if dtype is torch.float32 else {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    )
    expected, found = (backward(CALLS[name][0], _operands(name, device, dtype)) for device in ("cpu", "jax"))
    assert_alike(found, expected, **tolerances)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex128, torch.bool])
def test_another_dtype_is_atens(dtype: torch.dtype) -> None:
    x = torch.arange(12).view(3, 4).to(dtype)
    for call in (lambda x: x @ x.mT, lambda x: F.linear(x, x), lambda x: torch.matmul(x[None], x.t()[None])):
        found = []
        for device in ("cpu", "jax"):
            try:
                found.append(call(x.to(device)).cpu())
            except RuntimeError as error:
                found.append(str(error).replace("jax:0", "cpu"))
        assert type(found[0]) is type(found[1])
        if isinstance(found[0], Tensor):
            torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", CALLS)
def test_one_operator(name: str) -> None:
    call, _, is_fused = CALLS[name]
    node = call(*_operands(name, "jax")).grad_fn
    assert node is not None
    assert (node.name() in ("LinearBackward0", "MatmulBackward0")) is is_fused


WRONG: dict[str, Callable[[str], Any]] = {
    "linear, sizes": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "linear, batches": lambda d: F.linear(torch.ones(2, 2, 3, device=d), torch.ones(4, 5, device=d)),
    "linear, bias": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(4, 3, device=d), torch.ones(5, device=d)),
    "linear, dtypes": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(4, 3, device=d).double()),
    "matmul, sizes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "matmul, batches": lambda d: torch.ones(2, 3, 4, device=d) @ torch.ones(3, 4, 5, device=d),
    "matmul, dtypes": lambda d: torch.ones(2, 3, 4, device=d) @ torch.ones(4, 5, device=d).half(),
    "matmul, a number": lambda d: torch.ones(2, 3, device=d) @ torch.ones((), device=d),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operands_are_refused_as_by_aten(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        WRONG[name]("cpu")
    with pytest.raises(RuntimeError) as found:
        WRONG[name]("jax")
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("call", [fused_products.matmul, fused_products.linear])
@pytest.mark.parametrize("at", [0, 1])
def test_none_for_a_tensor_is_refused_as_by_aten(call: Any, at: int) -> None:
    operands: list[Any] = [torch.ones(2, 2, device="jax")] * 2
    operands[at] = None
    with pytest.raises(RuntimeError, match="None"):
        call(*operands)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUSED)
def test_operands_that_no_gradient_needs_may_be_overwritten(name: str) -> None:
    """And of those that one needs ATen's error tells."""
    call = CALLS[name][0]
    count = len(CALLS[name][1])
    for by in range(count):
        for written in range(count):
            outcomes = []
            for device in ("cpu", "jax"):
                operands = [x.detach().requires_grad_(i == by) for i, x in enumerate(_operands(name, device))]
                result = call(*operands)
                with torch.no_grad():
                    operands[written].mul_(2)
                try:
                    outcomes.append([*torch.autograd.grad(loss(result), operands[by])])
                except RuntimeError as error:
                    outcomes.append([str(error).partition(":")[0]])
            if str in map(type, outcomes[0] + outcomes[1]):
                assert outcomes[1] == outcomes[0]
            else:
                assert_alike(outcomes[1], outcomes[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", FUSED)
def test_operands_that_get_other_values_after_the_call(name: str, create_graph: bool) -> None:
    """By `x.data = y`, of which autograd knows nothing."""
    for changed in range(len(CALLS[name][1])):
        outcomes = []
        for device in ("cpu", "jax"):
            operands = _operands(name, device)
            result = loss(CALLS[name][0](*operands))
            operands[changed].data = operands[changed].detach().cos()
            found = torch.autograd.grad(result, operands, create_graph=create_graph)
            if create_graph:
                found += torch.autograd.grad(sum(g.square().sum() for g in found), operands)
            outcomes.append(found)
        assert_alike(outcomes[1], outcomes[0], check_stride=not create_graph)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUSED)
def test_hooks_and_a_second_backward_pass(name: str) -> None:
    met: dict[str, list[Any]] = {}
    for device in ("cpu", "jax"):
        seen: list[Any] = []
        operands = _operands(name, device)
        for x in operands:
            x.register_hook(lambda grad, seen=seen: seen.append(grad.detach().cpu()))
            x.register_hook(lambda grad: grad * 2)
        result = CALLS[name][0](*operands)
        loss(result).backward(retain_graph=True)
        result.sum().backward()
        met[device] = [*seen, *[x.grad.cpu().clone() for x in operands if x.grad is not None]]
        with pytest.raises(RuntimeError, match="second time"):
            result.sum().backward()
    key = lambda t: (t.shape, t.flatten()[:1].tolist())  # noqa: E731  # hooks of operands run in another order
    assert_alike(sorted(met["jax"], key=key), sorted(met["cpu"], key=key))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUSED)
def test_what_watches_operators_sees_atens(name: str) -> None:
    """A counter of operations, and `torch.jit.trace`."""
    counts = []
    for device in ("cpu", "jax"):
        with FlopCounterMode(display=False) as counter:
            loss(CALLS[name][0](*_operands(name, device))).backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]
    operands = _operands(name, "jax")
    traced = torch.jit.trace(CALLS[name][0], tuple(operands), check_trace=False)
    torch.testing.assert_close(traced(*operands), CALLS[name][0](*operands))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUSED)
def test_in_a_step_and_as_a_function_of_jax(name: str) -> None:
    call = CALLS[name][0]
    expected = backward(call, _operands(name, "cpu"))

    def step(*operands: Tensor) -> list[Any]:
        result = call(*operands)
        return [result.detach(), *torch.autograd.grad(loss(result), operands)]

    compiled = jaten_ops.compile_step(step)
    for _ in range(2):
        found = compiled(*_operands(name, "jax"))
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got.cpu(), want.detach())
    with jax.enable_x64(True):
        arrays = [jaten_ops.to_jax(x.detach()) for x in _operands(name, "jax")]
        grads = jax.jit(jax.grad(jaten_ops.as_jax(lambda *xs: loss(call(*xs))), argnums=tuple(range(len(arrays)))))(
            *arrays
        )
        for got, want in zip(grads, expected[1:], strict=True):
            torch.testing.assert_close(jaten_ops.from_jax(got).cpu(), want)
