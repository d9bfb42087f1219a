"""Tensors of a user's subclass of `torch.Tensor` on the device: they stay what they are, as on another device."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import jaten_ops
from jaten_ops.errors import UnsupportedInputError


class Named(torch.Tensor):
    """Keeps its class, as torch.Tensor has it for subclasses."""

    name = "nobody"


class Logged(torch.Tensor):
    """Says which functions it went through."""

    calls: list[str] = []  # noqa: RUF012  # of the class

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert cls is Logged and all(issubclass(cls, t) for t in types)
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Picture(torch.Tensor):
    """Only what moves it keeps its class: all else is of plain tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs or {})
        if func in (torch.Tensor.to, torch.Tensor.clone, torch.Tensor.detach, torch.Tensor.cpu):
            return result.as_subclass(cls)
        return result.as_subclass(torch.Tensor) if isinstance(result, cls) else result


class Scaled(nn.Parameter):
    """A parameter that says more of itself."""

    def described(self) -> str:
        return f"{tuple(self.shape)} on {self.device.type}"


class Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError


def _made(cls: type, device: str) -> Any:
    return torch.linspace(-1, 1, 6).view(2, 3).to(device).as_subclass(cls)


PROGRAMS = {
    "sum of two": lambda x: x + x,
    "view": lambda x: x[1:].t(),
    "several": lambda x: x.sort(dim=1),
    "matrix": lambda x: x @ x.T,
    "clone": lambda x: x.clone(),
    "in place": lambda x: x.clone().mul_(2),
    "number": lambda x: x.sum().item(),
    "list": lambda x: x.tolist(),
    "function": lambda x: nn.functional.softmax(x, dim=0),
    "mixed": lambda x: torch.ones(3, device=x.device) * x,
    "dtype": lambda x: x.to(torch.float64),
    "text": lambda x: repr(x).split("(")[0],
    "kind": lambda x: type(x).__name__,
}


@pytest.mark.parametrize("cls", [Named, Logged, Picture])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_keep_the_class_that_they_keep_elsewhere(cls: type, name: str) -> None:
    run = PROGRAMS[name]
    expected, got = (_pytree.tree_leaves(run(_made(cls, device))) for device in ("cpu", "jax"))
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert isinstance(one, jaten_ops.Tensor) and isinstance(one, cls) == isinstance(other, cls)
            assert type(one.cpu()) is type(other.cpu())
            torch.testing.assert_close(one.cpu(), other)
        else:
            assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("cls", [Named, Logged, Picture])
def test_moves_both_ways(cls: type) -> None:
    x = _made(cls, "cpu")
    moved = x.to("jax")
    assert isinstance(moved, cls) and isinstance(moved, jaten_ops.Tensor) and type(x) is type(moved.cpu()) is cls
    assert type(moved.to("jax")) is type(moved)
    torch.testing.assert_close(moved.cpu(), x)


def test_a_torch_function_is_asked() -> None:
    Logged.calls.clear()
    torch.relu(_made(Logged, "jax"))
    assert Logged.calls[-1] == "relu"


def test_gradients() -> None:
    x = _made(Named, "jax").requires_grad_()
    y = (x * x).as_subclass(Named)
    assert isinstance(y, Named) and y.grad_fn is not None
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * _made(torch.Tensor, "cpu"), check_device=False)


def test_attributes_copies_and_files() -> None:
    x = _made(Named, "jax")
    x.name = "somebody"
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    file.seek(0)
    elsewhere = torch.load(file, weights_only=False, map_location="cpu")
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), loaded):  # its own bytes
        assert type(other) is type(x) and other.name == "somebody" and other.device == x.device
        assert torch.equal(other, x)
    assert type(elsewhere) is Named and elsewhere.name == "somebody"


def test_parameters_of_a_subclass_move_with_their_module() -> None:
    model = nn.Linear(3, 2)
    model.weight = weight = Scaled(model.weight.data)
    expected = model(torch.ones(3))
    for device in ("jax", "cpu", "jax"):
        model.to(device)
        assert model.weight is weight and isinstance(weight, Scaled) and isinstance(weight, nn.Parameter)
        assert weight.described() == f"(2, 3) on {device}" and repr(weight)
        assert type(weight * 1) is (jaten_ops.Tensor if device == "jax" else torch.Tensor)
        torch.testing.assert_close(model(torch.ones(3, device=device)).cpu(), expected)
        model(torch.ones(3, device=device)).sum().backward()
    other = copy.deepcopy(model)
    assert isinstance(other.weight, Scaled) and torch.equal(other.weight, weight)


