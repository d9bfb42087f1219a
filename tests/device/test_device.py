"""The device `jax` as torch knows devices: what makes tensors there, `torch.jax`, `torch.accelerator`, a second one."""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.device_interface import get_interface_for_device
from torch.testing._internal import common_device_type

import jaten_ops  # claims the device
import jaten_ops.backend

from ..harness import virtual_devices


def test_default_device() -> None:
    torch.set_default_device("jax")
    try:
        assert torch.randn(3).device.type == nn.Linear(2, 3).weight.device.type == "jax"
        with torch.device("cpu"):
            assert torch.ones(2).device.type == "cpu"
        assert (torch.arange(3) + torch.tensor(1)).tolist() == [1, 2, 3]
    finally:
        torch.set_default_device(None)


@pytest.mark.filterwarnings("ignore:.*sourceTensor", "ignore:.*requires_grad=True to a scalar")
def test_tensors_of_numbers_on_the_device() -> None:
    """`torch.tensor(losses)` reads them one by one."""
    x = torch.arange(4.0, device="jax").requires_grad_()
    losses = [x[1], x.sum()]
    for made in (torch.tensor(losses), torch.FloatTensor(losses), torch.as_tensor(losses), torch.asarray(losses)):
        assert made.device.type == "cpu" and made.tolist() == [1, 6]
    assert torch.tensor([losses, [2, x[3]]], device="jax").tolist() == [[1, 6], [2, 3]]
    assert x.new_tensor(losses).device.type == torch.tensor(x[1]).device.type == "jax"


def test_methods_of_the_device() -> None:
    x = torch.ones(2).jax()
    assert x.is_jax and not x.is_cpu and not x.is_cuda and x.get_device() == 0
    assert nn.Linear(2, 2).jax().weight.device == torch.device("jax:0")


def test_states_of_random_numbers() -> None:
    states = torch.jax.get_rng_state_all()
    first = torch.rand(3, device="jax")
    torch.jax.seed()
    assert not torch.equal(first, torch.rand(3, device="jax"))
    torch.jax.set_rng_state_all(states)
    assert torch.equal(first, torch.rand(3, device="jax"))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_data_parallel_is_the_module(device: str) -> None:
    module, x = nn.Linear(3, 2).to(device), torch.ones(4, 3, device=device)
    parallel = nn.DataParallel(module)
    assert torch.equal(parallel(x), module(x)) and module.weight.device.type == device


def test_torchs_device_generic_tests_are_made_for_it() -> None:
    """PyTorch's own test files, and whoever tests a library by its means, find the device."""
    bases = common_device_type.get_device_type_test_bases()
    assert common_device_type.PrivateUse1TestBase in bases


def test_module_answers() -> None:
    x = torch.ones(1000, device="jax")
    assert torch.jax.device_count() >= 1
    assert torch.jax.current_device() == 0 and torch.jax.get_device_name()
    assert torch.jax.memory_allocated() >= x.nbytes and torch.jax.max_memory_allocated() >= x.nbytes
    assert torch.accelerator.memory_allocated() >= x.nbytes
    torch.jax.synchronize()
    torch.accelerator.synchronize()
    for module in (torch.jax, torch.accelerator):
        assert module.memory_reserved() >= x.nbytes and module.max_memory_reserved() >= x.nbytes
        module.reset_peak_memory_stats()
        module.reset_accumulated_memory_stats()
        module.empty_cache()
        module.empty_host_cache()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total and torch.jax.mem_get_info()[1] == total
    properties = torch.jax.get_device_properties(0)
    assert properties.total_memory == total and properties.name == torch.jax.get_device_name()
    assert "bytes_in_use: " in torch.jax.memory_summary()
    torch.jax.init()
    torch.jax.ipc_collect()
    assert torch.jax.is_bf16_supported()
    with torch.jax.device(0):
        pass
    with pytest.raises(RuntimeError, match="no such device"):
        torch.jax.set_device(99)
    with pytest.raises(RuntimeError, match="no such device"):
        torch.ones(2, device="jax:99")


def test_streams_and_events() -> None:
    begin, end = torch.jax.Event(enable_timing=True), torch.jax.Event(enable_timing=True)
    side = torch.jax.Stream()
    side.wait_stream(torch.jax.current_stream())
    with torch.jax.stream(side):
        begin.record()
        x = torch.ones(500, 500, device="jax") @ torch.ones(500, 500, device="jax")
        end.record(side)
    torch.jax.current_stream().wait_event(end)
    assert end.query() and side.query() and jaten_ops.to_jax(x).is_ready()
    assert begin.elapsed_time(end) > 0 > end.elapsed_time(begin)
    assert side == torch.jax.default_stream() and side.device == torch.device("jax:0")
    with pytest.raises(RuntimeError, match="must be recorded before"):
        begin.elapsed_time(torch.jax.Event(enable_timing=True))
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        begin.elapsed_time(side.record_event())


