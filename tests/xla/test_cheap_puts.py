"""Arrays that are put on a device, committed to it or not, and what that means for programs."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import jaten_ops
from jaten_ops.xla import cheap_puts


@pytest.mark.parametrize("committed", [False, True])
def test_values_and_commitment(committed: bool) -> None:
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    device = jax.local_devices()[0]
    array = cheap_puts.put_on_device(values, jax.core.ShapedArray((2, 3), np.dtype("float32")), device, committed=True)
    again = cheap_puts.put_on_device(array, array.aval, device, committed=committed)
    assert again.committed == committed and again.devices() == {device}
    assert again.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert np.array_equal(again, values)


def test_a_tensor_of_the_cpu_beside_one_of_the_device_shares_its_program(caplog: pytest.LogCaptureFixture) -> None:
    """Both are uncommitted where there is one device; XLA would compile for each mixture of them."""
    moved, made = torch.rand(5, 13).to("jax"), torch.rand(5, 13, device="jax")
    assert [jaten_ops.to_jax(t).committed for t in (moved, made, moved + made)] == [False] * 3
    with jax.log_compiles():
        for one, other in ((moved, moved), (moved, made), (made, moved), (made, made)):
            torch.special.i0e(one).sub_(other).cosh()
    compiled = [message for message in caplog.messages if "XLA compilation of jit(jaten_cosh" in message]
    assert len(compiled) <= 1
