"""New memory is filled as torch's deterministic algorithms fill it."""

from __future__ import annotations

import expecttest
import torch

from ...harness.passes import golden


class TestGolden(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1` rewrites the text below."""

    maxDiff = None

    def test_filled(self) -> None:
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        got = golden("filled_memory", lambda x: torch.empty(2) + x.new_empty(2), torch.ones(2))
        self.assertExpectedInline(
            got,
            """\
--- inference
arg0_1: float32[2]
empty: float32[2] = jaten::empty.memory_format([2], device=cpu, pin_memory=False)
new_empty: float32[2] = jaten::new_empty(arg0_1, [2], pin_memory=False)
add: float32[2] = jaten::add.Tensor(empty, new_empty)
return (add,)

=>

arg0_1: float32[2]
empty: float32[2] = jaten::empty.memory_format([2], device=cpu, pin_memory=False)
fill_scalar: float32[2] = jaten::fill.Scalar(empty, nan)
new_empty: float32[2] = jaten::new_empty(arg0_1, [2], pin_memory=False)
fill_scalar_1: float32[2] = jaten::fill.Scalar(new_empty, nan)
add: float32[2] = jaten::add.Tensor(fill_scalar, fill_scalar_1)
return (add,)""",
        )
