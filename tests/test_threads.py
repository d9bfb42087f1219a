"""Threads that share compiled functions, compile at the same time, and use operators and tensors for the first time."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import jaten_ops
from jaten_ops import UnsupportedInputError
from jaten_ops.arrays import storage_views
from jaten_ops.arrays.storage_views import View
from jaten_ops.backend import keep_whole

from .harness.in_threads import THREADS, together


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    """Python changes threads after so few steps that what can go wrong between two of them does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _model(n: int, device: str = "cpu") -> nn.Module:
    torch.manual_seed(n)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)


def _wrong_calls(calls: int) -> list[int]:
    """For each thread, the number of calls whose result differs from that of its own module."""
    models = [_model(n) for n in range(THREADS)]
    x = torch.randn(2, 4)
    expected = [model(x).detach() for model in models]
    compiled = torch.compile(lambda model, x: model(x), backend="jaten")
    with torch.no_grad():
        for model in models:
            compiled(model, x)

    def work(n: int) -> int:
        with torch.no_grad():
            return sum(not torch.allclose(compiled(models[n], x), expected[n], atol=1e-5) for _ in range(calls))

    return together(work)


@pytest.mark.usefixtures("fresh_dynamo")
def test_each_thread_gets_the_answers_of_its_own_module() -> None:
    assert _wrong_calls(500) == [0] * THREADS


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fresh_dynamo")
def test_each_thread_gets_the_answers_of_its_own_module_for_long() -> None:
    assert _wrong_calls(20_000) == [0] * THREADS


def _trained(model: nn.Module, call: Callable[..., torch.Tensor], x: torch.Tensor, steps: int) -> list[torch.Tensor]:
    for _ in range(steps):
        (call(model, x) ** 2).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(0.1 * p.grad)
                p.grad = None
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_threads_that_train_and_compile_at_once(device: str, dynamic: bool) -> None:
    models = [_model(n, device) for n in range(THREADS)]
    x = torch.randn(3, 4)
    expected = [_trained(copy.deepcopy(model).cpu(), lambda m, x: m(x), x, 5) for model in models]
    compiled = torch.compile(lambda model, x: model(x), backend="jaten", dynamic=dynamic)
    got = together(lambda n: _trained(models[n], compiled, x.to(device), 5))
    torch.testing.assert_close(got, expected)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_server_whose_requests_have_all_sizes() -> None:
    model = _model(0)
    compiled = torch.compile(model, backend="jaten", dynamic=True)
    requests = [torch.randn(n % 5 + 2, 4) for n in range(60)]

    def serve(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return compiled(x)

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(serve, requests))
    torch.testing.assert_close([a.clone() for a in answers], [model(x).detach() for x in requests])


@pytest.mark.usefixtures("fresh_dynamo")
def test_different_functions_are_compiled_at_once() -> None:
    x = torch.randn(5, 5)
    images = torch.randn(1, 1, 4, 4)
    functions: list[Callable[[], torch.Tensor]] = [
        lambda: nn.functional.interpolate(images, scale_factor=2.0, mode="bilinear"),
        lambda: torch.softmax(x, 0) @ x,
        lambda: torch.linalg.inv(x + 9 * torch.eye(5)),
        lambda: nn.functional.interpolate(images, size=(3, 5), mode="bicubic"),
        lambda: x.cumsum(0).t() + torch.arange(5),
        lambda: nn.functional.conv2d(images, images),
    ]
    got = together(lambda n: torch.compile(functions[n], backend="jaten", fullgraph=True)())
    torch.testing.assert_close(got, [f() for f in functions])


