"""Compiled functions, tangents of forward-mode automatic differentiation, and `torch.func.functionalize`."""

from __future__ import annotations

import re

import pytest
import torch
from torch.autograd import forward_ad

import jaten_ops
from jaten_ops.backend import jaten

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _program(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def _dual(device: str, *, trains: bool = False) -> torch.Tensor:
    return forward_ad.make_dual(torch.ones(3, device=device).requires_grad_(trains), torch.ones(3, device=device))


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_tangents_are_not_lost(device: str, trains: bool, is_warm: bool) -> None:
    compiled = torch.compile(_program, backend=jaten)
    if is_warm:
        compiled(torch.ones(3, device=device).requires_grad_(trains))
    with forward_ad.dual_level():
        dual = _dual(device, trains=trains)
        try:
            found = forward_ad.unpack_dual(compiled(dual)).tangent
        except jaten_ops.UnsupportedInputError as error:
            assert re.search(r"a dual tensor.*torch.func.jvp", str(error))  # torch 2.14 may call eager code
        else:
            torch.testing.assert_close(found, forward_ad.unpack_dual(_program(dual)).tangent)
    torch.testing.assert_close(compiled(torch.ones(3, device=device)), _program(torch.ones(3, device=device)))


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_other_tensors_are_taken_meanwhile(device: str) -> None:
    compiled = torch.compile(_program, backend=jaten)
    with forward_ad.dual_level():
        beside = _dual(device)
        torch.testing.assert_close(compiled(torch.ones(3, device=device)), _program(torch.ones(3, device=device)))
        assert forward_ad.unpack_dual(beside).tangent is not None


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("inside", [False, True])
def test_jvp_is_the_way(device: str, inside: bool) -> None:
    """On a compiled function, and in one."""
    operands = (torch.ones(3, device=device),), (torch.ones(3, device=device),)
    compiled = torch.compile(_program, backend=jaten)
    outer = torch.compile(lambda x, t: torch.func.jvp(_program, x, t), backend=jaten)
    found = outer(*operands) if inside else torch.func.jvp(compiled, *operands)
    torch.testing.assert_close(found, torch.func.jvp(_program, *operands))


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_functional_tensors_are_refused(inside: bool, is_warm: bool) -> None:
    """They have no memory, so no program that is kept from other calls is run. On the device Dynamo refuses them."""
    x = torch.ones(3)
    plain = torch.compile(_program, backend=jaten)
    if is_warm:
        plain(x)
    functional = torch.func.functionalize(_program if inside else plain)
    with pytest.raises(Exception, match=r"a tensor inside torch\.func\.functionalize"):
        (torch.compile(functional, backend=jaten) if inside else functional)(x)
    torch.testing.assert_close(plain(x), _program(x))