def test_a_subclass_that_runs_operators_itself_is_refused() -> None:
    with pytest.raises(UnsupportedInputError, match="Wrapper, which has a __torch_dispatch__"):
        _made(Wrapper, "jax")


@pytest.mark.parametrize("cls", [Named, Picture])
def test_compiled_programs(cls: type, fresh_dynamo: None) -> None:
    program = torch.compile(lambda x: (x * 2).exp() + 1, backend="jaten")
    expected, got = (program(_made(cls, device).requires_grad_()) for device in ("cpu", "jax"))
    assert isinstance(got, cls) == isinstance(expected, cls) and isinstance(got, jaten_ops.Tensor)
    torch.testing.assert_close(got.cpu(), expected)
    got.sum().backward()


JAGGED: dict[str, Any] = {
    "number": lambda x, layer: x * 2,
    "linear": lambda x, layer: torch.relu(layer(x)),
    "a plain tensor first": lambda x, layer: layer.bias * x,
    "layer_norm": lambda x, layer: nn.functional.layer_norm(x, (4,)),
    "mean": lambda x, layer: x.mean(1),
    "padded": lambda x, layer: torch.nested.to_padded_tensor(x, -1.0),
    "one of them": lambda x, layer: x.unbind()[1],
    "gradient": lambda x, layer: torch.autograd.grad(layer(x).values().exp().sum(), [layer.weight])[0],
}


@pytest.mark.parametrize("name", JAGGED)
def test_jagged_nested_tensors(name: str) -> None:
    results = []
    for device in ("cpu", "jax"):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4).to(device)
        sequences = [torch.linspace(-1, n, 4 * n).view(n, 4).to(device) for n in (2, 5, 3)]
        x = torch.nested.nested_tensor(sequences, layout=torch.jagged)
        result = JAGGED[name](x, layer)
        assert result.device.type == device
        results.append((result.values() if result.is_nested else result).detach().cpu())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_attention_of_jagged_nested_tensors_is_refused() -> None:
    """torch makes strided nested tensors for it."""
    sequences = [torch.ones(n, 2, 4, device="jax") for n in (2, 3)]
    x = torch.nested.nested_tensor(sequences, layout=torch.jagged).transpose(1, 2)
    with pytest.raises(UnsupportedInputError, match=r"for attention dense tensors and a mask.*to_padded_tensor"):
        nn.functional.scaled_dot_product_attention(x, x, x)


class Tagged(nn.Parameter):
    """A parameter with more to its name."""

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True, tag: str = "none") -> Any:
        return super().__new__(cls, data, requires_grad)

    def __init__(self, data: torch.Tensor, requires_grad: bool = True, tag: str = "none") -> None:
        self.tag = tag


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_parameters_of_a_class(device: str) -> None:
    """Made of a tensor of the device they are as those that were moved there."""
    made = Tagged(torch.zeros(2, device=device), tag="first")
    assert isinstance(made, Tagged)
    assert (made.tag, made.device.type, made.requires_grad) == ("first", device, True)
    module = nn.Module()
    module.made = made
    assert list(module.state_dict()) == ["made"]
    copied = copy.deepcopy(made)
    assert isinstance(copied, Tagged)
    assert copied.tag == "none"  # as torch copies parameters
    assert type(next(module.cpu().parameters())) is Tagged


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_the_class_of_a_parameter_makes_parameters(device: str) -> None:
    """Libraries write `type(parameter)(data, requires_grad=...)` to give a module other ones."""
    kind = type(nn.Linear(2, 3).to("jax").weight)
    made = kind(torch.ones(2, device=device), requires_grad=False)
    assert isinstance(made, nn.Parameter)
    assert (made.device.type, made.requires_grad, made.tolist()) == (device, False, [1, 1])


def test_the_class_of_a_tensor_makes_tensors() -> None:
    """Calls of the class of the tensors make tensors on the CPU, as those of torch.Tensor do."""
    kind: Any = type(torch.ones(2, device="jax"))
    assert kind([1, 2]).tolist() == [1, 2]
    assert kind(2, 3).shape == (2, 3)
    assert kind().shape == (0,)
    assert type(kind(torch.ones(2))) is torch.Tensor


class _Counting(type(torch.Tensor)):  # type: ignore[misc]  # a class, though the checker cannot know it
    """A class of classes that knows how many objects its classes have been asked for."""

    made = 0

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        _Counting.made += 1
        return super().__call__(*args, **kwargs)


