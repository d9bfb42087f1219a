"""In-place overloads on the device: their short way and the general one, by what the targets lie in."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo.types import ConvertFrameReturn
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._foreach_utils import _has_foreach_support

import jaten_ops
from jaten_ops.dispatch import in_place

Tensors = list[torch.Tensor]


def _some(device: str, count: int = 3) -> Tensors:
    return [torch.arange(1.0, 7.0, device=device).reshape(2, 3) + i for i in range(count)]


def _seen(tensors: Tensors) -> list[tuple[torch.Tensor, int]]:
    return [(t.cpu(), t._version) for t in tensors]


def _apart(device: str) -> Any:
    a, b = _some(device), _some(device)
    torch._foreach_add_(a, b, alpha=0.5)
    torch._foreach_addcmul_(a, b, b, 2.0)
    torch._foreach_lerp_(a, b, 0.25)
    torch._foreach_sqrt_(a)
    torch._foreach_mul_(a, [1.0, 2.0, 3.0])
    return _seen(a + b)


def _with_themselves(device: str) -> Any:
    a = _some(device)
    torch._foreach_mul_(a, a)
    return _seen(a)


def _with_one_another(device: str) -> Any:
    a = _some(device, 2)
    kept = [t.clone() for t in a]
    torch._foreach_add_([a[0]], [a[1]])
    return _seen(a + kept)


def _before_it_is_written(device: str) -> Any:
    """One operand is part of another place's target."""
    base, other = torch.arange(5.0, device=device), torch.ones(4, device=device)
    torch._foreach_add_([other, base[1:]], [base[:-1], other.clone()])
    return _seen([base, other])


def _views(device: str) -> Any:
    base = torch.arange(12.0, device=device).reshape(3, 4)
    rows, transposed = list(base.unbind()), torch.arange(6.0, device=device).reshape(2, 3).t()
    torch._foreach_mul_([*rows, transposed], 3.0)
    return _seen([base, transposed])


def _seen_by_a_view(device: str) -> Any:
    a = _some(device)
    columns = [t[:, 1] for t in a]
    torch._foreach_add_(a, 1.0)
    return _seen(a + columns)


def _of_other_dtypes(device: str) -> Any:
    a = [torch.ones(3, device=device), torch.ones(3, dtype=torch.float64, device=device)]
    torch._foreach_add_(a, [torch.ones(3, dtype=torch.float64, device=device)] * 2)
    return _seen(a)


def _one_by_a_number_on_the_cpu(device: str) -> Any:
    a = _some(device)
    torch._foreach_mul_(a, torch.tensor(2.0))
    return _seen(a)


def _with_gradients(device: str) -> Any:
    a = [t.requires_grad_() for t in _some(device)]
    b = [t * 1 for t in a]
    torch._foreach_mul_(b, a)
    sum(t.sum() for t in b).backward()  # type: ignore[union-attr]  # of no tensor it would be 0
    return [*((t.grad.cpu(), 0) for t in a), *_seen([t.detach() for t in b])]


def _out(device: str) -> Any:
    out = [torch.ones(2, 3, device=device) for _ in range(2)]
    torch.ops.aten._foreach_add.Scalar_out(_some(device, 2), 1.0, out=out)
    return _seen(out)


def _out_of_one(device: str) -> Any:
    out = [torch.ones(3, device=device) for _ in range(2)]
    torch.ops.aten.unbind_copy.int_out(_some(device, 1)[0], 0, out=out)
    return _seen(out)


LISTS = [
    *(_apart, _with_themselves, _with_one_another, _before_it_is_written, _views, _seen_by_a_view, _of_other_dtypes),
    *(_one_by_a_number_on_the_cpu, _with_gradients, _out, _out_of_one),
]


