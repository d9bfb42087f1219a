"""Attributes in `__dict__` of tensors of the device: programs copy them from tensor to tensor, without the values."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaten_ops


class _Described:
    """A base of a user's class that is no tensor, and has a `__dict__` of its own."""

    note: Any = None


class Noted(_Described, torch.Tensor):
    """As MONAI's MetaTensor: results have a copy of the first operand's attributes."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Noted):
            result.__dict__ = {k: v for a in args if isinstance(a, Noted) for k, v in a.__dict__.items()}
        return result


class Tagged(torch.Tensor):
    """As fastai's TensorBase: results take the operand's attributes as a whole."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Tagged) and isinstance(args[0], Tagged):
            result.__dict__ = copy.copy(args[0].__dict__)
        return result


class Scaled(nn.Parameter):
    pass


def _moved(values: torch.Tensor) -> torch.Tensor:
    module = nn.Module()
    module.p = nn.Parameter(values.cpu())
    return module.to("jax").p


def _viewed(values: torch.Tensor) -> torch.Tensor:
    values.add_(0)
    return values


def _written(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values, values])[0]


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda values: values,
    "viewed": _viewed,
    "a view": _written,
    "a parameter": nn.Parameter,
    "a parameter, moved": _moved,
    "a parameter of a subclass": Scaled,
    "a buffer": nn.Buffer,
    "of a subclass": lambda values: values.as_subclass(Tagged),
    "of a subclass with another base": lambda values: values.as_subclass(Noted),
}


def _each(one: Any, other: Any) -> None:
    for name, value in vars(other).items():
        setattr(one, name, value)


def _swapped(one: Any, other: Any) -> None:
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__


COPIES: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda one, other: one.__dict__.update(other.__dict__),
    "the same": lambda one, other: setattr(one, "__dict__", other.__dict__),
    "a copy": lambda one, other: setattr(one, "__dict__", copy.copy(other.__dict__)),
    "a deep copy": lambda one, other: setattr(one, "__dict__", copy.deepcopy(other.__dict__)),
    "pickled": lambda one, other: setattr(one, "__dict__", pickle.loads(pickle.dumps(vars(other)))),
    "each": _each,
    "swapped": _swapped,
    "of itself": lambda one, other: setattr(one, "__dict__", one.__dict__ | other.__dict__),
    "by object": lambda one, other: object.__setattr__(one, "__dict__", vars(other)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_are_copied_and_values_are_not(kind: str, how: str) -> None:
    """Whatever kind of tensor takes attributes of whatever kind: one test of all of the latter."""
    for other_kind in KINDS:
        one, other = KINDS[kind](torch.zeros(3, device="jax")), KINDS[other_kind](torch.ones(3, device="jax"))
        is_param, grads = isinstance(one, nn.Parameter), one.requires_grad
        cls, other.note = type(one), "seen"  # type: ignore[attr-defined]  # of our own
        COPIES[how](one, other)
        assert one.note == "seen"  # type: ignore[attr-defined]  # as above
        assert (type(one), isinstance(one, nn.Parameter), one.requires_grad) == (cls, is_param, grads)
        with torch.no_grad():
            other.mul_(5)
        assert one.tolist() == [0, 0, 0] and other.tolist() == [5, 5, 5]
        assert (one + 1).tolist() == [1, 1, 1] and one.exp().mean().item() == 1
        with torch.no_grad():
            assert one.add_(2).tolist() == [2, 2, 2] and other.tolist() == [5, 5, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_has_its_users_attributes_and_no_others(kind: str) -> None:
    there, here = KINDS[kind](torch.zeros(3, device="jax")), KINDS[kind](torch.zeros(3)).cpu()
    _ = there.data_ptr(), there._carrier  # type: ignore[attr-defined]  # what is made when first asked for
    assert vars(there) == vars(here if kind != "a parameter, moved" else nn.Parameter(torch.zeros(3)))
    there.note = [1]  # type: ignore[attr-defined]  # of our own
    for back in (copy.deepcopy(there), copy.copy(there), pickle.loads(pickle.dumps(there))):
        parameter = isinstance(there, nn.Parameter) and back.__reduce_ex__(2)[0] is torch._utils._rebuild_parameter
        assert parameter or back.note == [1]
        assert back.tolist() == [0, 0, 0]
    there.__dict__.clear()
    assert there.tolist() == [0, 0, 0] and vars(there) == {}
    with pytest.raises(TypeError, match="__dict__ must be set to a dictionary"):
        there.__dict__ = 3  # type: ignore[assignment]  # as a program may


@pytest.mark.parametrize("cls", [Noted, Tagged])
def test_a_class_that_copies_attributes_computes_on_the_device(cls: Any) -> None:
    def program(x: Any) -> list[Any]:
        x.note = {"spacing": 2}
        y = (x + 1).exp() * x
        y[1:].mul_(2)
        rows = y.view(2, 2).t().contiguous()
        return [x, y, rows, y.mean(), torch.stack([x, y]), *y.split(2)]

    got, expected = program(torch.arange(4.0).to("jax").as_subclass(cls)), program(torch.arange(4.0).as_subclass(cls))
    for one, other in zip(got, expected, strict=True):
        assert isinstance(one, cls) and isinstance(one, jaten_ops.Tensor) and vars(one) == vars(other)
        torch.testing.assert_close(one.cpu().as_subclass(torch.Tensor), other.as_subclass(torch.Tensor))


def test_a_parameter_is_made_anew_of_its_class_and_attributes() -> None:
    """As accelerate's init_on_device does, of tied ones twice."""
    p = nn.Parameter(torch.ones(2))
    for _ in range(2):
        items = p.__dict__
        items["requires_grad"] = p.requires_grad
        new = type(p)(p.to("jax"), **items)
        assert isinstance(new, nn.Parameter) and new.is_leaf and new.tolist() == [1, 1] and vars(new) == {}
        p = new
    (p * 3).sum().backward()
    assert p.grad is not None and p.grad.tolist() == [3, 3]


def test_attributes_stay_as_modules_move_and_are_saved() -> None:
    module = nn.Linear(2, 2)
    values, weight = module.weight.tolist(), module.weight
    weight.note = "kept"  # type: ignore[attr-defined]  # of our own
    assert module.to("jax").weight is weight and vars(weight) == {"note": "kept"} and weight.tolist() == values
    buffer = io.BytesIO()
    torch.save(weight, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert loaded.note == "kept" and loaded.tolist() == values
    assert module.to("cpu").weight is weight and vars(weight) == {"note": "kept"} and type(weight) is nn.Parameter
    assert weight.tolist() == values


def test_what_is_swapped_goes_with_its_attributes_and_values() -> None:
    one, two = torch.ones(2, device="jax"), torch.zeros(2, device="jax", requires_grad=True) * 1
    one.note = "one"  # type: ignore[attr-defined]  # of our own
    for a, b in ((one, two), (torch.ones(3), two)):
        values = a.tolist(), b.tolist()
        torch.utils.swap_tensors(a, b)
        assert (a.tolist(), b.tolist()) == values[::-1]
    assert two.tolist() == [1, 1, 1] and two.device.type == "cpu" and one.tolist() == [0, 0]


def test_threads_that_ask_first_are_told_one_view() -> None:
    x, found, start = torch.ones(2, device="jax"), list[Any](), threading.Barrier(8)
    assert isinstance(x, jaten_ops.Tensor)

    def ask() -> None:
        start.wait()
        found.append(x.view_of_arrays)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(view) for view in found}) == 1
