"""Single calls on the device `jax` beside the CPU, many taken from PyTorch's own tests of devices."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

import jaten_ops  # noqa: F401  # the device jax

nan = float("nan")
Call = Callable[[str], Any]


def _mask(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8, device=device)


def _written(target: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    target[index] = value
    return target


def _out(make: Callable[..., Any]) -> Call:
    """A factory that writes to part of a tensor of as many elements, or other sizes."""

    def call(device: str) -> torch.Tensor:
        x = torch.zeros(2, 3, device=device)
        make(out=x.narrow(1, 1, 2))
        return x

    return call


def _dual_copied(device: str) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2, device=device), torch.full((2,), 3.0, device=device))
        target = torch.zeros(2)
        return target.copy_(dual).clone(), forward_ad.unpack_dual(target).tangent.cpu()


def _filled(device: str) -> torch.Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        return torch.tensor((), device=device, dtype=torch.long)
    finally:
        torch.use_deterministic_algorithms(False)


def _copies(device: str) -> Any:
    """The state that deepcopy keeps of a leaf, and of a parameter."""
    x = torch.arange(6.0, device=device).reshape(2, 3).t()
    leaves = x.clone().requires_grad_(), torch.nn.Parameter(x)
    for leaf in leaves:
        leaf.sum().backward()
        leaf.tag = 1
    copied = copy.deepcopy(leaves)
    return [
        (leaf.detach(), leaf.grad is None, hasattr(leaf, "tag"), leaf.requires_grad, leaf.stride()) for leaf in copied
    ]


def _printed_inside(device: str) -> str:
    """The printed form of a tensor that a function under a transform has captured."""
    x, seen = torch.ones(3, device=device), []

    def program(y: torch.Tensor) -> torch.Tensor:
        seen.append(repr(x))
        return (x * y).sum()

    torch.func.grad(program)(x)
    return seen[0].replace(", device='jax:0'", "")


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a whole": lambda x: x,
    "a part": lambda x: x[1:],
    "every second": lambda x: x[..., ::2],
    "a transposed one": lambda x: x.transpose(0, 3),
}


def _scattered(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided_scatter(x, torch.zeros(2, 3, device=x.device), (2, 3), (1, 2), x.storage_offset() + 3)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to": lambda x: x.to(memory_format=torch.channels_last),
    "to a dtype": lambda x: x.to(torch.float64, memory_format=torch.channels_last),
    "to its device": lambda x: x.to(x.device, torch.float64, memory_format=torch.channels_last),
    "to the CPU": lambda x: x.to(memory_format=torch.channels_last).cpu(),
    "part to the CPU": lambda x: x.to(memory_format=torch.channels_last)[:, ::2].to("cpu", copy=True),
    "clone of a part": lambda x: x.to(memory_format=torch.channels_last)[:, :, ::2].clone(),
    "a part to a dtype": lambda x: x.to(memory_format=torch.channels_last)[..., ::2].to(torch.float64),
    "clone of what is expanded": lambda x: x[:1].expand(3, 3, 4, 5).clone(),
    "expanded to the CPU": lambda x: x[:1].expand(3, 3, 4, 5).to("cpu", copy=True),
    "resize_as_": lambda x: torch.zeros(120, device=x.device).resize_as_(
        x.to(memory_format=torch.channels_last), memory_format=torch.preserve_format
    ),
    "resize_ to its sizes": lambda x: x.clone().resize_(2, 3, 4, 5, memory_format=torch.channels_last),
    "resize_ keeps strides": lambda x: x.clone().transpose(0, 1).resize_(3, 2, 4, 5),
    **{
        f"as_strided_copy of {n}": (lambda x, v=v: torch.as_strided_copy(v(x), (2, 3), (1, 2), 41))
        for n, v in VIEWS.items()
    },
    **{f"as_strided_scatter to {n}": (lambda x, v=v: _scattered(v(x))) for n, v in VIEWS.items()},
    **{
        f"as_strided_copy to a tensor of {n}": (
            lambda x, v=v: torch.as_strided_copy(v(x), (2, 3), (1, 2), 41, out=torch.zeros(2, 3, device=x.device))
        )
        for n, v in VIEWS.items()
    },
    "clone of nothing": lambda x: x[:0].transpose(0, 3).clone(),
    "nothing to a dtype": lambda x: x[:, :0].transpose(0, 3).to(torch.float64),
    "nothing to a format": lambda x: x[:0].to(memory_format=torch.channels_last),
    "nothing to the CPU": lambda x: x[:0].transpose(0, 3).cpu(),
    "like nothing": lambda x: torch.zeros_like(x[..., :0].transpose(0, 1)),
    "clone of a row": lambda x: x[:1, 0, 0].t().clone(),
    "pixels to a format": lambda x: x[..., :1, :1].to(memory_format=torch.channels_last),
}

CALLS: dict[str, Call] = {
    "a number into a mask": lambda d: _written(
        torch.arange(5, device=d), torch.arange(5, device=d) > 2, torch.tensor(7.0, device=d)
    ),
    "copy_ of a number": lambda d: torch.zeros(2, dtype=torch.int64, device=d).copy_(2.5),  # type: ignore[arg-type]  # torch's stub has tensors alone
    "where of bytes": lambda d: torch.where(_mask(d, 1, 0), torch.ones(2, device=d), torch.zeros(2, device=d)),
    "a mask of bytes": lambda d: torch.arange(4, device=d)[_mask(d, 1, 0, 1, 0)],
    "randn_like of integers": lambda d: torch.randn_like(torch.arange(3, device=d), dtype=torch.float32).dtype,
    "copy of a dual": _dual_copied,
    "deepcopy": _copies,
    "repr inside a transform": _printed_inside,
    "a tensor of nothing, filled": _filled,
    "largest numbers of no rows": lambda d: torch.linalg.vector_norm(torch.zeros(0, 3, device=d), torch.inf, dim=-1),
    "same sizes": lambda d: torch.ops.aten.is_same_size(torch.ones(2, device=d), torch.ones(2)),
    "arange": _out(lambda out: torch.arange(0, 4, out=out)),
    "linspace": _out(lambda out: torch.linspace(0, 3, 4, out=out)),
    "logspace": _out(lambda out: torch.logspace(0, 3, 4, out=out)),
    "singular values of infinity": lambda d: torch.linalg.svdvals(torch.full((2, 2), torch.inf, device=d)).isnan(),
    "a complex number for a power": lambda d: torch.full((2,), 1 + 2j, device=d) ** (2 + 0j),
    "reflected at the far border": lambda d: torch.nn.functional.grid_sample(
        torch.arange(42.0, device=d).view(1, 1, 1, 42),
        torch.tensor([-3.0, -1, 1, 3, 5], device=d).view(1, 1, 5, 1).expand(1, 1, 5, 2)
        * torch.tensor([1, 0], device=d),
        padding_mode="reflection",
        align_corners=True,
    ),
    "matmul of a folded batch": lambda d: torch.matmul(
        torch.ones(2, 3, 4, device=d), torch.ones(4, 5, device=d), out=torch.zeros(2, 3, 5, device=d)
    ),
    "matmul of a batch and a vector": lambda d: torch.linalg.matmul(
        torch.ones(2, 2, 3, 4, device=d), torch.ones(4, device=d), out=torch.zeros(0, device=d)
    ),
}

REFUSED: dict[str, Call] = {
    "nonzero": lambda d: torch.nonzero(torch.ones(3, device=d), out=torch.zeros(3, device=d)),
    "argmax": lambda d: torch.argmax(torch.ones(3, device=d), out=torch.zeros(3, dtype=torch.int32, device=d)),
    "max": lambda d: torch.max(torch.ones(2, 3, device=d), 0, out=(torch.zeros(3, device=d), torch.zeros(3, device=d))),
    "index_select": lambda d: torch.index_select(
        torch.ones(2, device=d), 0, torch.zeros(1, dtype=torch.int64, device=d), out=torch.zeros(1, device=d).long()
    ),
    "adaptive_avg_pool2d of no pixels": lambda d: torch.nn.functional.adaptive_avg_pool2d(
        torch.zeros(2, 3, 0, 4, device=d), 2
    ),
    "the largest of no numbers": lambda d: torch.linalg.vector_norm(torch.zeros(0, 3, device=d), torch.inf, dim=-2),
    "index_select of no element of a number": lambda d: torch.tensor(1.0, device=d).index_select(
        0, torch.zeros(0, dtype=torch.int64, device=d)
    ),
    "matmul that requires a gradient": lambda d: torch.matmul(
        torch.ones(2, 3, device=d, requires_grad=True), torch.ones(3, device=d), out=torch.zeros(2, device=d)
    ),
    "cat": lambda d: torch.cat([torch.ones(2, device=d)], out=torch.zeros(2, dtype=torch.int64, device=d)),
    "linspace to one place": lambda d: torch.linspace(0, 3, 4, out=torch.zeros(1, device=d).expand(4)),
    "randn to one place": lambda d: torch.randn(4, out=torch.zeros(1, device=d).expand(4)),
    "uniform_ to one place": lambda d: torch.zeros(1, device=d).expand(4).uniform_(),
    "random_ to one place": lambda d: torch.zeros(1, device=d).expand(4).random_(),
    "indices that do not broadcast": lambda d: _written(
        torch.zeros(4, 5, device=d), (torch.tensor([0, 1], device=d), torch.tensor([0, 1, 2], device=d)), 1.0
    ),
    "values of another number": lambda d: _written(
        torch.arange(5, device=d), torch.arange(5, device=d) > 2, torch.zeros(0, device=d)
    ),
    "an index into nothing": lambda d: torch.zeros(10, 0, device=d)[:, torch.tensor([0], device=d)],
    "repeats of two dimensions": lambda d: torch.repeat_interleave(torch.ones(2, 2, dtype=torch.int64, device=d)),
    "repeats of floats": lambda d: torch.repeat_interleave(torch.ones(2, device=d)),
    "strides of another number": lambda d: torch.empty_strided((2,), (), device=d),
    "a window of integers": lambda d: torch.hann_window(4, dtype=torch.int64, device=d),
    "samples of another batch": lambda d: torch.nn.FractionalMaxPool3d(
        2, output_size=1, _random_samples=torch.rand(0, 4, 3, device=d)
    )(torch.ones(1, 4, 5, 5, 5, device=d)),
    "output padding as wide as the stride": lambda d: torch.nn.functional.conv_transpose1d(
        torch.ones(1, 2, 5, device=d), torch.ones(2, 2, 3, device=d), stride=2, dilation=2, output_padding=2
    ),
    "negative output padding": lambda d: torch.nn.functional.conv_transpose2d(
        torch.ones(1, 2, 5, 5, device=d), torch.ones(2, 2, 3, 3, device=d), output_padding=-1
    ),
    "class weights of another dtype": lambda d: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.tensor([0, 1], device=d), torch.ones(3, dtype=torch.float64, device=d)
    ),
    "margins' weights of another dtype": lambda d: torch.nn.functional.multi_margin_loss(
        torch.ones(2, 3, device=d), torch.tensor([0, 1], device=d), weight=torch.ones(3, dtype=torch.float64, device=d)
    ),
    "a list of masks less a number": lambda d: torch._foreach_sub([torch.ones(2, dtype=torch.bool, device=d)], 1),
    "a list of masks less True": lambda d: torch._foreach_sub([torch.ones(2, dtype=torch.bool, device=d)], True),
    "a negative class": lambda d: torch.nn.functional.one_hot(torch.tensor([-1, 2], device=d)),
    "a class too high": lambda d: torch.nn.functional.one_hot(torch.tensor([5], device=d), 3),
    "a class too high in inference": lambda d: torch.inference_mode()(torch.nn.functional.one_hot)(
        torch.tensor([5], device=d), 3
    ),
    "the classes of nothing": lambda d: torch.nn.functional.one_hot(torch.zeros(0, dtype=torch.int64, device=d)),
    "the factors of a singular matrix": lambda d: torch.linalg.lu_factor(torch.zeros(2, 2, device=d)),
    "the inverse of a singular matrix": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "singular values of NaN": lambda d: torch.linalg.svdvals(torch.full((2, 2), torch.nan, device=d)),
    "the pseudo-inverse of NaN": lambda d: torch.linalg.pinv(torch.full((2, 2), torch.nan, device=d)),
    "a transposed convolution of no pixels": lambda d: torch.nn.functional.conv_transpose2d(
        torch.ones(2, 3, 0, 4, device=d), torch.ones(3, 2, 2, 2, device=d)
    ),
    "a transposed convolution of no channels": lambda d: torch.nn.functional.conv_transpose1d(
        torch.ones(2, 0, 4, device=d), torch.ones(0, 2, 2, device=d)
    ),
    **{
        f"{mode} pixels of {what}": (
            lambda d, mode=mode, sizes=sizes, to=to: torch.nn.functional.interpolate(
                torch.ones(sizes, device=d), to, mode=mode
            )
        )
        for mode in ("bilinear", "bicubic", "nearest", "nearest-exact")
        for what, sizes, to in (
            ("no channels", (2, 0, 3, 4), 2),
            ("no pixels", (2, 3, 0, 4), 2),
            ("an image to none", (2, 3, 3, 4), 0),
        )
    },
    **{
        f"samples of nothing, {replacement=}": (
            lambda d, replacement=replacement: torch.multinomial(torch.ones(2, 0, device=d), 2, replacement)
        )
        for replacement in (False, True)
    },
    "a scatter to a transposed tensor with a gradient": lambda d: torch.as_strided_scatter(
        torch.ones(2, 3, device=d, requires_grad=True).t(), torch.zeros(2, device=d), (2,), (1,)
    ),
    "resize_ to preserve": lambda d: torch.ones(2, device=d).resize_(3, memory_format=torch.preserve_format),
}


def _seen(call: Callable[[], Any]) -> Any:
    """A call's result, and the first words of its warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = tree_map_only(torch.Tensor, lambda t: t.cpu(), call())
    return result, sorted({str(w.message)[:40] for w in warned if "uint8" in str(w.message)})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    expected, got = (_seen(lambda d=d: CALLS[name](d)) for d in ("cpu", "jax"))
    if isinstance(expected[0], torch.dtype | bool | str):
        assert got == expected
    else:
        torch.testing.assert_close(got[0], expected[0])
        assert got[1] == expected[1]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    x = torch.arange(120.0).reshape(2, 3, 4, 5)
    expected, got = (LAYOUTS[name](x.to(d)) for d in ("cpu", "jax"))
    assert got.stride() == expected.stride()
    if "resize" not in name:
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    with pytest.raises(Exception) as expected:  # whatever ATen raises
        REFUSED[name]("cpu")
    with pytest.raises(expected.type):
        REFUSED[name]("jax")


def test_which_matrix_is_singular() -> None:
    matrices = torch.eye(3, device="jax").repeat(2, 1, 1)
    matrices[1, 2] = 0
    for call, words in (
        (torch.linalg.inv, "diagonal element 3 is zero"),
        (torch.linalg.lu_factor, r"U\[3,3\] is zero"),
    ):
        with pytest.raises(RuntimeError, match=rf"\(Batch element 1\): (The )?{words}"):
            call(matrices)


def test_views_name_their_bases() -> None:
    x = torch.ones(3, 4, device="jax")
    for view in (x.t(), x[1:], x.view(12), x.unbind()[0], x.expand(2, 3, 4)):
        assert view._is_view() and view._base is x
    assert not x._is_view() and not x.clone()._is_view()