@pytest.mark.usefixtures("fresh_dynamo")
def test_each_thread_has_its_own_modes() -> None:
    model, x = _model(0), torch.randn(2, 4)
    compiled = torch.compile(model, backend="jaten")
    modes: list[Callable[[], contextlib.AbstractContextManager[Any]]] = [
        contextlib.nullcontext, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16),
    ]  # fmt: skip

    def work(n: int) -> set[Any]:
        with modes[n % 3]():
            return {(y.requires_grad, y.dtype) for y in [compiled(x) for _ in range(30)]}

    each: list[set[Any]] = [{(True, torch.float32)}, {(False, torch.float32)}, {(True, torch.bfloat16)}]
    assert together(work) == [each[n % 3] for n in range(THREADS)]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_the_first_backward_pass_in_many_threads(device: str) -> None:
    compiled = torch.compile(lambda x, n: (x * n).sin().sum(), backend="jaten")
    inputs = [torch.linspace(0, 1, 5).to(device).requires_grad_() for _ in range(THREADS)]
    losses = [compiled(x, torch.tensor(2.0, device=device)) for x in inputs]
    together(lambda n: losses[n].backward())
    expected = 2 * torch.cos(2 * torch.linspace(0, 1, 5))
    torch.testing.assert_close([x.grad.cpu() for x in inputs if x.grad is not None], [expected] * THREADS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_the_first_call_of_an_operator_in_many_threads(device: str) -> None:
    x = torch.linspace(0.1, 0.9, 7)
    names = ("erfinv", "logit", "lgamma", "digamma", "expm1", "special_ndtri", "sinc")

    def work(n: int) -> list[torch.Tensor]:
        given = x.to(device).requires_grad_()
        results = [getattr(torch.ops.jaten, name)(given) for name in names]
        torch.stack([r.sum() for r in results]).sum().backward()
        assert given.grad is not None
        return [t.detach().cpu() for t in (*results, given.grad)]

    first, *others = together(work)
    for other in others:
        torch.testing.assert_close(other, first)


def test_a_reader_never_keeps_what_was_before_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.zeros(16, device="jax")
    transposed, real = base.view(4, 4).t(), torch.view_as_real(torch.zeros(4, dtype=torch.complex64, device="jax"))
    for view in (transposed, real):
        storage = view.view_of_arrays.storage.root  # type: ignore[attr-defined]  # it is on the device
        gather = View._gather

        def gather_while_another_writes(self: View, array: Any) -> Any:
            found = gather(self, array)  # noqa: B023  # as below
            storage.put(storage.array + 1)  # noqa: B023  # it is called in this turn of the loop
            return found

        with monkeypatch.context() as patched:
            patched.setattr(View, "_gather", gather_while_another_writes)
            view.view_of_arrays.read()  # type: ignore[attr-defined]  # as above
        assert view.cpu().reshape(-1)[0] == 1


PARTS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "rows": lambda x, n: x[n],
    "columns": lambda x, n: x[:, n],
    "steps": lambda x, n: x.view(-1)[n::THREADS],
    "bytes of an element": lambda x, n: x.view(-1)[n : n + 1].view(torch.int32),
    "parts of complex numbers": lambda x, n: torch.view_as_complex(x.view(-1, 2)).real[n::THREADS],
}
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda part: part.add_(1),
    "of views of it": lambda part: part.view(-1, 1)[0].add_(1),
    "in a list": lambda part: torch._foreach_add_([part], 1),
    "out=": lambda part: torch.add(part, 1, out=part),
    "copy_": lambda part: part.copy_(part + 1),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("part", PARTS)
def test_threads_write_to_parts_of_one_tensor(part: str, write: str) -> None:
    """Nothing is lost: their elements are others, though all of them are in one array."""
    found = []
    for device in ("cpu", "jax"):
        x = torch.zeros(THREADS, THREADS, device=device)
        parts = [PARTS[part](x, n) for n in range(THREADS)]
        WRITES[write](parts[0])  # compiles
        together(lambda n: [WRITES[write](parts[n]) for _ in range(10)] and n)  # noqa: B023  # it is called here
        found.append(x.cpu())
    assert torch.equal(*found)


ELEMENTS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "index_put_": lambda x, n, one: x.index_put_((n,), x[n] + one),
    "index_add_": lambda x, n, one: x.index_add_(0, n, one),
    "index_copy_": lambda x, n, one: x.index_copy_(0, n, x[n] + one),
    "scatter_add_": lambda x, n, one: x.scatter_add_(0, n[:, None].expand(-1, x.shape[1]), one),
    "scatter_": lambda x, n, one: x.scatter_(0, n[:, None].expand(-1, x.shape[1]), x[n] + one),
    "masked_fill_": lambda x, n, one: x.masked_fill_(
        torch.arange(len(x), device=x.device)[:, None] == n, (x[n, 0] + 1)[0]
    ),
    "a mask": lambda x, n, one: x.__setitem__(torch.arange(len(x), device=x.device) == n, x[n] + one),
    "an index and a slice": lambda x, n, one: x.__setitem__((n, slice(1, None)), x[n, 1:] + one[:, 1:]),
}


@pytest.mark.parametrize("size", [4, 4096])
@pytest.mark.parametrize("write", ELEMENTS)
def test_threads_write_to_elements_of_one_tensor(write: str, size: int) -> None:
    found = []
    for device in ("cpu", "jax"):
        x, one = torch.zeros(THREADS, size, device=device), torch.ones(1, size, device=device)
        numbers = torch.arange(THREADS, device=device)[:, None]
        ELEMENTS[write](x, numbers[0], one)
        together(lambda n: [ELEMENTS[write](x, numbers[n], one) for _ in range(10)] and n)  # noqa: B023  # as above
        found.append(x.cpu())
    assert torch.equal(*found)


