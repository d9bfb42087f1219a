"""`jaten_ops.Tensor` on the device jax: making one, computing, training eagerly and compiled."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import jaten_ops
from jaten_ops.arrays import carrier


def _array(tensor: jaten_ops.Tensor) -> jax.Array:
    return carrier.unwrap(tensor)


FACTORIES: dict[str, Callable[[str], torch.Tensor]] = {
    "zeros": lambda device: torch.zeros(2, 3, device=device),
    "ones": lambda device: torch.ones(2, 3, device=device, dtype=torch.bfloat16),
    "full": lambda device: torch.full((2,), 3.5, device=device),
    "arange": lambda device: torch.arange(5, device=device),
    "tensor": lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
    "eye": lambda device: torch.eye(3, device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.ones(2, device=device)),
    "scalar": lambda device: torch.tensor(2.5, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 5, device=device),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str) -> None:
    got, expected = FACTORIES[name]("jax"), FACTORIES[name]("cpu")
    assert type(got) is jaten_ops.Tensor and got.device == torch.device("jax:0")
    assert isinstance(_array(got), jax.Array)
    torch.testing.assert_close(got.cpu(), expected)


def test_random_factories_follow_the_seed() -> None:
    torch.manual_seed(1)
    first, second = torch.randn(100, device="jax"), torch.randn(100, device="jax")
    torch.manual_seed(1)
    again = torch.randn(100, device="jax")
    assert torch.equal(first.cpu(), again.cpu()) and not torch.equal(first.cpu(), second.cpu())


def test_moving_copies() -> None:
    x = torch.arange(4.0)
    y = x.to("jax")
    x.zero_()
    assert y.tolist() == [0, 1, 2, 3]
    z = y.cpu()
    z.zero_()
    assert y.tolist() == [0, 1, 2, 3]
    assert y.to("jax") is y
    assert y.to(torch.float64).dtype == torch.float64 and y.double().device.type == "jax"


def test_arithmetic_matches_cpu() -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    a, b = x.to("jax"), y.to("jax")
    for fn in (
        lambda x, y: x + y * 2 - 1,
        lambda x, y: x @ y,
        lambda x, y: (x / y).sum(0, keepdim=True),
        lambda x, y: x > y,
        lambda x, y: x.t()[1:, ::2],
        lambda x, y: torch.cat([x, y[None]]).relu(),
        lambda x, y: x[1, 2] * torch.tensor(2.0),
        lambda x, y: x.to(torch.int32) // 2,
    ):
        torch.testing.assert_close(fn(a, b).cpu(), fn(x, y))


def test_in_place_replaces_the_payload_and_detached_tensors_see_it() -> None:
    x = torch.ones(3).to("jax")
    alias, before = x.detach(), _array(x)
    x.add_(1).mul_(2)
    assert x.tolist() == alias.tolist() == [4, 4, 4]
    assert before.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(3, dtype=torch.int64, device="jax").add_(0.5)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.add_(torch.ones(2, 3, device="jax"))


def test_mixed_devices_raise() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(3).to("jax") + torch.ones(3)


def test_scalars_and_text() -> None:
    x = torch.tensor([1.5, 2.5]).to("jax")
    assert x.sum().item() == 4.0 and bool(x[0] > 1) and x.tolist() == [1.5, 2.5]
    assert repr(x) == "tensor([1.5000, 2.5000], device='jax:0')"
    assert "requires_grad=True" in repr(x.requires_grad_())
    assert repr(torch.nn.Parameter(x.detach())).startswith("Parameter containing:\ntensor([1.5000")


def test_parameters_stay_parameters() -> None:
    model = nn.Linear(4, 5).to("jax")
    assert isinstance(model.weight, nn.Parameter) and isinstance(model.weight, jaten_ops.Tensor)
    assert model.weight.requires_grad and model.weight.is_leaf
    parameter = nn.Parameter(torch.ones(2).to("jax"))
    assert parameter.requires_grad and parameter.device.type == "jax"


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_training_matches_cpu(compiled: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    reference = _network()
    model = copy.deepcopy(reference).to("jax")
    run = torch.compile(model, backend="jaten") if compiled else model
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (reference, model)]
    for _ in range(3):
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        losses = []
        for net, optimizer, device in ((reference, optimizers[0], "cpu"), (run, optimizers[1], "jax")):
            loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for (name, expected), got in zip(reference.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(got.cpu(), expected, msg=name)


def test_gradient_function_survives_cpu() -> None:
    x = torch.ones(3).to("jax").requires_grad_()
    (x * 2).cpu().sum().backward()
    assert x.grad is not None and x.grad.device.type == "jax" and x.grad.tolist() == [2, 2, 2]


def test_direct_call_of_a_jaten_op() -> None:
    x = torch.randn(3).to("jax").requires_grad_()
    y = torch.ops.jaten.mul.Tensor(x, x)
    assert isinstance(y, jaten_ops.Tensor)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())


def test_two_threads_at_once() -> None:
    def work(seed: int) -> float:
        model = nn.Linear(3, 3).to("jax")
        model(torch.ones(2, 3, device="jax") * seed).sum().backward()
        return model.bias.grad.sum().item()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(8))) == [6.0] * 8


def test_arrays_of_dropped_tensors_are_freed() -> None:
    def step() -> None:
        x = torch.ones(10, device="jax").requires_grad_()
        y = (x + 1) * 2
        y.view(2, 5).mul(3).sum().backward()

    step()
    gc.collect()
    before = len(jax.live_arrays())
    gc.disable()  # nothing waits for the collector of cycles
    try:
        for _ in range(50):
            step()
        # a call that compiles may keep its operands until the collector comes, but not every call
        assert len(jax.live_arrays()) < before + 50
    finally:
        gc.enable()


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_replays_under_checkpointing(reentrant: bool) -> None:
    torch.manual_seed(0)
    x = torch.ones(50, device="jax").requires_grad_()
    y = checkpoint(lambda x: nn.functional.dropout(x, 0.5) * x, x, use_reentrant=reentrant)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.detach())


def test_initializers() -> None:
    w = torch.empty(4, 4, device="jax")
    nn.init.orthogonal_(w)
    torch.testing.assert_close((w @ w.T).cpu(), torch.eye(4), atol=1e-5, rtol=0)
    nn.init.trunc_normal_(w)
    nn.init.sparse_(w, 0.5)
    assert (w == 0).sum(0).tolist() == [2, 2, 2, 2]


def test_plain_tensors_compile_as_before() -> None:
    torch._dynamo.reset()
    double = torch.compile(lambda x: x * 2 + 1, backend="aot_eager", fullgraph=True)
    assert double(torch.ones(2)).tolist() == [3, 3]


def test_views_in_inference_mode() -> None:
    """As on the CPU: a view of a tensor that was made outside the mode is no inference tensor."""
    outside, on_cpu = torch.ones(2, 3, device="jax"), torch.ones(2, 3)
    with torch.inference_mode():
        assert outside[:, :2].sum() == 4
        for view in (lambda x: x.view(-1), lambda x: x.t(), lambda x: x.detach(), lambda x: x.unbind()[0]):
            assert view(outside).is_inference() == view(on_cpu).is_inference()
        outside[:, 0] = 5
        assert torch.ones(2, device="jax")[:1].is_inference()
    outside.requires_grad_()
    (outside.view(-1) * 2).sum().backward()
    assert outside.grad is not None and outside[:, 0].tolist() == [5, 5]


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(-1),
    "transposed": lambda x: x.t(),
    "slice": lambda x: x[:, 1:],
    "alias": torch.ops.aten.alias,
    "unbound": lambda x: x.unbind()[0],
    "of a view": lambda x: x[0][1:],
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_inference_tensors_outside_the_mode(view: str) -> None:
    """As on the CPU they are inference tensors, which autograd does not save and which cannot be written to."""
    found = []
    for device in ("cpu", "jax"):
        with torch.inference_mode():
            base = torch.ones(2, 3, device=device)
        part, weight = VIEWS[view](base), torch.ones((), device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="cannot be saved for backward"):
            part * weight
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            part.add_(1)
        found.append((part.is_inference(), part.clone().is_inference(), part.tolist()))
        for write in (lambda x: x.detach(), lambda x: x.data, lambda x: x.view(torch.int32)):
            written = write(base)
            written.zero_()
            found.append((written.is_inference(), written._version, written.tolist(), type(written * 2) is type(base)))
        frozen = nn.Parameter(base, requires_grad=False)
        assert isinstance(frozen, nn.Parameter) and frozen.is_inference()
        with pytest.raises(RuntimeError, match="cannot be saved for backward"):
            base.detach() * weight
        with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor"):
            nn.Parameter(base)
        found.append(base.tolist())
    assert found[: len(found) // 2] == found[len(found) // 2 :]


@pytest.mark.parametrize("of_mode", [False, True])
@pytest.mark.parametrize("to_mode", [False, True])
@pytest.mark.parametrize("in_mode", [False, True])
def test_data_in_inference_mode(of_mode: bool, to_mode: bool, in_mode: bool) -> None:
    """The values are as on the CPU; a tensor stays one of the mode or of none, while the CPU's becomes one."""
    with torch.inference_mode(of_mode):
        x = nn.Parameter(torch.zeros(2, device="jax"), requires_grad=not of_mode)
    with torch.inference_mode(to_mode):
        y = torch.arange(3.0, device="jax")
    with torch.inference_mode(in_mode):
        x.data = y
        y.add_(1) if in_mode or not to_mode else y.detach().add_(1)
        assert x.is_inference() == of_mode
    assert x.tolist() == [1, 2, 3] and isinstance(x, nn.Parameter)
    if not of_mode:
        (x * x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2, 4, 6]


