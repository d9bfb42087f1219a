"""`scaled_dot_product_attention` on the device, beside ATen's on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

import jaten_ops  # noqa: F401  # the device jax
from jaten_ops.schema import RELEASE

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

QUERIES, KEYS = (2, 4, 5, 8), (2, 4, 6, 8)
FEW = (2, 2, 6, 8)  # heads, each for two of the queries'

# Sizes of query and of key and value, settings, and whether the mask is to be made of numbers in [0, 1).
FUSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], Callable[[Tensor], Tensor] | None]] = {
    "plain": (QUERIES, KEYS, {}, None),
    "causal": (QUERIES, KEYS, {"is_causal": True}, None),
    "scaled": (QUERIES, KEYS, {"scale": 0.3}, None),
    "grouped": (QUERIES, FEW, {"enable_gqa": True}, None),
    "masked": (QUERIES, KEYS, {}, lambda x: x[0, 0] > 0.3),
    "masked by key": (QUERIES, KEYS, {}, lambda x: x[:, :1, :1] > 0.3),
    "all masked": (QUERIES, KEYS, {}, lambda x: x > 2),
    "added": (QUERIES, KEYS, {}, lambda x: x),
    "masked and grouped": (QUERIES, FEW, {"enable_gqa": True}, lambda x: x > 0.3),
}
# From torch 2.14 on the CPU refuses both, as its composition has always done
_BOTH = {"added and causal": (QUERIES, KEYS, {"is_causal": True}, lambda x: x[0, 0])}
_TAKES_BOTH = RELEASE < (2, 14)
if _TAKES_BOTH:
    FUSED |= _BOTH
COMPOSED = {
    "three dimensions": ((4, 5, 8), (4, 6, 8), {}, None),
    "two dimensions": ((5, 8), (6, 8), {"is_causal": True}, None),
    "no query": ((2, 4, 0, 8), KEYS, {}, None),
    "no key": (QUERIES, (2, 4, 0, 8), {}, None),
}
REFUSED = {
    "heads": (QUERIES, (2, 3, 6, 8), {}, None),
    "mask of integers": (QUERIES, KEYS, {}, lambda x: x.long()),
    "mask of another size": (QUERIES, KEYS, {}, lambda x: x[0, 0, :3]),
} | ({} if _TAKES_BOTH else _BOTH)


def _operands(name: str, device: str, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], dict[str, Any]]:
    query, key, settings, mask = (FUSED | COMPOSED | REFUSED)[name]
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in (query, key, key)]
    leaves = [x.to(dtype).to(device).requires_grad_() for x in made]
    if mask is not None:
        found = mask(torch.rand((*query[:3], key[2]), generator=generator, dtype=torch.float64))
        settings = settings | {"attn_mask": (found.to(dtype) if found.is_floating_point() else found).to(device)}
    return leaves, settings


def _seen(call: Callable[..., Tensor], leaves: list[Tensor], settings: dict[str, Any]) -> list[Tensor]:
    out = call(*leaves, **settings)
    grads = torch.autograd.grad(out, leaves, torch.arange(out.numel(), device=out.device).view(out.shape).to(out.dtype))
    return [t.detach().cpu() for t in (out, *grads)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", [*FUSED, *COMPOSED])
def test_values_and_gradients(name: str, compiled: bool) -> None:
    call: Any = torch.compile(F.scaled_dot_product_attention, backend="jaten") if compiled else None
    got = _seen(call or F.scaled_dot_product_attention, *_operands(name, "jax"))
    torch.testing.assert_close(got, _seen(F.scaled_dot_product_attention, *_operands(name, "cpu")), equal_nan=True)


@pytest.mark.parametrize("name", ["masked", "masked by key", "all masked", "added"])
@pytest.mark.parametrize("operand", range(3), ids=["query", "key", "value"])
def test_nan(operand: int, name: str) -> None:
    """Masked scores that are NaN make the row NaN, as ATen adds -inf to them."""
    got, expected = (_operands(name, device) for device in ("jax", "cpu"))
    for leaves, _ in (got, expected):
        leaves[operand].data[0, 0, 1] = torch.nan
    found, wanted = (_seen(F.scaled_dot_product_attention, *call) for call in (got, expected))
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_smaller_numbers(dtype: torch.dtype) -> None:
    """No further from what double precision gives, of the same operands, than four roundings of the largest element."""
    leaves, settings = _operands("masked", "jax", dtype)
    wide = [x.detach().cpu().double().requires_grad_() for x in leaves]
    expected = _seen(F.scaled_dot_product_attention, wide, settings | {"attn_mask": settings["attn_mask"].cpu()})
    for got, wanted in zip(_seen(F.scaled_dot_product_attention, leaves, settings), expected, strict=True):
        assert got.dtype == dtype
        bound = 4 * torch.finfo(dtype).eps * wanted.abs().max().item()
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses(name: str) -> None:
    messages = []
    for device in ("jax", "cpu"):
        leaves, settings = _operands(name, device)
        with pytest.raises(RuntimeError) as raised:
            F.scaled_dot_product_attention(*leaves, **settings)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def _names(out: Tensor) -> set[str]:
    """The nodes of a result's graph."""
    found, left = set(), [out.grad_fn]
    while left:
        node = left.pop()
        if node is not None:
            found.add(node.name())
            left += [n for n, _ in node.next_functions]
    return found


