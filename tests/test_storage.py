"""Checkpoints, copies and pickles of tensors on the device `jax`, and what their storages tell."""

from __future__ import annotations

import copy
import io
import pickle
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