def test_no_warning_of_what_is_asked_beforehand() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.rand(4, 3, 2).to("jax")
        assert all(f(x).isfinite().all() for f in (torch.var, torch.std, lambda x: x.var(0), lambda x: x.std((1, 2))))


def test_encoder_with_a_mask() -> None:
    """torch would make a nested tensor of the sequences, which the device has not."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(3, 5, 8)
    mask = torch.arange(5) >= torch.tensor([[5], [3], [2]])
    expected = encoder(x, src_key_padding_mask=mask)
    got = encoder.to("jax")(x.to("jax"), src_key_padding_mask=mask.to("jax")).cpu()
    torch.testing.assert_close(got[~mask], expected[~mask])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2,), ()])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_programs_are_traced_for_tensors_of_any_size(mode: Any, shape: tuple[int, ...]) -> None:
    """By `make_fx`, whose mode sees the functions that are called while it looks at a tensor."""
    x = torch.ones(shape, device="jax")
    graph = make_fx(lambda x: x + 1, tracing_mode=mode)(x)
    assert "add" in graph.code and torch.equal(graph(x), x + 1)


# Functions of JAX on tensors: what it does, and the same on the array

IN_JAX: dict[str, Callable[[Any], Any]] = {
    "a compiled function": jnp.sin,
    "asarray": jnp.asarray,
    "a reduction": jnp.sum,
    "lax": jax.lax.neg,
    "stack": lambda x: jnp.stack([x, x]),
    "an operator": lambda x: jnp.ones((2, 2)) @ x,
    "an operator, the other way": lambda x: x + jnp.ones(3),
    "vmap": jax.vmap(jnp.cos),
    "jit": jax.jit(lambda x: x * 2),
    "tree.map": lambda x: jax.tree.map(jnp.sin, {"a": x})["a"],
}
VALUES: dict[str, Callable[[], torch.Tensor]] = {
    "whole": lambda: torch.arange(6.0, device="jax").reshape(2, 3),
    "a view": lambda: torch.arange(12.0, device="jax").reshape(3, 4)[1:].t()[:3].t(),
    "detached": lambda: nn.Parameter(torch.ones(2, 3, device="jax")).detach(),
    "bfloat16": lambda: torch.ones(2, 3, device="jax", dtype=torch.bfloat16),
    "integers": lambda: torch.ones(2, 3, device="jax", dtype=torch.int32),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", IN_JAX)
def test_functions_of_jax_take_tensors(name: str, value: str) -> None:
    tensor = VALUES[value]()
    got, expected = IN_JAX[name](tensor), IN_JAX[name](jaten_ops.to_jax(tensor))
    assert isinstance(got, jax.Array) and got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_an_array_of_a_tensor_keeps_its_values() -> None:
    base = torch.zeros(4, device="jax")
    arrays = jnp.asarray(base), jnp.asarray(base[1:])
    assert arrays[0] is jaten_ops.to_jax(base)
    base.add_(1)
    assert not arrays[0].any() and not arrays[1].any()


NOT_IN_JAX: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "parameter": (lambda x: jnp.sin(nn.Parameter(x)), "requires gradients. Fix: jaten_ops.call_jax"),
    "of a graph": (lambda x: jnp.asarray(x.requires_grad_() * 2), "requires gradients. Fix: jaten_ops.call_jax"),
    "traced": (lambda x: jax.jit(lambda y: y * jnp.sin(x))(1.0), r"traces takes no tensor. Fix: jax.numpy.asarray"),
    "of a tracer": (
        lambda x: jax.jit(jaten_ops.as_jax(lambda y: jaten_ops.from_jax(jnp.sin(y))))(jnp.ones(2)),
        r"traces takes no tensor. Fix: jax.numpy.asarray",
    ),
    "captured": (
        lambda x: make_fx(lambda x: jnp.asarray(x), tracing_mode="fake")(x),
        "that torch captures. Fix: jaten_ops.call_jax",
    ),
}


@pytest.mark.parametrize("name", NOT_IN_JAX)
def test_functions_of_jax_refuse_tensors(name: str) -> None:
    run, words = NOT_IN_JAX[name]
    with pytest.raises(RuntimeError, match=words):
        run(torch.ones(2, device="jax"))


def test_asarray_in_a_program_that_jax_traces() -> None:
    x = torch.arange(3.0, device="jax")
    np.testing.assert_array_equal(jax.jit(lambda y: y * jnp.asarray(x))(2.0), [0, 2, 4])
    doubled = jaten_ops.as_jax(lambda y: jaten_ops.from_jax(jnp.asarray(y) * 2))
    np.testing.assert_array_equal(jax.jit(doubled)(jnp.ones(2)), [2, 2])


def _written(x: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    y = x * 1
    write(y)
    return y


CONJUGATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the imaginary part": lambda x: x.conj().imag,
    "the real part of an adjoint": lambda x: x.mH.real,
    "resolved": lambda x: torch.view_as_real(x.conj().resolve_conj()),
    "twice": lambda x: x.conj().mT.conj().imag,
    "of a part": lambda x: x.conj()[0].reshape(-1).imag.sum(),
    "of rows": lambda x: x.conj().unbind(0)[1].real,
    "of memory": lambda x: x.conj().as_strided((2,), (1,)).imag,
    "products": lambda x: torch.addmm(x.conj(), x.mH, x.conj()).imag,
    "of other dtypes": lambda x: x.conj().to(torch.complex128).imag,
    "a write to the real part": lambda x: _written(x, lambda y: y.mH.real.mul_(2)),
    "a write to the imaginary part": lambda x: _written(x, lambda y: y.conj().imag.add_(1)),
    "a write to a conjugate": lambda x: _written(x, lambda y: y.conj().copy_(y * 2j)),
    "a write to a row": lambda x: _written(x, lambda y: y.mH[0].fill_(1 + 2j)),
    "from the parts": lambda x: torch.complex(x.conj().imag, x.real),
    "returned": lambda x: x.mH,
}


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", CONJUGATES)
def test_conjugates_in_compiled_functions(name: str, trains: bool) -> None:
    given = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, -2 + 0j]])
    cpu, device = given.clone().requires_grad_(trains), given.to("jax").requires_grad_(trains)
    expected, got = CONJUGATES[name](cpu), torch.compile(CONJUGATES[name], backend="jaten", fullgraph=True)(device)
    torch.testing.assert_close(got.cpu(), expected.resolve_conj().resolve_neg())
    if trains:
        got.abs().pow(2).sum().backward()
        expected.abs().pow(2).sum().backward()
        torch.testing.assert_close(device.grad.cpu(), cpu.grad.resolve_conj())
