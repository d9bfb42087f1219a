"""Checkpoints, copies and pickles of tensors on the device `jax`, and what their storages tell."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import jaten_ops


def _saved(what: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


def test_checkpoints_go_both_ways() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to("jax")
    file = _saved(model.state_dict())
    back = torch.load(file)
    assert all(t.device.type == "jax" for t in back.values())
    file.seek(0)
    on_cpu = torch.load(file, map_location="cpu")
    assert all(type(t) is torch.Tensor for t in on_cpu.values())
    other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    other.load_state_dict(on_cpu)
    on_jax = torch.load(_saved(other.state_dict()), map_location="jax")
    model.load_state_dict(on_jax)
    for name, tensor in on_jax.items():
        assert type(tensor) is jaten_ops.Tensor and torch.equal(tensor.cpu(), on_cpu[name])


def test_loaded_tensors_that_shared_share() -> None:
    x = torch.arange(6.0)
    found = torch.load(_saved({"all": x, "part": x[2:4], "transposed": x.view(2, 3).t()}), map_location="jax")
    found["all"].mul_(10)
    assert found["part"].tolist() == [20, 30] and found["transposed"].tolist() == [[0, 30], [10, 40], [20, 50]]


def test_safetensors() -> None:
    state = nn.Linear(2, 3).to("jax").state_dict()
    found = load(save(state))
    assert all(torch.equal(found[n], t.cpu()) for n, t in state.items())


def test_copies_keep_what_is_shared() -> None:
    x = torch.arange(6.0, device="jax")
    both = copy.deepcopy({"base": x, "view": x.view(2, 3).t()})
    both["base"].zero_()
    assert both["view"].sum().item() == 0 and x.sum().item() == 15
    model = nn.Linear(2, 3).to("jax")
    twin = copy.deepcopy(model)
    assert isinstance(twin.weight, nn.Parameter) and twin.weight.requires_grad
    with torch.no_grad():
        twin.weight.zero_()
    assert model.weight.abs().sum() > 0


def test_pickles() -> None:
    x = torch.arange(3.0, device="jax")
    assert torch.equal(pickle.loads(pickle.dumps(x)), x)
    model = pickle.loads(pickle.dumps(nn.Linear(2, 3).to("jax")))
    assert isinstance(model.weight, nn.Parameter) and isinstance(model.weight, jaten_ops.Tensor)


def test_storages_tell_what_is_shared() -> None:
    x, y = torch.ones(4, device="jax"), torch.ones(4, device="jax")
    part = x[2:]
    assert x.untyped_storage() is part.untyped_storage() and x.untyped_storage() is not y.untyped_storage()
    assert x.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
    assert part.data_ptr() - x.data_ptr() == 8 and x.untyped_storage().nbytes() == 16
    y.set_(x.untyped_storage(), 1, (2,), (1,))
    y.fill_(5)
    assert x.tolist() == [1, 5, 5, 1]
    with pytest.raises(RuntimeError, match="a storage on cpu"):
        y.set_(torch.ones(2).untyped_storage())


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_files_are_as_torch_writes_them(zipped: bool) -> None:
    x = torch.arange(6.0, device="jax")
    x.mark = 5
    state = {
        "all": x,
        "part": x.view(2, 3).t()[1:],
        "parameter": nn.Parameter(x.bfloat16()),
        "small": torch.ones(2, dtype=torch.float8_e4m3fn, device="jax"),
        "conjugate": torch.ones(2, dtype=torch.complex64, device="jax").conj(),
        "bits": x.view(torch.int32)[2:],
    }
    for location, kind in (("jax", jaten_ops.Tensor), ("cpu", torch.Tensor)):
        file = io.BytesIO()
        torch.save({n: t for n, t in state.items() if n != "bits"}, file, _use_new_zipfile_serialization=zipped)
        file.seek(0)
        back = torch.load(file, map_location=location)
        assert all(t.device.type == location and isinstance(t, kind) for t in back.values())
        assert all(torch.equal(t.cpu(), state[n].cpu()) and t.dtype == state[n].dtype for n, t in back.items())
        assert back["all"].mark == 5
        back["all"].zero_()
        assert back["part"].sum() == 0 and x.sum() == 15
    assert torch.equal(pickle.loads(pickle.dumps(state["bits"])), state["bits"])


def test_legacy_files_go_to_the_device() -> None:
    """Their values come after the tensors are made."""
    file = io.BytesIO()
    torch.save(torch.arange(3), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert torch.load(file, map_location="jax").tolist() == [0, 1, 2]


def test_attributes_survive_pickling() -> None:
    for x in (torch.ones(2, device="jax"), nn.Parameter(torch.ones(2, device="jax"))):
        x.note = "kept"
        back = pickle.loads(pickle.dumps(x))
        assert back.note == "kept" and back.requires_grad == x.requires_grad and type(back) is jaten_ops.Tensor
        assert isinstance(back, nn.Parameter) == isinstance(x, nn.Parameter)
        other = copy.copy(x)  # which shares, and has the attributes
        with torch.no_grad():
            other.zero_()
        assert x.tolist() == [0, 0] and other.note == "kept"


def test_storages_are_written_to() -> None:
    x = torch.ones(4, device="jax")
    storage = x.untyped_storage()
    storage.fill_(0)
    assert x.tolist() == [0] * 4
    storage.copy_(torch.arange(4.0).untyped_storage())
    assert x.tolist() == [0, 1, 2, 3] and storage.tolist() == storage.cpu().tolist() == storage.clone().tolist()
    storage[3] = 64
    assert x[0].item() == 2
    assert pickle.loads(pickle.dumps(storage)).tolist() == storage.tolist()
    for refused in (x.share_memory_, lambda: storage.resize_(3)):
        with pytest.raises(RuntimeError, match="on the device jax"):
            refused()


def test_storages_are_freed_and_filled_again() -> None:
    x = torch.arange(6.0, device="jax")
    parameter = torch.as_strided(x, (2, 2), (2, 1))
    saved = parameter.t()
    storage = x.untyped_storage()
    assert saved.tolist() == [[0, 2], [1, 3]] and storage.resize_(0).size() == 0
    for tensor in (x, parameter, saved):
        with pytest.raises(RuntimeError, match="its storage was resized to 0"):
            tensor.tolist()
    storage.resize_(24)
    x.copy_(torch.arange(6.0) + 1)
    parameter[0, 0] = 9
    assert saved.tolist() == [[9, 3], [2, 4]] and x.tolist() == [9, 2, 3, 4, 5, 6]
    assert storage.resize_(8).size() == 8 and torch.as_strided(x, (2,), (1,)).tolist() == [9, 2]
    assert torch.UntypedStorage(4, device="jax").resize_(8).nbytes() == 8


def test_data_of_a_parameter() -> None:
    parameter = nn.Parameter(torch.ones(2, device="jax"))
    parameter.data = torch.zeros(3, device="jax")
    parameter.data.fill_(2)
    assert parameter.tolist() == [2, 2, 2] and parameter.requires_grad
    parameter.data = parameter.data.half()
    assert parameter.dtype == torch.float16
    model = nn.Linear(2, 2).to("jax").half()
    assert model.weight.dtype == torch.float16 and model.float().weight.dtype == torch.float32


def test_values_leave_by_the_usual_ways() -> None:
    x = torch.arange(3.0, device="jax")
    assert f"{x.sum():.2f}" == "3.00" and [float(v) for v in x] == x.tolist() == [0, 1, 2]
    assert np.array_equal(x.numpy(force=True), [0, 1, 2])
    with pytest.raises(TypeError, match="can't convert jax:0 device type tensor to numpy"):
        np.asarray(x)
    assert np.array_equal(np.from_dlpack(x), [0, 1, 2]) and torch.from_dlpack(x).tolist() == [0, 1, 2]
    for capsule in (torch.utils.dlpack.to_dlpack, torch.to_dlpack):
        assert torch.utils.dlpack.from_dlpack(capsule(x)).tolist() == [0, 1, 2]
        assert torch.utils.dlpack.from_dlpack(capsule(torch.ones(2))).tolist() == [1, 1]


def test_storages_are_made_on_the_device() -> None:
    storage = torch.UntypedStorage(8, device="jax")
    tensor = torch.empty(0, device="jax").set_(storage, 0, (2,), (1,)).fill_(3)
    assert (storage.device, storage.nbytes(), tensor.tolist()) == (torch.device("jax:0"), 8, [3, 3])
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
    assert torch.UntypedStorage(4, device="cpu").device == torch.device("cpu")
    with pytest.raises(RuntimeError, match="no such device"):
        torch.UntypedStorage(4, device="jax:99")


def _seen(value: Any) -> Any:
    """The comparable part of a program's result."""
    if isinstance(value, list | tuple):
        return [_seen(v) for v in value]
    if isinstance(value, torch.TypedStorage):
        return "typed", value.device.type, value.dtype, value.tolist()
    if isinstance(value, torch.UntypedStorage):
        return "untyped", value.device.type, value.tolist()
    if isinstance(value, torch.Tensor):
        return value.device.type, value.dtype, value.tolist()
    return value