def test_two_captures_do_not_take_each_others_operators() -> None:
    kernels = {op: dict(op.py_kernels) for op in keep_whole.kept_operators()}
    gm = torch.fx.symbolic_trace(lambda x: x)

    def work(_: int) -> bool:
        found = True
        for _ in range(20):
            with keep_whole.traced_whole(gm, ()):
                found &= not any(key in op.py_kernels for op in keep_whole.kept_operators() for key in keep_whole._KEYS)
        return found

    assert all(together(work))
    assert {op: dict(op.py_kernels) for op in keep_whole.kept_operators()} == kernels


USES: dict[str, Callable[[nn.Module, Any, torch.Tensor], Any]] = {
    "a call": lambda model, _, x: model(x),
    "a backward pass": lambda model, _, x: torch.autograd.grad(model(x).sum(), list(model.parameters())),
    "a compiled call": lambda _, compiled, x: compiled(x),
    "cpu": lambda model, _, x: [t.cpu() for t in model.state_dict().values()],
    "a copy": lambda model, _, x: copy.deepcopy(model)(x),
    "item": lambda model, *_: model[0].weight[0, 0].item(),
    "to_jax": lambda model, *_: jaten_ops.to_jax(model[0].weight.detach()),
    "a view": lambda model, *_: model[0].weight.t() * 2,
    "another layout": lambda model, *_: model[3].weight + 1,
    "a list": lambda model, *_: torch._foreach_mul(list(model.parameters()), 2),
    "a write": lambda model, *_: model[0].bias.data.add_(0),
    "a repr": lambda model, *_: repr(model[0].bias),
}


@pytest.mark.usefixtures("fresh_dynamo")
def test_threads_use_what_another_thread_traces() -> None:
    """They get the values, when the trace has ended."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 1)).to("jax")
    model[3].weight.data = model[3].weight.data.expand(2, 2, 2, 1).contiguous().permute(0, 1, 3, 2)
    x, given = torch.ones(2, 4, device="jax"), torch.ones(2, 4, device="jax")
    compiled = torch.compile(model, backend="jaten")
    expected = {name: use(model, compiled, given) for name, use in USES.items()}
    with ThreadPoolExecutor(len(USES)) as pool:
        running: dict[str, Any] = {}

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().sum()
            if torch.compiler.is_compiling():
                running.update({name: pool.submit(use, model, compiled, given) for name, use in USES.items()})
                time.sleep(0.05)
                assert not running["a call"].done()
            loss.backward()
            return loss

        compiled_step = jaten_ops.compile_step(step)
        losses = [compiled_step(x) for _ in range(3)]
        found = {name: future.result() for name, future in running.items()}
    assert losses[0] == losses[1] == losses[2] and found.keys() == USES.keys()
    for name, result in found.items():
        for got, want in zip(tree_leaves(result), tree_leaves(expected[name]), strict=True):
            assert got == want if isinstance(want, str | float) else bool((got == want).all()), name


def test_a_step_does_not_wait_for_threads_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_views, "_PATIENCE", 0.05)
    model, x = _model(0, "jax"), torch.ones(2, 4, device="jax")

    def step(x: torch.Tensor) -> torch.Tensor:
        model(x)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(model, x).result().sum()

    compiled_step = jaten_ops.compile_step(step)
    compiled_step(x)
    with pytest.raises(UnsupportedInputError, match="a step that another thread traces"):
        compiled_step(x)
    assert torch.equal(compiled_step._step(x), step(x))  # type: ignore[attr-defined]  # the module is as it was


def test_only_the_thread_that_traces_a_step_is_compiling() -> None:
    seen: set[bool] = set()
    inside, looked = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        if torch.compiler.is_compiling():
            inside.set()
            looked.wait(10)

    model = _model(0, "jax")
    model.register_forward_pre_hook(wait)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def look() -> None:
        inside.wait(10)
        seen.add(bool(torch.compiler.is_compiling()))
        looked.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    compiled, x = jaten_ops.compile_step(step, model, optimizer), torch.randn(2, 4, device="jax")
    losses = [compiled(x).item() for _ in range(3)]
    watcher.join()
    assert inside.is_set()
    assert seen == {False}
    assert losses[2] < losses[0]
    assert torch.compiler.is_compiling() is False