@pytest.mark.parametrize("name", FUSED)
def test_it_is_one_operator(name: str) -> None:
    leaves, settings = _operands(name, "jax")
    fused = _names(F.scaled_dot_product_attention(*leaves, **settings))
    assert len(fused) == 2, fused  # its own and the leaves'


def test_the_backward_pass_has_the_sums_of_the_forward() -> None:
    leaves, settings = _operands("masked", "jax")
    out: Any = F.scaled_dot_product_attention(*leaves, **settings)
    assert [t.shape for t in out.grad_fn.saved_tensors].count(out.shape[:3]) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [n for n in FUSED if n not in _BOTH])  # the composition refuses both
def test_second_derivatives(name: str) -> None:
    """By the results of the forward pass, which the gradients use; beside ATen's composition on the CPU."""
    found = []
    for device in ("jax", "cpu"):
        leaves, settings = _operands(name, device)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH] if device == "jax" else SDPBackend.MATH):
            out = F.scaled_dot_product_attention(*leaves, **settings)
            grads = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
            found.append([t.cpu() for t in torch.autograd.grad(sum(g.pow(2).sum() for g in grads), leaves)])
    torch.testing.assert_close(*found, equal_nan=True)


def test_the_kernel_may_be_chosen() -> None:
    leaves, settings = _operands("plain", "jax")
    with sdpa_kernel(SDPBackend.MATH):
        assert len(_names(F.scaled_dot_product_attention(*leaves, **settings))) > 2


@pytest.mark.skipif(not _TAKES_BOTH, reason="from torch 2.14 on the CPU refuses both: test_what_the_cpu_refuses")
def test_without_autograd() -> None:
    """ATen's composition takes no mask together with `is_causal`."""
    with torch.inference_mode():
        got, expected = (
            F.scaled_dot_product_attention(*leaves, **settings).cpu()
            for leaves, settings in (_operands("added and causal", device) for device in ("jax", "cpu"))
        )
    torch.testing.assert_close(got, expected)


def test_dropout_takes_the_composition() -> None:
    leaves, _ = _operands("plain", "jax")
    out = F.scaled_dot_product_attention(*leaves, dropout_p=0.5)
    assert len(_names(out)) > 2 and not torch.equal(out, F.scaled_dot_product_attention(*leaves))


def test_a_mask_may_have_a_gradient() -> None:
    grads = []
    for device in ("jax", "cpu"):
        leaves, settings = _operands("added", device)
        mask = settings["attn_mask"].requires_grad_()
        grads.append(torch.autograd.grad(F.scaled_dot_product_attention(*leaves, attn_mask=mask).sum(), mask)[0].cpu())
    torch.testing.assert_close(*grads)


def _second(x: Tensor, y: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(F.scaled_dot_product_attention(x, y, y).pow(2).sum(), x, create_graph=True)
    return torch.autograd.grad(grad.pow(2).sum(), y)[0]


TRANSFORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "second derivative": _second,
    "vmap": lambda x, y: torch.func.vmap(lambda a: F.scaled_dot_product_attention(a, y, y))(torch.stack([x, -x])),
    "jvp": lambda x, y: torch.func.jvp(lambda a: F.scaled_dot_product_attention(a, y, y), (x,), (x.sin(),)),
    "grad": lambda x, y: torch.func.grad(lambda a: F.scaled_dot_product_attention(a, y, y).sum())(x),
    "hessian": lambda x, y: torch.func.hessian(lambda a: F.scaled_dot_product_attention(a, y, y).sum())(x[:, :, :2]),
}


@pytest.mark.parametrize(
    "name",
    [n if n in ("second derivative", "jvp") else pytest.param(n, marks=pytest.mark.exhaustive) for n in TRANSFORMS],
)
def test_transforms(name: str) -> None:
    """Beside ATen's composition: its fused kernel on the CPU has no such derivatives."""
    found = []
    for device in ("jax", "cpu"):
        (query, key, _), _ = _operands("plain", device)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH] if device == "jax" else SDPBackend.MATH):
            found.append([t.detach().cpu() for t in tree_leaves(TRANSFORMS[name](query[:1, :2], key[:1, :2]))])
    torch.testing.assert_close(*found)