def _then(first: Any, second: Any) -> Any:
    return [first, second]


def _copied(a: Any, u: Any) -> Any:
    b, v = copy.deepcopy([a, u])
    v.fill_(0)
    return a, b, v, b.untyped_storage().data_ptr() == v.data_ptr()


# a tensor, its typed storage, its untyped one and its device, to what a program makes of them
OF_STORAGES: dict[str, Callable[[Any, Any, Any, str], Any]] = {
    "tensor": lambda a, s, u, d: torch.tensor(s, device=d),
    "tensor where it is": lambda a, s, u, d: torch.tensor(s),
    "tensor on the CPU": lambda a, s, u, d: torch.tensor(s, device="cpu"),
    "tensor of bytes": lambda a, s, u, d: torch.tensor(u),
    "as_tensor": lambda a, s, u, d: torch.as_tensor(s),
    "asarray": lambda a, s, u, d: torch.asarray(s),
    "new_tensor": lambda a, s, u, d: a.new_tensor(s),
    "new tensor": lambda a, s, u, d: a.new(s),
    "deepcopy": lambda a, s, u, d: _then(copy.deepcopy(s), copy.deepcopy(u)),
    "deepcopy with the tensor": lambda a, s, u, d: _copied(a, u),
    "deepcopy apart": lambda a, s, u, d: _then(copy.deepcopy(u).fill_(0), a),
    "deepcopy of nothing": lambda a, s, u, d: copy.deepcopy(torch.empty(0, device=d).storage()),
    "deepcopy of a copy": lambda a, s, u, d: copy.deepcopy(copy.deepcopy(s)),
    "copy": lambda a, s, u, d: _then(copy.copy(s), copy.copy(u)),
    "clone": lambda a, s, u, d: _then(s.clone(), u.clone()),
    "clone apart": lambda a, s, u, d: _then(u.clone().fill_(0), a),
    "to the CPU": lambda a, s, u, d: _then(s.to(device="cpu"), u.to(device="cpu")),
    "to where it is": lambda a, s, u, d: _then(s.to(device=d), u.to(device=d) is u),
    "dtypes": lambda a, s, u, d: [getattr(s, n)() for n in ("double", "half", "long", "bool", "bfloat16")],
    "dtypes of bytes": lambda a, s, u, d: [getattr(u, n)() for n in ("float", "byte")],
    "byteswap": lambda a, s, u, d: (u.byteswap(torch.float32), u, a.view(torch.uint8)),
    "new": lambda a, s, u, d: u.new(),
    "asked": lambda a, s, u, d: (u.is_shared(), s.is_pinned(), u.resizable(), len(s), s.nbytes(), bool(u)),
    "set_": lambda a, s, u, d: torch.empty(0, device=d).set_(copy.deepcopy(u)),
    "set_ of a part": lambda a, s, u, d: torch.empty(0, device=d).set_(u.clone(), 1, (2,), (1,)),
    "set_ shares": lambda a, s, u, d: _then(torch.empty(0, device=d).set_(s).fill_(5), a),
    "of another dtype": lambda a, s, u, d: torch.tensor(a.view(torch.int32).storage(), dtype=torch.int32, device=d),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", OF_STORAGES)
def test_programs_see_in_storages_what_they_see_elsewhere(name: str) -> None:
    seen = []
    for device in ("cpu", "jax"):
        a = torch.arange(1.0, 5.0).to(device)
        found = _seen(OF_STORAGES[name](a, a.storage(), a.untyped_storage(), device))
        seen.append(repr(found).replace("'jax'", "'cpu'"))
    assert seen[1] == seen[0]
