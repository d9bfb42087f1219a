"""Models for a mesh of eight devices, the plans that partition them, and what a few training steps make of each."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
import torch.nn.functional as F
from jax.sharding import Mesh, PartitionSpec
from torch import Tensor, nn

import jaten_ops
from benchmarks import mesh_mixture, mesh_transformer
from jaten_ops import distributed

from .models import BY_NAME, CLASSES, WIDTH, ModelCase, label_loss

STEPS = 5
BATCH = 8


class Experts(nn.Module):
    """A mixture of eight experts, of which each position takes two; all compute, which is how the weights partition."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, 8)
        self.up = nn.Parameter(torch.randn(8, WIDTH, 64) * 0.2)
        self.down = nn.Parameter(torch.randn(8, 64, WIDTH) * 0.2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(self.norm(x)).softmax(-1)
        best, at = scores.topk(2)
        weights = torch.zeros_like(scores).scatter(-1, at, best)
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.up))
        return self.head(x + torch.einsum("bteh,ehd,bte->btd", hidden, self.down, weights))


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with padded positions."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padding))


def _padded(n: int) -> dict[str, Tensor]:
    padding = torch.zeros(n, 6, dtype=torch.bool)
    padding[:, 4:] = True
    return {"x": torch.randn(n, 6, WIDTH), "padding": padding}


def _sequence(dropout: float) -> nn.Module:
    return mesh_transformer.Transformer()


def _token_loss(scores: Any, inputs: dict[str, Tensor]) -> Tensor:
    return mesh_transformer.language_loss(scores, inputs["tokens"])


_OWN = (
    ModelCase("experts", Experts, lambda n: {"x": torch.randn(n, 6, WIDTH)}, label_loss),
    ModelCase("sequence", _sequence, lambda n: {"tokens": mesh_transformer.some_tokens(n)}, _token_loss),
    *(
        ModelCase(
            f"experts by {by}",
            lambda dropout, by=by: mesh_mixture.mixtures(by),  # type: ignore[misc]  # mypy sees no default
            lambda n: {"input": mesh_mixture.some_vectors(n)},
            label_loss,
        )
        for by in ("mask", "index")
    ),
    ModelCase("encoder", Encoder, _padded, label_loss),
)
_NAMES = ("mlp", "resnet", "llama", "gpt2", "bert", "vit", "dlrm")
MODELS: dict[str, ModelCase] = {case.name: case for case in (*(BY_NAME[n] for n in _NAMES), *_OWN)}

_ROWS, _COLUMNS = PartitionSpec("model"), PartitionSpec(None, "model")
TENSOR_PLANS: dict[str, Any] = {
    "mlp": {"layers.0": "colwise", "layers.3": "rowwise", "layers.5": "colwise_rep"},
    "resnet": {
        "resnet.embedder.embedder.convolution.weight": _ROWS,
        "resnet.encoder.stages.*.layers.*.layer.0.convolution.weight": _ROWS,
        "resnet.encoder.stages.*.layers.*.layer.1.convolution.weight": _COLUMNS,
    },
    "llama": "auto",
    "gpt2": {
        "transformer.wte": "embedding_rowwise",
        "transformer.h.*.attn.c_attn": "packed_colwise",
        "transformer.h.*.attn.c_proj": "rowwise",
        "transformer.h.*.mlp.c_fc": "colwise",
        "transformer.h.*.mlp.c_proj": "rowwise",
    },
    "bert": {
        "bert.embeddings.word_embeddings": "embedding_rowwise",
        "bert.encoder.layer.*.attention.self.[qkv]*": "colwise",
        "bert.encoder.layer.*.attention.output.dense": "rowwise",
        "bert.encoder.layer.*.intermediate.dense": "colwise",
        "bert.encoder.layer.*.output.dense": "rowwise",
    },
    "vit": {
        "vit.embeddings.patch_embeddings.projection.weight": _ROWS,
        "vit.layers.*.attention.[qkv]_proj": "colwise",
        "vit.layers.*.attention.o_proj": "rowwise",
        "vit.layers.*.mlp.fc1": "colwise",
        "vit.layers.*.mlp.fc2": "rowwise",
    },
    "dlrm": {"bags.*.weight": _ROWS, "dense.0": "colwise", "dense.2": "rowwise", "top.0.weight": _ROWS},
    "experts": {"up": _ROWS, "down": _ROWS},
    "experts by mask": mesh_mixture.plan("model"),
    "experts by index": mesh_mixture.plan("model"),
    "sequence": mesh_transformer.PLAN,
    "encoder": {
        "encoder.layers.*.self_attn.in_proj_weight": _ROWS,
        "encoder.layers.*.self_attn.out_proj.weight": _COLUMNS,
        "encoder.layers.*.linear1": "colwise",
        "encoder.layers.*.linear2": "rowwise",
    },
}

PLANS = ("data", "fsdp", "tensor", "data x tensor", "fsdp x tensor")
WAYS = ("eager", "compile", "step")

# Some gradients are zero but for rounding, such as those of a bias of keys in attention. Adam would divide them by
# their own size, and make of the rounding a full step: with this eps it does not.
_EPS = 1e-3
_STEP_SIZE = 0.01
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=_EPS),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=_EPS),
}


