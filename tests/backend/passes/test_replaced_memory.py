"""Programs that give a tensor other memory are noticed; what they do is tested with `input_writes`."""

from __future__ import annotations

import re

import expecttest
import torch

from ...harness.passes import golden


def _replaced(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p.data = x * 2
    return p.sin()


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_replaced(self) -> None:
        got = golden("replaced_memory", _replaced, torch.ones(2), torch.ones(2))
        # one operator from torch 2.14 on, two before
        got = re.sub(r"^_lower_version_count_by_1 = .*\n", "", got, flags=re.M).replace("shallow_copy_data_", "set_")
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
sin: float32[2] = sin(l_p_)
return (sin,)

replaces_memory = True""",
        )
