"""torch.Tensor <-> jax.Array: what is shared, what is copied, and that nothing is narrowed."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

from jaten_ops.arrays import bridge
from jaten_ops.errors import UnsupportedInputError

SHAPES = [(3, 4), (), (0, 3), (1,)]


@pytest.mark.parametrize("dtype", bridge.DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    array = bridge.borrow(tensor)
    assert (array.dtype, array.shape) == (bridge.DTYPES[dtype], shape)
    back = bridge.as_tensor(array)
    assert (back.dtype, back.shape) == (dtype, torch.Size(shape))
    assert torch.equal(back.to(torch.complex128), tensor.to(torch.complex128))


def test_the_public_functions_serve_where_the_private_ones_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bridge._capsule_to_buffer is not None, "jaxlib has moved the private dlpack functions: look for them"
    monkeypatch.setattr(bridge, "_capsule_to_buffer", None)
    monkeypatch.setattr(bridge, "_buffer_to_capsule", None)
    tensor = torch.tensor([2**40, 1])
    array = bridge.borrow(tensor)
    assert array.dtype == np.dtype("int64") and bridge.shares_memory(array, tensor)
    assert torch.equal(bridge.as_tensor(array), tensor)


STRIDED = {
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "step slice": torch.arange(12.0)[::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "misaligned storage": torch.arange(17.0)[1:],
}


@pytest.mark.parametrize("name", STRIDED)
def test_other_strides_are_copied(name: str) -> None:
    tensor = STRIDED[name]
    array = bridge.borrow(tensor)
    assert not bridge.shares_memory(array, tensor)
    np.testing.assert_array_equal(np.asarray(array), tensor.tolist())


def test_conj_and_neg_bits_are_resolved() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    np.testing.assert_array_equal(np.asarray(bridge.borrow(x.conj())), x.conj().resolve_conj().numpy())
    np.testing.assert_array_equal(np.asarray(bridge.borrow(x.conj().imag)), -x.imag.numpy())


def test_zeros_without_memory() -> None:
    assert np.asarray(bridge.borrow(torch._efficientzerotensor((3,)))).tolist() == [0, 0, 0]


def test_64_bit_values_survive_with_x64_off() -> None:
    assert not jax.config.jax_enable_x64
    assert bridge.as_tensor(bridge.borrow(torch.tensor([2**40 + 1]))).item() == 2**40 + 1
    assert bridge.as_tensor(bridge.borrow(torch.tensor([1e300], dtype=torch.float64))).item() == 1e300


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2).to_sparse(), torch.zeros(2, dtype=torch.complex32)],
    ids=["sparse", "complex32"],
)
def test_what_jax_cannot_hold_raises(tensor: torch.Tensor) -> None:
    with pytest.raises(UnsupportedInputError, match="expected"):
        bridge.borrow(tensor)


LENT = STRIDED | {
    "requires a gradient": torch.ones(3, requires_grad=True),
    "lazily negated": torch.arange(3.0).to(torch.complex64).conj().imag,
    "without memory": torch._efficientzerotensor((3,)),
    "empty": torch.ones(0, 3),
    "bytes": torch.ones(3, dtype=torch.bool),
}


@pytest.mark.parametrize("name", LENT)
def test_lent_memory_may_grow_later(name: str) -> None:
    tensor = LENT[name]
    assert np.asarray(bridge.lend(tensor, None)).tolist() == (tensor + 0).tolist()
    assert name == "without memory" or tensor.untyped_storage().resizable()
