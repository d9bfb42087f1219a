"""The CPU device of jaten's own, on which compiled programs use torch's memory."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaten_ops
from jaten_ops.arrays import bridge
from jaten_ops.xla import cpu_client, executables

pytestmark = pytest.mark.usefixtures("fresh_dynamo")  # the tests compile the same code


def test_the_device_is_one_of_its_own() -> None:
    """If this fails, JAX makes its clients in another way, and compiled programs wait for a thread again."""
    assert cpu_client.is_own(cpu_client.device())
    assert cpu_client.device().platform == "cpu" and not cpu_client.is_own(jax.devices("cpu")[0])
    assert cpu_client.device() not in jax.devices("cpu") + jax.local_devices()


def test_programs_run_in_the_calling_thread() -> None:
    seen: list[int] = []

    def note(values: np.ndarray) -> np.ndarray:
        seen.append(threading.get_ident())
        return values

    def program(x: jax.Array) -> jax.Array:
        return jax.pure_callback(note, x, jnp.sin(x) @ x)

    x = bridge.borrow(torch.rand(64, 64), cpu_client.device())
    run, _ = executables.compiled(jax.jit(program).lower(x))
    run(x).block_until_ready()
    assert seen == [threading.get_ident()]


def test_devices_are_found_by_what_a_kept_executable_knows() -> None:
    assert cpu_client.find("cpu", 0, True) is cpu_client.device()
    assert cpu_client.find("cpu", 0, False) is jax.devices("cpu")[0]
    with pytest.raises(LookupError, match="cpu:99"):
        cpu_client.find("cpu", 99, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.float8_e5m2, torch.bool])
def test_what_is_borrowed_comes_to_lie_there(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 5).to(dtype)
    array = bridge.borrow(tensor, cpu_client.device())
    assert array.device is cpu_client.device()
    torch.testing.assert_close(bridge.as_tensor(array).float(), tensor.float())


def test_a_program_may_have_tensors_of_both_devices() -> None:
    """It computes where JAX's own arrays are, and its backward pass takes what it saved."""

    def program(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.sin() * scale).sum(), (y.sin() * scale.to("jax")).sum()

    results = []
    for run in (program, torch.compile(program, backend="jaten")):
        torch.manual_seed(0)
        x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4).to("jax").requires_grad_()
        one, two = run(x, y, torch.tensor(2.0))
        (one + two.cpu()).backward()
        assert x.grad is not None and y.grad is not None
        results.append([one.detach(), two.detach().cpu(), x.grad, y.grad.cpu()])
    torch.testing.assert_close(results[1], results[0])


def test_threads_may_call_a_program_at_once() -> None:
    program = torch.compile(lambda x: (x @ x).softmax(-1).sum(-1), backend="jaten", dynamic=False)
    inputs = [torch.rand(64, 64) for _ in range(4)]
    program(inputs[0])
    found: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = program(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(inputs):
        torch.testing.assert_close(found[i], (x @ x).softmax(-1).sum(-1))


def _compiled() -> float:
    model = torch.nn.Linear(3, 2)
    torch.compile(model, backend="jaten")(torch.ones(2, 3)).sum().backward()
    return float(model.bias.grad.sum())


def _sizes() -> float:
    total = torch.compile(lambda x: x.sum(), backend="jaten", dynamic=True)
    return sum(total(torch.ones(size)).item() for size in (3, 4, 5)) - 8


def _step() -> float:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    call = jaten_ops.compile_step(step)
    for _ in range(3):
        call()
    return -float(weight[0]) * 2


WAYS = {"compiled": _compiled, "sizes that change": _sizes, "step": _step}


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("way", WAYS)
def test_a_mesh_of_jaxs_context_is_not_for_programs_on_torchs_memory(way: str, kind: str) -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    with jax.set_mesh(mesh):
        assert WAYS[way]() == 4
        assert jax.sharding.get_abstract_mesh().axis_names == ("data",)
