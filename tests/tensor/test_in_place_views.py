"""In-place views of tensors with gradients: those of views made before and after, and writes, are as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

Change = Callable[[torch.Tensor], Any]

CHANGES: dict[str, Change] = {
    "t_": lambda y: y.t_(),
    "transpose_": lambda y: y.transpose_(0, 1),
    "swapaxes_": lambda y: y.swapaxes_(0, 1),
    "swapdims_": lambda y: y.swapdims_(0, 1),
    "unsqueeze_": lambda y: y.unsqueeze_(0),
    "squeeze_": lambda y: y.unsqueeze_(1).squeeze_(),
    "squeeze_ of a dimension": lambda y: y.unsqueeze_(1).squeeze_(1),
    "as_strided_": lambda y: y.as_strided_((2, 2), (1, 2), 1),
    "two of them": lambda y: y.t_().unsqueeze_(1),
    "none": lambda y: y,
}
MADE: dict[str, Change] = {
    "a result": lambda x: x * 1,
    "a view": lambda x: (x * 1)[:3, :3],
    "rows": lambda x: x[1:] * 1,
}
WRITES: dict[str, Change] = {
    "no write": lambda y: None,
    "a write": lambda y: y.mul_(2),
}


def _gradient(device: str, change: str, made: str, view: str, write: str, *, is_seen: bool = True) -> Any:
    x = torch.arange(16.0).reshape(4, 4).to(device).requires_grad_()
    y = MADE[made](x)
    seen = y[0] if view == "before" else None
    with torch.set_grad_enabled(is_seen):
        CHANGES[change](y)
    if view == "after":
        seen = y[0]
    WRITES[write](y)
    target = y if seen is None else seen
    try:
        (target * target).sum().backward()
    except RuntimeError as error:
        assert not is_seen and "invalid gradient" in str(error)  # of another shape
        return y.tolist(), y.stride()
    assert x.grad is not None
    return x.grad.tolist(), y.tolist(), y.stride(), target.tolist(), y.is_leaf, y.requires_grad


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", ["before", "after", "none"])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_are_those_of_the_cpu(change: str, made: str, view: str, write: str) -> None:
    if change == "as_strided_" and (view == "before" or (made, write) == ("a view", "no write")):
        pytest.skip("on the CPU gradients are lost: of elements beyond the view, and of those before the new first one")
    assert _gradient("jax", change, made, view, write) == _gradient("cpu", change, made, view, write)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", ["before", "after", "none"])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("change", [c for c in CHANGES if c != "as_strided_"])  # loses gradients, as above
def test_gradients_under_no_grad_are_those_of_the_cpu(change: str, made: str, view: str, write: str) -> None:
    found, expected = (_gradient(device, change, made, view, write, is_seen=False) for device in ("jax", "cpu"))
    assert found == expected


REFUSED: dict[str, Change] = {
    "of a leaf": lambda x: x.t_(),
    "of a view of a leaf": lambda x: x[0].unsqueeze_(0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_those_of_the_cpu(name: str) -> None:
    said = []
    for device in ("cpu", "jax"):
        try:
            REFUSED[name](torch.ones(2, 3, device=device, requires_grad=True))
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    assert said[0] == said[1]


def test_attributes_and_hooks_stay_with_the_object() -> None:
    x = torch.ones(2, 3, device="jax", requires_grad=True)
    y = x * 1
    y.tag = 3  # type: ignore[attr-defined]  # an attribute of a user
    assert y.t_() is y and y.tag == 3 and y.shape == (3, 2)  # type: ignore[attr-defined]  # as above
    y.register_hook(lambda gradient: gradient * 10)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[10.0] * 3] * 2


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_the_tensor_may_be_detached(change: str, is_seen: bool) -> None:
    said = []
    for device in ("cpu", "jax"):
        x = torch.arange(16.0).reshape(4, 4).to(device).requires_grad_()
        y = x * 1
        with torch.set_grad_enabled(is_seen):
            CHANGES[change](y)
        assert y.detach_() is y
        state = y.requires_grad, y.is_leaf, y.grad_fn, y._is_view(), y.tolist(), y.stride()
        y.requires_grad_().square().sum().backward()
        with torch.no_grad():
            y.unsqueeze_(0).add_(1)
        assert y.grad is not None
        said.append((state, y.tolist(), y.grad.tolist(), x.grad))
    assert said[0] == said[1]


def test_views_are_not_detached() -> None:
    y = torch.ones(2, 3, device="jax", requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        y[0].unsqueeze_(0).detach_()


def test_compiled() -> None:
    torch._dynamo.reset()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.unsqueeze_(0).transpose_(1, 2)
        return y.squeeze_().sin()

    x = torch.arange(6.0, device="jax").reshape(2, 3).requires_grad_()
    torch.testing.assert_close(torch.compile(program, backend="jaten", fullgraph=True)(x), program(x))


@pytest.mark.parametrize("backend", ["jaten", "aot_eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("change", [c for c in CHANGES if c != "as_strided_"])
@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_results_of_any_shape(change: str, dynamic: bool | None, backend: str) -> None:
    """A square has the same shape behind `t_` and other strides: what comes next reads its elements in that order."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        CHANGES[change](y)
        y.add_(1)
        return y.cumsum(0), y.reshape(-1), y * 2

    for shape in ((3, 3), (2, 3)):
        x = torch.arange(float(shape[0] * shape[1])).view(shape)
        got = torch.compile(fn, backend=backend, dynamic=dynamic)(x.to("jax"))
        for one, other in zip(got, fn(x), strict=True):
            torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_exported_with_an_open_size(bidirectional: bool) -> None:
    """A GRU with its batch first transposes its result in place."""
    model = torch.nn.GRU(2, 5, batch_first=True, bidirectional=bidirectional).to("jax").eval()
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    x = torch.linspace(-1, 1, 36, device="jax").view(6, 3, 2)
    exported = torch.export.export(model, (x[:4],), dynamic_shapes=sizes)
    torch.testing.assert_close(exported.module()(x), model(x))