def mesh_of(plan: str) -> Mesh:
    if plan in ("data", "fsdp"):
        return distributed.make_mesh(data=-1)
    return distributed.make_mesh(model=-1) if plan == "tensor" else distributed.make_mesh(data=2, model=4)


def planned(name: str, plan: str, module: nn.Module, mesh: Any = None) -> nn.Module:
    """The module of a model over the mesh of a plan, or over one like it, in place."""
    mesh = mesh or mesh_of(plan)
    if plan == "data":
        return distributed.parallelize_module(module, mesh, {}, axis="data")
    if "tensor" in plan:
        distributed.parallelize_module(module, mesh, TENSOR_PLANS[name])
    return distributed.fully_shard(module, mesh) if "fsdp" in plan else module


def placed(inputs: dict[str, Tensor], plan: str) -> dict[str, Tensor]:
    """A batch for a plan: partitioned, or on one device, from which it comes to the mesh by itself."""
    if plan == "tensor":
        return {name: value.to("jax") for name, value in inputs.items()}
    found: dict[str, Tensor] = distributed.distribute_batch(inputs, mesh_of(plan))
    return found


def built(case: ModelCase, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(case.seed)
    return case.build(dropout).train()


def batches(case: ModelCase) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    return [case.inputs(BATCH) for _ in range(2)] * 3


def train(
    case: ModelCase, module: nn.Module, optimizer: torch.optim.Optimizer, given: list[dict[str, Tensor]], way: str
) -> tuple[list[float], list[int]]:
    """The loss of each step, and how many programs XLA compiled in it."""
    call = torch.compile(module, backend="jaten") if way == "compile" else module

    def step(inputs: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = case.loss(call(**inputs), inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jaten_ops.compile_step(step, module, optimizer) if way == "step" else step
    losses, compiled = [], []
    with counted() as programs:
        for inputs in given[:STEPS]:
            before = len(programs)
            losses.append(float(run(inputs)))
            compiled.append(len(programs) - before)
    return losses, compiled


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """Fills a list with each program that XLA compiles, and each step that is traced."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    def listener(event: str, duration: float, **about: Any) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(str(about))

    handler, log = Handler(), logging.getLogger("jaten_ops.step")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
        log.removeHandler(handler)
        log.setLevel(level)


def bytes_on_fullest(tensors: list[Tensor]) -> int:
    """The bytes of tensors on the device that has most of them."""
    found: dict[int, int] = {}
    for tensor in tensors:
        for part in jaten_ops.arrays.carrier.view_of(tensor.detach()).storage.root.array.addressable_shards:
            found[part.device.id] = found.get(part.device.id, 0) + part.data.nbytes
    return max(found.values())


def _worst(got: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Any]:
    """The tensor that differs most, relative to its largest element or to a step of an optimizer, and by how much."""
    off = {
        n: float((got[n].detach().cpu().double() - e.double()).abs().max() / (e.double().abs().max() + _STEP_SIZE))
        for n, e in expected.items()
    }
    name = max(off, key=lambda n: off[n])
    return {"name": name, "off": off[name]}


def training(name: str, plan: str, way: str, optimizer: str) -> dict[str, Any]:
    """A few steps of a model over a mesh beside those of plain torch: all that a test asks about them."""
    torch._dynamo.reset()
    case = MODELS[name]
    plain = built(case)
    module = planned(name, plan, copy.deepcopy(plain))
    parameters = dict(module.named_parameters())
    before = {n: p.sharding for n, p in parameters.items()}
    ours, theirs = OPTIMIZERS[optimizer](module.parameters()), OPTIMIZERS[optimizer](plain.parameters())
    expected, _ = train(case, plain, theirs, batches(case), "eager")
    with torch._dynamo.config.patch(case.dynamo):
        losses, compiled = train(case, module, ours, [placed(b, plan) for b in batches(case)], way)
    states = [(n, t) for n, p in parameters.items() for k, t in ours.state[p].items() if torch.is_tensor(t) and t.dim()]
    grads = {n: p.grad for n, p in parameters.items() if p.grad is not None}
    plain.eval(), module.eval()
    inputs = batches(case)[0]
    with torch.no_grad():
        evaluated = [case.loss(m(**x), x).item() for m, x in ((module, placed(inputs, plan)), (plain, inputs))]
    whole = sum(p.nbytes for p in parameters.values()) + sum(t.nbytes for _, t in states)
    return {
        "losses": losses,
        "expected": expected,
        "evaluated": evaluated,
        "compiled": compiled,
        "worst": _worst(module.state_dict(), plain.state_dict()),
        "moved": [n for n, p in parameters.items() if p.sharding != before[n]],
        "gradients elsewhere": [n for n, g in grads.items() if not same(g, parameters[n])],
        "states elsewhere": [n for n, t in states if not same(t, parameters[n])],
        "partitioned": sum(not p.sharding.is_fully_replicated for p in parameters.values()),
        "share": bytes_on_fullest([*parameters.values(), *(t for _, t in states)]) * len(jax.devices()) / whole,
    }


def same(one: Tensor, other: Tensor) -> bool:
    return bool(one.sharding.is_equivalent_to(other.sharding, other.dim()))  # type: ignore[attr-defined]  # on the device