class Counted(torch.Tensor, metaclass=_Counting):
    pass


@functools.singledispatch
def _dispatched(value: Any) -> str:
    return "any"


for _cls in (Named, Scaled, Counted):
    _dispatched.register(_cls, lambda value: type(value).__name__)


def _set(kind: Any, cls: Any) -> Any:
    kind.note = "set"
    found = cls.note, kind.note
    del kind.note
    return found, hasattr(cls, "note")


# what programs ask of the class of a tensor, and of the class that they have moved one of
OF_CLASSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "equal": lambda x, kind, cls: (kind == cls, cls == kind, kind != cls, kind == torch.Tensor, kind == Picture),
    "key": lambda x, kind, cls: ({cls: 1}.get(kind), {kind: 1}.get(cls), {torch.Tensor: 1}.get(kind)),
    "among": lambda x, kind, cls: (kind in (int, cls), kind in {cls}, [cls].index(kind), len({kind, cls})),
    "names": lambda x, kind, cls: (kind.__name__, kind.__qualname__, kind.__module__, repr(kind), str(kind)),
    "subclass": lambda x, kind, cls: (issubclass(kind, cls), issubclass(cls, kind), issubclass(torch.Tensor, kind)),
    "object": lambda x, kind, cls: (
        isinstance(x, cls),
        isinstance(cls(torch.ones(2)), kind),
        isinstance(torch.ones(2), kind),
    ),
    "made": lambda x, kind, cls: type(kind(torch.ones(2))) is cls,
    "as": lambda x, kind, cls: type(torch.ones(2, device=x.device).as_subclass(kind)) in (cls,),
    "set": lambda x, kind, cls: _set(kind, cls),
    "by functools": lambda x, kind, cls: _dispatched(x),
    "pickled": lambda x, kind, cls: pickle.loads(pickle.dumps(kind)) is kind,
    "copied": lambda x, kind, cls: copy.deepcopy(kind) is kind,
    "documented": lambda x, kind, cls: kind.__doc__,
}


@pytest.mark.parametrize("cls", [Named, Scaled, Counted])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_the_class_there_is_as_the_class_elsewhere(cls: Any, name: str) -> None:
    here = cls(torch.ones(2))
    there = here.to("jax").as_subclass(cls)
    assert OF_CLASSES[name](there, type(there), cls) == OF_CLASSES[name](here, type(here), cls)


def test_a_table_by_classes_finds_what_is_on_the_device() -> None:
    """As torchvision's transforms have it, which else did nothing, silently."""
    dtypes = {Named: torch.float64, Picture: torch.int32}
    moved = {cls: torch.ones(2).as_subclass(cls).to("jax") for cls in dtypes}
    assert {cls: x.to(dtypes[type(x)]).dtype for cls, x in moved.items()} == dtypes


@pytest.mark.parametrize("like", ["plain", "a parameter", "of a class"])
def test_what_is_on_the_cpu_takes_the_class_of_what_is_on_the_device(like: str) -> None:
    """As fastai and MONAI give results the class of their inputs."""
    there = torch.ones(2, device="jax")
    there = {"plain": there, "a parameter": nn.Parameter(there), "of a class": there.as_subclass(Named)}[like]
    x = torch.arange(3.0, requires_grad=True)
    y = x.as_subclass(type(there))
    assert type(y) is (Named if like == "of a class" else torch.Tensor) and y.device.type == "cpu"
    assert (2 * y).tolist() == [0, 2, 4] and y.data_ptr() == x.data_ptr()
    y.sum().backward()
    assert x.grad is not None
    traced = torch.compile(lambda x: x.as_subclass(Named) + 1, backend="jaten", fullgraph=True)
    assert type(traced(torch.ones(2))) is Named


@pytest.mark.parametrize("make", [torch.ones, lambda n, device: nn.Parameter(torch.ones(n, device=device))])
def test_the_name_of_the_class_leads_to_torch(make: Any) -> None:
    """opt_einsum, autoray and tensorly choose what computes by the first part of the module's name."""
    kind = type(make(2, device="jax"))
    assert sys.modules[kind.__module__.partition(".")[0]] is torch
    assert kind.__module__ == "torch.jax" and torch.get_device_module("jax").Tensor is kind is jaten_ops.Tensor
    assert pickle.loads(pickle.dumps(kind)) is kind
