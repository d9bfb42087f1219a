"""Programs that give a tensor other memory are noticed; what they do is tested with `input_writes`."""

from __future__ import annotations

import unittest

import expecttest
import torch

from jaten_ops.schema import RELEASE

from ...harness.passes import golden


def _replaced(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = x * 2
    return p.sin()


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    @unittest.skipIf(
        RELEASE >= (2, 14), "from torch 2.14 on it is captured as one operator: test_replaced_by_one_operator"
    )
    def test_replaced(self) -> None:
        got = golden("replaced_memory", _replaced, torch.ones(2), torch.ones(2))
        self.assertExpectedInline(
            got,
            """\
--- captured
l_x_: float32[2]
l_p_: float32[2]
mul: float32[2] = mul(l_x_, 2)
_set_grad_enabled = _set_grad_enabled(False)
set_: float32[2] = set_(l_p_, mul)
_set_grad_enabled_1 = _set_grad_enabled(True)
_lower_version_count_by_1 = _lower_version_count_by_1(set_)
sin: float32[2] = sin(l_p_)
return (sin,)

replaces_memory = True""",
        )

    @unittest.skipIf(RELEASE < (2, 14), "before torch 2.14 it is captured as several operators: test_replaced")
    def test_replaced_by_one_operator(self) -> None:
        got = golden("replaced_memory", _replaced, torch.ones(2), torch.ones(2))
        self.assertExpectedInline(
            got,
            """\
--- captured
l_x_: float32[2]
l_p_: float32[2]
mul: float32[2] = mul(l_x_, 2)
_set_grad_enabled = _set_grad_enabled(False)
shallow_copy_data_: float32[2] = shallow_copy_data_(l_p_, mul)
_set_grad_enabled_1 = _set_grad_enabled(True)
sin: float32[2] = sin(l_p_)
return (sin,)

replaces_memory = True""",
        )