def test_a_stream_of_torch_is_recorded() -> None:
    x = torch.ones(3, device="jax")
    x.record_stream(torch.Stream(device="jax"))
    x.record_stream(torch.accelerator.current_stream())
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_names_of_the_module() -> None:
    names = dir(torch.jax)
    assert {"Stream", "current_stream", "memory_allocated", "synchronize"} <= set(names)
    assert all(hasattr(torch.jax, name) for name in names)


def test_automatic_precision_by_the_module() -> None:
    scaler = torch.jax.amp.GradScaler(init_scale=8.0)
    x = torch.ones(2, 2, device="jax", requires_grad=True)
    with torch.jax.amp.autocast(dtype=torch.bfloat16):
        y = x @ x
    assert y.dtype == torch.bfloat16
    scaler.scale(y.float().sum()).backward()
    assert x.grad is not None and x.grad[0, 0].item() == 32


def test_seeds() -> None:
    torch.jax.manual_seed(1)
    state = torch.jax.get_rng_state()
    first = torch.rand(3, device="jax")
    torch.jax.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device="jax"))
    with torch.random.fork_rng(device_type="jax"):
        torch.rand(3, device="jax")
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(3, generator=generator, device="jax")
    assert torch.equal(drawn, torch.rand(3, generator=generator.manual_seed(3), device="jax"))


def test_deferred_initialization() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 4)
    with pytest.raises(NotImplementedError, match=r"no data! Please use torch.nn.Module.to_empty\(\)"):
        model.to("jax")
    model = model.to_empty(device="jax")
    nn.init.ones_(model.weight)
    assert model.weight.sum().item() == 12


def test_pinned_memory_is_a_copy() -> None:
    x = torch.arange(3.0)
    assert torch.equal(x.pin_memory(), x)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.to("jax").pin_memory()