@pytest.fixture(params=[False, True], ids=["new arrays", "written over"])
def over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if results are written into the arrays of the targets, however small these are."""
    if request.param:
        monkeypatch.setattr(in_place, "_LARGE", 0)
    return request.param


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("over")
@pytest.mark.parametrize("run", LISTS, ids=lambda f: f.__name__.strip("_"))
def test_lists(run: Callable[[str], Any]) -> None:
    for (got, version), (expected, its_version) in zip(run("jax"), run("cpu"), strict=True):
        torch.testing.assert_close(got, expected)
        assert version == its_version


def _shifted(base: torch.Tensor) -> None:
    torch._foreach_add_([base.clone(), base[1:]], [base.clone(), base[:-1]])


REFUSED: dict[str, Callable[[str], Any]] = {
    "no tensor": lambda device: torch._foreach_add_([], 1.0),
    "too few": lambda device: torch._foreach_add_(_some(device, 3), _some(device, 2)),
    "another shape": lambda device: torch._foreach_add_(
        [torch.ones(3, device=device)], [torch.ones(2, 3, device=device)]
    ),
    "a cast": lambda device: torch._foreach_add_([torch.ones(3, dtype=torch.int64, device=device)], 1.5),
    "a leaf": lambda device: torch._foreach_add_([torch.ones(3, device=device, requires_grad=True)], 1.0),
    "what is partly written": lambda device: _shifted(torch.arange(5.0, device=device)),
    "several elements in one place": lambda device: torch._foreach_add_([torch.ones(1, device=device).expand(3)], 1.0),
}


@pytest.mark.usefixtures("over")
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_of_lists(name: str) -> None:
    raised = []
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError) as caught:
            REFUSED[name](device)
        raised.append(str(caught.value))
    assert raised[0] == raised[1]


def test_a_gradient_sees_that_a_list_has_changed() -> None:
    x = torch.ones(3, device="jax", requires_grad=True)
    saved = x * 2
    y = saved.square()
    torch._foreach_add_([saved.detach()], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_tensors_are_written_to_in_that_mode_alone() -> None:
    for device in ("cpu", "jax"):
        with torch.inference_mode():
            made = _some(device)
            torch._foreach_add_(made, 1.0)
        for write in (
            lambda a: torch._foreach_add_(a, 1.0),
            lambda a: torch.ops.aten._foreach_add.Scalar_out(a, 1.0, out=a),
        ):
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
                write(made)


def test_optimizers_take_lists_by_themselves() -> None:
    layer = torch.nn.Linear(2, 2, device="jax")
    assert _default_to_fused_or_foreach(list(layer.parameters()), differentiable=False) == (False, True)
    assert _has_foreach_support(list(layer.parameters()), torch.device("jax"))
    plain = torch.nn.Linear(2, 2)
    assert _default_to_fused_or_foreach(list(plain.parameters()), differentiable=False) == (False, False)


# What is done to a tensor `x`, with another, `y`, and an index. Some raise, and leave it as it was.
ONE: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, y, i: x.add_(y),
    "add with a factor": lambda x, y, i: x.add_(y, alpha=0.5),
    "itself": lambda x, y, i: x.mul_(x),
    "its view": lambda x, y, i: x.add_(x[:1]),
    "broadcast": lambda x, y, i: x.mul_(y[0]),
    "another dtype": lambda x, y, i: x.add_(y.double()),
    "integers": lambda x, y, i: x.add_(i[:1]),
    "addcdiv": lambda x, y, i: x.addcdiv_(y, y, value=-0.1),
    "places": lambda x, y, i: x.index_add_(1, i, y),
    "no such place": lambda x, y, i: x.index_add_(1, i + 3, y),
    "too large": lambda x, y, i: x.add_(torch.stack([y, y])),
    "a cast": lambda x, y, i: i.add_(1.5),
    "twice": lambda x, y, i: x.add_(y).mul_(y),
    "of an expression": lambda x, y, i: (x * 1).add_(y),
    "a slice": lambda x, y, i: x[:, 1:].mul_(y[:, 1:]),
}


@pytest.mark.usefixtures("over")
@pytest.mark.parametrize("name", ONE)
def test_one(name: str) -> None:
    """All that sees the tensor: a clone, whose array is the same, a view, and the tensors beside it."""
    seen = []
    for device in ("jax", "cpu"):
        x, y = _some(device, 2)
        i = torch.arange(3, device=device)
        given, kept, column = (x, y, i), [t.clone() for t in (x, y, i)], x[:, 1]
        outcome: Any = None
        for _ in range(2):
            try:
                outcome = ONE[name](*given)
            except (RuntimeError, IndexError) as error:
                outcome = type(error)
        results = [outcome] if isinstance(outcome, torch.Tensor) else []
        seen.append(([t.cpu() for t in (*given, *kept, column, *results)], None if results else outcome))
    torch.testing.assert_close(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """For the length of a block Dynamo looks at each frame, as it may once it has compiled: Python counts otherwise."""
    before = set_eval_frame(lambda *frame: ConvertFrameReturn())
    try:
        yield
    finally:
        set_eval_frame(before)


@pytest.mark.parametrize("setting", [contextlib.nullcontext, _watched])
def test_a_large_tensor_keeps_its_array_unless_something_else_has_it(setting: Any) -> None:
    """A new array never lies where the one before it does, which is there until it is made."""
    x, y = torch.ones(2**15, device="jax") + 0, torch.ones(2**15, device="jax")
    for write in (lambda: x.add_(y, alpha=0.25), lambda: torch._foreach_add_([x, y], 0.25)):
        places = []
        with setting():
            for _ in range(8):
                write()
                places.append(jaten_ops.to_jax(x).block_until_ready().unsafe_buffer_pointer())
        assert any(one == next_ for one, next_ in itertools.pairwise(places))
    x.fill_(5.0)
    kept, cloned, seen = jaten_ops.to_jax(x), x.clone(), torch.from_dlpack(x)
    with setting():
        x.add_(y)
        torch._foreach_mul_([x], 2.0)
    assert x[0].item() == 16 and kept[0] == cloned[0].item() == seen[0] == 5


def test_what_is_no_longer_there_is_not_differentiated() -> None:
    x = torch.ones(2**15, device="jax", requires_grad=True)
    y = x * 2
    z = y.exp()
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    with torch.no_grad():
        x.mul_(3.0)
    assert torch.equal(y.cpu(), torch.full((2**15,), 2.0))


def test_inference_tensors_are_left_as_they_are() -> None:
    with torch.inference_mode():
        x = torch.ones(2**15, device="jax")
    with pytest.raises(RuntimeError, match="inference tensor"):
        torch._foreach_add_([x], 1.0)
    assert x[0].item() == 1
