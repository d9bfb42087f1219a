"""Golden graphs: what AOTAutograd captures is nothing but `jaten::` ops, on plain tensors and on the device jax."""

from __future__ import annotations

import expecttest
import torch
import torch._dynamo
from torch import nn

from jaten_ops.backend.graph_text import text_of

from ..harness.passes import watched


def _train(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    fn = torch.compile(model, backend="jaten")
    fn(torch.randn(3, 4).to(device)).sum().backward()


def _only_jaten(graph: torch.fx.Graph) -> bool:
    calls = [n for n in graph.nodes if n.op == "call_function"]
    return all(isinstance(n.target, torch._ops.OpOverload) and n.target.namespace == "jaten" for n in calls)


class TestTwoLayerNet(expecttest.TestCase):
    """`EXPECTTEST_ACCEPT=1 pytest tests/backend/test_graphs.py` rewrites the graphs below."""

    maxDiff = None

    def _captured(self, device: str) -> str:
        seen: list[torch.fx.GraphModule] = []
        torch._dynamo.reset()
        with watched("partial_writes", seen.append):
            _train(device)
        self.assertEqual(len(seen), 2)
        self.assertTrue(all(_only_jaten(gm.graph) for gm in seen))
        return "\n\n".join(map(text_of, seen))

    def test_plain_tensors(self) -> None:
        self.assertExpectedInline(
            self._captured("cpu"),
            """\
primals_1: float32[8, 4]
primals_2: float32[8]
primals_3: float32[3, 4]
primals_4: float32[2, 8]
primals_5: float32[2]
t: float32[4, 8] = jaten::t(primals_1)
addmm: float32[3, 8] = jaten::addmm(primals_2, primals_3, t)
relu: float32[3, 8] = jaten::relu(addmm)
t_1: float32[8, 2] = jaten::t(primals_4)
addmm_1: float32[3, 2] = jaten::addmm(primals_5, relu, t_1)
return (addmm_1, primals_3, primals_4, relu)

primals_3: float32[3, 4]
primals_4: float32[2, 8]
relu: float32[3, 8]
tangents_1: float32[3, 2]
t_1: float32[8, 2] = jaten::t(primals_4)
t_2: float32[2, 8] = jaten::t(t_1)
mm: float32[3, 8] = jaten::mm(tangents_1, t_2)
t_3: float32[2, 3] = jaten::t(tangents_1)
mm_1: float32[2, 8] = jaten::mm(t_3, relu)
t_4: float32[8, 2] = jaten::t(mm_1)
sum_1: float32[1, 2] = jaten::sum.dim_IntList(tangents_1, [0], True)
view: float32[2] = jaten::view(sum_1, [2])
t_5: float32[2, 8] = jaten::t(t_4)
detach: float32[3, 8] = jaten::detach(relu)
detach_1: float32[3, 8] = jaten::detach(detach)
threshold_backward: float32[3, 8] = jaten::threshold_backward(mm, detach_1, 0)
t_6: float32[8, 3] = jaten::t(threshold_backward)
mm_2: float32[8, 4] = jaten::mm(t_6, primals_3)
t_7: float32[4, 8] = jaten::t(mm_2)
sum_2: float32[1, 8] = jaten::sum.dim_IntList(threshold_backward, [0], True)
view_1: float32[8] = jaten::view(sum_2, [8])
t_8: float32[8, 4] = jaten::t(t_7)
return (t_8, view_1, None, t_5, view)""",
        )

    def test_device_jax(self) -> None:
        self.assertExpectedInline(
            self._captured("jax"),
            """\
primals_1: float32[8, 4] on jax
primals_2: float32[8] on jax
primals_3: float32[3, 4] on jax
primals_4: float32[2, 8] on jax
primals_5: float32[2] on jax
t: float32[4, 8] on jax = jaten::t(primals_1)
addmm: float32[3, 8] on jax = jaten::addmm(primals_2, primals_3, t)
relu: float32[3, 8] on jax = jaten::relu(addmm)
t_1: float32[8, 2] on jax = jaten::t(primals_4)
addmm_1: float32[3, 2] on jax = jaten::addmm(primals_5, relu, t_1)
return (addmm_1, primals_3, primals_4, relu)

primals_3: float32[3, 4] on jax
primals_4: float32[2, 8] on jax
relu: float32[3, 8] on jax
tangents_1: float32[3, 2] on jax
t_1: float32[8, 2] on jax = jaten::t(primals_4)
t_2: float32[2, 8] on jax = jaten::t(t_1)
mm: float32[3, 8] on jax = jaten::mm(tangents_1, t_2)
t_3: float32[2, 3] on jax = jaten::t(tangents_1)
mm_1: float32[2, 8] on jax = jaten::mm(t_3, relu)
t_4: float32[8, 2] on jax = jaten::t(mm_1)
sum_1: float32[1, 2] on jax = jaten::sum.dim_IntList(tangents_1, [0], True)
view: float32[2] on jax = jaten::view(sum_1, [2])
t_5: float32[2, 8] on jax = jaten::t(t_4)
alias: float32[3, 8] on jax = jaten::alias(relu)
alias_1: float32[3, 8] on jax = jaten::alias(alias)
threshold_backward: float32[3, 8] on jax = jaten::threshold_backward(mm, alias_1, 0)
t_6: float32[8, 3] on jax = jaten::t(threshold_backward)
mm_2: float32[8, 4] on jax = jaten::mm(t_6, primals_3)
t_7: float32[4, 8] on jax = jaten::t(mm_2)
sum_2: float32[1, 8] on jax = jaten::sum.dim_IntList(threshold_backward, [0], True)
view_1: float32[8] on jax = jaten::view(sum_2, [8])
t_8: float32[8, 4] on jax = jaten::t(t_7)
return (t_8, view_1, None, t_5, view)""",
        )