def test_indices_and_lengths_may_be_on_the_cpu() -> None:
    x, y = torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3).to("jax")
    index = torch.tensor([0, 2])
    assert torch.equal(y[index].cpu(), x[index]) and torch.equal(y[x > 5].cpu(), x[x > 5])
    y[index] = 0
    x[index] = 0
    assert torch.equal(y.cpu(), x)

    def write(z: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        z[:, index] = z[:, index] + 1
        return z.sum()

    total = torch.compile(write, backend="jaten", fullgraph=True)(y, index)
    assert total.cpu() == write(x, index) and torch.equal(y.cpu(), x)
    scores = torch.randn(5, 2, 4).log_softmax(-1)
    targets, lengths = torch.tensor([[1, 2], [1, 3]]), (torch.tensor([5, 5]), torch.tensor([2, 2]))
    expected = nn.functional.ctc_loss(scores, targets, *lengths)
    torch.testing.assert_close(nn.functional.ctc_loss(scores.to("jax"), targets.to("jax"), *lengths).cpu(), expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_ctc_loss_of_one_sample_with_lengths_of_no_dimension(device: str, compiled: bool) -> None:
    lengths = torch.tensor([1, 2]), torch.tensor(5), torch.tensor(2)
    scores = torch.randn(5, 3).log_softmax(-1).requires_grad_()
    expected = nn.functional.ctc_loss(scores, *lengths)
    (gradient,) = torch.autograd.grad(expected, scores)
    loss: Any = torch.compile(nn.functional.ctc_loss, backend="jaten") if compiled else nn.functional.ctc_loss
    got = loss(scores.to(device), *(n.to(device) for n in lengths))
    torch.testing.assert_close(got.cpu(), expected)
    torch.testing.assert_close(torch.autograd.grad(got, scores)[0].cpu(), gradient)


def test_packed_sequences() -> None:
    torch.manual_seed(0)
    lstm, x, lengths = nn.LSTM(3, 4), torch.randn(5, 2, 3), torch.tensor([5, 3])
    outputs = []
    for device in ("cpu", "jax"):
        packed = nn.utils.rnn.pack_padded_sequence(x.to(device), lengths)
        assert packed.batch_sizes.device.type == "cpu"
        outputs.append(nn.utils.rnn.pad_packed_sequence(copy.deepcopy(lstm).to(device)(packed)[0])[0].cpu())
    torch.testing.assert_close(outputs[1], outputs[0])


def test_memory_formats() -> None:
    x = torch.randn(2, 3, 4, 5)
    y = x.to("jax").contiguous(memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last) and torch.equal(y.cpu(), x)
    assert y.clone().stride() == y.stride() and y.clone(memory_format=torch.contiguous_format).is_contiguous()
    assert torch.empty_strided((2, 3), (1, 2), device="jax").stride() == (1, 2)
    y.add_(1)
    torch.testing.assert_close(y.cpu(), x + 1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_results_go_where_the_call_says(device: str) -> None:
    x = torch.ones(2, device="jax")
    likes = torch.zeros_like(x, device=device), torch.rand_like(x, device=device), x.new_full((2,), 1.5, device=device)
    strided = x.new_empty_strided((2,), (1,), device=device)
    assert {t.device.type for t in (*likes, strided)} == {device}
    assert torch.zeros_like(torch.ones(2), device="jax").device.type == "jax"


META_COPIES: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {
    "dense": (torch.ones(2, 3), {}),
    "transposed": (torch.ones(2, 3).T, {}),
    "step slice": (torch.ones(4)[::2], {"dtype": torch.float16}),
    "expanded": (torch.ones(3).expand(2, 3), {}),
    "channels last": (torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), {"non_blocking": True}),
    "made row-major": (torch.ones(2, 3).T, {"memory_format": torch.contiguous_format}),
}


@pytest.mark.parametrize("name", META_COPIES)
def test_copies_on_meta_have_atens_strides(name: str) -> None:
    x, options = META_COPIES[name]
    copy, expected = x.to("jax").to("meta", **options), x.to("meta", **options)
    assert type(copy) is torch.Tensor and copy.device.type == "meta"
    assert (copy.shape, copy.stride(), copy.dtype) == (expected.shape, expected.stride(), expected.dtype)


TWO_DEVICES = """
import io
import torch, jaten_ops, jax
assert torch.jax.device_count() == 2
x, y = torch.ones(2, device="jax:1"), torch.ones(2).to("jax:1")
assert x.device == (x + y).device == (x * 2).sum().device == torch.device("jax:1")
assert x.view_of_arrays.read().devices() == {jax.devices()[1]}
z = x.to("jax:0")
assert z.device == x.to("jax").device == torch.device("jax:0")
try:
    x + z
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("tensors of two devices were added")
with torch.no_grad():  # the autograd engine knows of one device of a backend in Python
    assert torch.nn.Linear(2, 2).to("jax:1")(x).device == torch.device("jax:1")
assert x.untyped_storage().device == torch.device("jax:1")
CASES = [("cpu", "jax:1", 1), ("cpu", {"cpu": "jax:1"}, 1), ("jax:1", None, 1), ("jax:1", "jax", 0)]
for saved, location, found in CASES:
    file = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2).to(saved).state_dict(), file)
    file.seek(0)
    for tensor in torch.load(file, map_location=location).values():
        assert tensor.device == tensor.untyped_storage().device == torch.device("jax", found)
        assert tensor.view_of_arrays.read().devices() == {jax.devices()[found]}
file.seek(0)
try:
    torch.load(file, map_location="jax:2")
except RuntimeError as error:
    assert "no such device" in str(error)
else:
    raise AssertionError("loaded onto a device that is not there")
"""


SHARDED = """
import copy, io, warnings
warnings.simplefilter("error")
import jax, jax.numpy as jnp, numpy as np, torch, jaten_ops
mesh = jax.sharding.Mesh(jax.devices(), ("rows",))
by_rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
expected = torch.arange(48.0).view(2, 8, 3)
def made(values):
    return jaten_ops.from_jax(jax.device_put(jnp.asarray(values), by_rows))
def is_sharded(tensor):
    return jaten_ops.to_jax(tensor).sharding.device_set == set(jax.devices())
x = made(expected.numpy())
assert is_sharded(x) and torch.equal(x.cpu(), expected) and x.tolist() == expected.tolist()
assert torch.equal(x[1].cpu(), expected[1]) and x[1, 2, 0].item() == expected[1, 2, 0]
assert np.array_equal(x.numpy(force=True), expected) and torch.equal(torch.zeros(2, 8, 3).copy_(x), expected)
file = io.BytesIO()
torch.save(x, file)
file.seek(0)
for other in (torch.load(file), copy.deepcopy(x), x.clone()):
    assert torch.equal(other.cpu(), expected)
x.add_(1)
assert is_sharded(x) and torch.equal(x.cpu(), expected + 1)
large = made(np.zeros((2, 2**15)))
large.add_(1).mul_(2)
assert is_sharded(large) and large.sum().item() == 2**17
def write(c):
    c[:, 3] = c[:, 2]
    return c.sum()
with torch.no_grad():
    compiled = torch.compile(write, backend="jaten")
    for _ in range(3):
        total = compiled(x)
again = expected + 1
write(again)
assert is_sharded(x) and torch.equal(x.cpu(), again) and total.item() == again.sum()
"""


GRADIENTS = """
import torch, jaten_ops
x = torch.ones(3, device="jax:1", requires_grad=True)
y = torch.ones(3, device="jax:0", requires_grad=True)
(x * x * y.to("jax:1")).sum().backward()
assert x.grad.device == torch.device("jax:1") and x.grad.tolist() == [2, 2, 2]
assert y.grad.device == torch.device("jax:0") and y.grad.tolist() == [1, 1, 1]
model = torch.nn.Linear(3, 2).to("jax:1")
torch.compile(model, backend="jaten")(x.detach()).sum().backward()
assert model.weight.grad.device == torch.device("jax:1") and model.weight.grad.tolist() == [[1, 1, 1]] * 2
"""

COMPILED = """
import jax, torch, jaten_ops
from jaten_ops.errors import UnsupportedInputError

@torch.compile(backend="jaten", fullgraph=True)
def program(x, y):
    product = x * y.to(x.device)
    return product, product.to(y.device) + y, torch.zeros(2, device=product.device), torch.arange(2, device=y.device)

def devices(values):
    assert all(v.view_of_arrays.read().devices() == {jax.local_devices()[v.device.index]} for v in values)
    return [v.device.index for v in values]

for first, second in [(1, 0), (0, 1)]:
    x = torch.full((3,), 2.0, device=f"jax:{first}", requires_grad=True)
    y = torch.full((3,), 3.0, device=f"jax:{second}", requires_grad=True)
    for _ in range(2):
        results = program(x, y)
        assert devices(results) == [first, second, first, second]
        assert [r.tolist() for r in results] == [[6] * 3, [9] * 3, [0, 0], [0, 1]]
        (results[0].sum().cpu() + results[1].sum().cpu()).backward()
        assert devices([x.grad, y.grad]) == [first, second]
        assert x.grad.tolist() == [6] * 3 and y.grad.tolist() == [5] * 3
        x.grad = y.grad = None

@torch.compile(backend="jaten", fullgraph=True)
def written(x, y):
    y.add_(x.to(y.device))
    x.mul_(3)
    return y * 2

@torch.compile(backend="jaten", fullgraph=True)
def written_in_part(x, y):
    y[0] = x.to(y.device).sum()
    return y * 2

x, y = torch.ones(3, device="jax:1"), torch.ones(3, device="jax:0")
result = written(x, y)
assert devices([x, y, result]) == [1, 0, 0]
assert [t.tolist() for t in (x, y, result)] == [[3] * 3, [2] * 3, [4] * 3]
try:
    written_in_part(x, y)
except UnsupportedInputError as error:
    assert "several devices" in str(error) and y.tolist() == [2] * 3
else:
    assert False
"""


SCRIPTS = {"apart": TWO_DEVICES, "of one array": SHARDED, "gradients": GRADIENTS, "compiled": COMPILED}


@pytest.mark.exhaustive
@pytest.mark.sampled(4)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_two_devices(script: str) -> None:
    environment = os.environ | virtual_devices.environment(2)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", ["eager", "jaten"])
def test_compiled_programs_look_up_no_stream(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs on the CPU look up no stream of the device: it has none, and each call would pay for it."""
    asked = []
    of_torch = torch.accelerator.current_stream
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda *args: asked.append(args) or of_torch(*args))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert not asked and torch.get_device_module("jax").is_available()


def test_interface_of_dynamo() -> None:
    """As whatever is written for several devices asks it; `jaten_ops.backend` tells Dynamo of it."""
    found = get_interface_for_device("jax")
    assert found.is_available() and found.device_count() == torch.jax.device_count() and found.current_device() == 0
    assert found.Worker.get_device_properties(0).name == torch.jax.get_device_name()
    found.synchronize()
    with found.device(0), pytest.raises(RuntimeError, match="no such device"):
        found.set_device(99)


@pytest.mark.parametrize("backend", ["eager", "jaten"])
def test_questions_to_the_module_in_compiled_programs(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        module = torch.get_device_module("jax")
        y = x + (2 if module.is_available() and module.is_initialized() else 0)
        return y + module.device_count() + module.current_device() + len(torch.get_device_module().__name__)

    torch._dynamo.reset()
    x = torch.ones(2)
    torch.testing.assert_close(torch.compile(program, backend=backend, fullgraph=True)(x), program(x))
    assert importlib.import_module("torch.jax") is torch.jax is torch.get_device_module("jax:0")
