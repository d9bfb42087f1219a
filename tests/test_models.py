"""Real models under the backend: one body over the table of `models.py`.

Every run is judged by `parity.py` against eager PyTorch in float64, and must be captured whole, or at least in the
same graphs as with `aot_eager`: no graph break more, no recompilation.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves, tree_map_only

import jaten_ops  # noqa: F401  # the device "jax"

from .harness.parity import JUDGED_DRAWS, Batches, Record, Standard, make_standard, moved, violations
from .programs.models import BY_NAME, CASES, ModelCase

BACKEND = "jaten"

Call = Callable[..., Any]

STATIC = (4, 4, 4)
DYNAMIC = (4, 6, 3)
TWO_SIZES = (4, 6)  # each compiles anew


@dataclass(frozen=True)
class Run:
    """One test: a model, trained or not, in a dtype, on a device, with the batch sizes it meets in turn."""

    case: str
    mode: str
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    batch_sizes: tuple[int, ...] = STATIC

    def __str__(self) -> str:
        dtype = "" if self.dtype == torch.float32 else f"-{self.dtype}".replace("torch.", "")
        return f"{self.case}-{self.mode}{dtype}{'-dynamic' * self.dynamic}{'-jax' * (self.device == 'jax')}"

    @property
    def graphs(self) -> int:
        """The number of graphs: one for each batch size that Dynamo has not been told about."""
        return len(set(self.batch_sizes)) if self.batch_sizes == TWO_SIZES else 1

    @property
    def dynamic(self) -> bool:
        return self.batch_sizes != STATIC


IN_BFLOAT16 = ("bert", "llama", "resnet", "convnext", "lstm")
ON_JAX = ("mlp", "transformer", "llama")
TRAINED = ("mlp",)  # by default: layers of the others have tests of their own
RUNS = [
    *(Run(case.name, mode) for case in CASES for mode in ("infer", "train")),
    *(Run(name, "infer", dtype=torch.bfloat16) for name in IN_BFLOAT16),
    *(Run(name, "train", batch_sizes=DYNAMIC) for name in ("mlp", "dlrm")),
    *(Run(name, "train", batch_sizes=TWO_SIZES) for name in ("bert", "resnet")),
    *(Run(name, "train", device="jax") for name in ON_JAX),
]


# Of the settings besides the usual one, the run by default.
USUAL_SETTINGS = ("llama-infer-bfloat16",)


def _is_usual(run: Run) -> bool:
    """True of a run by default."""
    if run.dynamic or run.dtype != torch.float32 or run.device != "cpu":
        return str(run) in USUAL_SETTINGS
    return run.mode == "train" and run.case in TRAINED


@pytest.mark.parametrize(
    "run", [pytest.param(r, id=str(r), marks=[] if _is_usual(r) else [pytest.mark.exhaustive]) for r in RUNS]
)
def test_parity(run: Run) -> None:
    case = BY_NAME[run.case]
    model, batches = make(case, run.dtype, run.batch_sizes)
    standard = eager_standard(run.case, run.mode, run.dtype, run.batch_sizes)

    weights = [moved(model, draw).state_dict() for draw in range(JUDGED_DRAWS)]
    model, batches = model.to(run.device), tree_map_only(torch.Tensor, lambda x: x.to(run.device), batches)
    actual = []
    with captured(case) as capture:
        compiled = torch.compile(model, backend=BACKEND, dynamic=run.dynamic or None)
        for each in weights:
            model.load_state_dict(each)
            actual.append(observe(case, run.mode, model, batches, compiled))

    if capture != {"graphs": run.graphs}:  # what Dynamo itself breaks
        assert capture == eager_capture(run.case, run.mode, run.dynamic, run.batch_sizes)
    assert not violations(actual, standard)


def make(case: ModelCase, dtype: torch.dtype, batch_sizes: tuple[int, ...]) -> tuple[nn.Module, Batches]:
    """The model without dropout, and a batch of each size, with floating point inputs of the dtype."""
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        model = case.build(0.0)
        batches = [case.inputs(size) for size in batch_sizes]
        unsettle(model)
    return model.to(dtype), tree_map_only(torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, batches)


def unsettle(model: nn.Module) -> None:
    """Moves what starts at 0 or 1, as training would: a bias left out, or a scale or statistic unused, must show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.5)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)


def observe(case: ModelCase, mode: str, model: nn.Module, batches: Batches, call: Call | None = None) -> Record:
    """Runs `call` (by default the model itself) on the batches, and records all that comes of it."""
    return (train if mode == "train" else infer)(case, model, batches, model if call is None else call)


def infer(case: ModelCase, model: nn.Module, batches: Batches, call: Call) -> Record:
    model.eval()
    record: Record = {}
    with torch.no_grad():
        for i, inputs in enumerate(batches):
            output = call(**inputs)
            record[f"loss/{i}"] = case.loss(output, inputs)
            record |= {f"output {i}/{j}": leaf for j, leaf in enumerate(tree_leaves(output))}
    return snapshot(record)


def train(case: ModelCase, model: nn.Module, batches: Batches, call: Call) -> Record:
    """One SGD step for each batch."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=case.learning_rate)
    record: Record = {}
    for step, inputs in enumerate(batches):
        optimizer.zero_grad()
        loss = case.loss(call(**inputs), inputs)
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        record |= snapshot({f"loss/{step}": loss} | {f"gradient {step}/{name}": g for name, g in gradients.items()})
        optimizer.step()
    return record | snapshot({f"final/{name}": value for name, value in model.state_dict().items()})


def snapshot(record: Record) -> Record:
    """A copy on the CPU: what is in the record must not change with the next step."""
    return {name: value.detach().cpu().clone() for name, value in record.items()}


@functools.cache
def eager_standard(case_name: str, mode: str, dtype: torch.dtype, batch_sizes: tuple[int, ...]) -> Standard:
    case = BY_NAME[case_name]
    return make_standard(*make(case, dtype, batch_sizes), functools.partial(observe, case, mode))


@contextlib.contextmanager
def captured(case: ModelCase) -> Iterator[Counter[str]]:
    """Collects how Dynamo captures what is compiled inside: the number of graphs, and each reason for a break."""
    capture: Counter[str] = Counter()
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(case.dynamo):
        yield capture
    capture["graphs"] = counters["stats"]["unique_graphs"]
    capture.update(counters["graph_break"])
    torch._dynamo.reset()


@functools.cache
def eager_capture(case_name: str, mode: str, dynamic: bool, batch_sizes: tuple[int, ...]) -> Counter[str]:
    case = BY_NAME[case_name]
    model, batches = make(case, torch.float32, batch_sizes)
    with captured(case) as capture:
        observe(case, mode, model, batches, torch.compile(model, backend="aot_eager", dynamic=dynamic or None))
    return capture
