"""Models that nobody has tuned for: a draw by a seed from timm, torchvision, transformers and torch_geometric.

A drawn model has a name of a library, a colon and the library's own name, such as "timm:resnet10t". It is random: its
weights are not loaded. Needs the extra `drawn`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from .case import Case, torch_loss

MOST = 30_000_000  # parameters
MOST_FLOPS = 4e9  # of a forward pass, so that a call takes at most about a second on one core
BATCH = 2

Inputs = tuple[Tensor, ...]
Made = tuple[Callable[[], nn.Module], Callable[[], Inputs]]


class Unsuitable(Exception):
    """A model that cannot be a case, and why."""


class _First(nn.Module):
    """A model with one result, the first tensor of its own ones, and tensors as positional arguments."""

    def __init__(self, model: nn.Module, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, inputs, strict=True)) if self.names else {}
        results = self.model(**named) if named else self.model(*inputs)
        return next(r for r in tree_leaves(results) if isinstance(r, Tensor) and r.is_floating_point())


# ---- the libraries: all names, and how a model of a name and its inputs are made -------------------


def _torchvision() -> Any:
    """torchvision's models. Wheels for CUDA define no operators without it, and do not load unless two are there."""
    if "+" not in version("torchvision") and torch.version.cuda is None:
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    return importlib.import_module("torchvision.models")


def _of_torchvision(name: str) -> Made:
    size = 299 if name.startswith("inception") else 224

    def make() -> nn.Module:
        return _First(_torchvision().get_model(name, weights=None))

    return make, lambda: (torch.randn(BATCH, 3, size, size),)


def _timm() -> Any:
    _torchvision()  # which timm imports
    return importlib.import_module("timm")


def _of_timm(name: str) -> Made:
    size = _timm().get_pretrained_cfg(name).input_size
    return lambda: _First(_timm().create_model(name)), lambda: (torch.randn(BATCH, *size),)


@functools.cache
def _of_transformers_all() -> tuple[str, ...]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return tuple(auto.MODEL_MAPPING_NAMES)


SMALL = {
    "hidden_size": 128, "d_model": 128, "n_embd": 128, "dim": 128, "embedding_size": 128, "embed_dim": 128,
    "intermediate_size": 256, "d_ff": 256, "ffn_dim": 256, "hidden_dim": 256, "n_inner": 256, "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256, "moe_intermediate_size": 64,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "d_kv": 32,
    "vocab_size": 1000, "image_size": 64, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4,
}  # fmt: skip
"""Settings of a small model, under the names that configurations of transformers have for them."""


def _configuration(name: str) -> Any:
    transformers = importlib.import_module("transformers")
    plain = transformers.AutoConfig.for_model(name)
    known = plain.to_dict()
    changes = {key: value for key, value in SMALL.items() if isinstance(known.get(key), int)}
    changes |= {key: 0.0 for key, value in known.items() if "drop" in key and isinstance(value, float)}
    tokens = {key: 1 for key, value in known.items() if key.endswith("_token_id") and isinstance(value, int)}
    return transformers.AutoConfig.for_model(name, **changes, **tokens, use_cache=False)


def _of_transformers(name: str) -> Made:
    transformers = importlib.import_module("transformers")
    config = _configuration(name)
    make = functools.partial(transformers.AutoModel.from_config, config)
    with torch.device("meta"):
        kind = make().main_input_name
    if kind == "pixel_values":
        size, channels = getattr(config, "image_size", 64), getattr(config, "num_channels", 3)
        return lambda: _First(make(), (kind,)), lambda: (torch.randn(BATCH, channels, size, size),)
    if kind != "input_ids":
        raise Unsuitable(f"it takes {kind}")
    names = ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)
    return lambda: _First(make(), names), lambda: tuple(torch.randint(2, 1000, (BATCH, 64)) for _ in names)


GRAPH_LAYERS = ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN")
NODES, EDGES, FEATURES = 2000, 10_000, 32


def _of_graphs_all() -> tuple[str, ...]:
    sizes = itertools.product(GRAPH_LAYERS, (16, 64, 128), (2, 3, 5))
    return tuple(f"{kind}-{width}-{depth}" for kind, width, depth in sizes)


def _of_graphs(name: str) -> Made:
    kind, width, depth = name.split("-")
    layer = getattr(importlib.import_module("torch_geometric.nn"), kind)

    def inputs() -> Inputs:
        return torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, EDGES))

    return lambda: _First(layer(FEATURES, int(width), int(depth), out_channels=10)), inputs


LIBRARIES: dict[str, tuple[Callable[[], Any], Callable[[str], Made]]] = {
    "timm": (lambda: _timm().list_models(), _of_timm),
    "torchvision": (lambda: _torchvision().list_models(module=_torchvision()), _of_torchvision),
    "transformers": (_of_transformers_all, _of_transformers),
    "torch_geometric": (_of_graphs_all, _of_graphs),
}


# ---- cases ---------------------------------------------------------------------------------------


def draw(seed: int, number: int = 20) -> Iterator[Case]:
    """Cases of models that suit, as many of each library, the same for the same seed and versions."""
    chance = random.Random(seed)
    for library, (every, _) in LIBRARIES.items():
        names = sorted(every())
        chance.shuffle(names)
        suitable = (found for name in names if (found := _suitable(f"{library}:{name}")) is not None)
        yield from itertools.islice(suitable, number // len(LIBRARIES))


def _suitable(name: str) -> Case | None:
    try:
        return case(name)
    except Exception as error:  # a library's model may fail in any way, here or on meta
        print(f"not {name}: {type(error).__name__}: {error}".split("\n")[0][:160], flush=True)
        return None


def case(name: str) -> Case:
    """The case of a drawn model.

    It is trained towards random numbers, by the mean squared error, unless its training is random or fails in eager.

    Raises:
        Unsuitable: it is too large, takes too long, or is random in inference.
    """
    library, _, own = name.partition(":")
    make, inputs = LIBRARIES[library][1](own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _weigh(make)
        module = _without_dropout(make())
        _work(module.eval(), inputs())
        shape = _same_twice(module.eval(), inputs())
        try:
            _same_twice(module.train(), inputs())
            loss = torch_loss(module(*inputs()), torch.randn(shape))
            loss.backward()
        except (Unsuitable, RuntimeError, ValueError):
            return Case(name, lambda: _without_dropout(make()), None, inputs)
    return Case(name, lambda: _without_dropout(make()), None, inputs, lambda: torch.randn(shape))


def _weigh(make: Callable[[], nn.Module]) -> None:
    """Asks for the size of a model, without its memory."""
    with torch.device("meta"):
        size = sum(p.numel() for p in make().parameters())
    if not 0 < size <= MOST:
        raise Unsuitable(f"it has {size:,} parameters")


def _work(module: nn.Module, inputs: Inputs) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    if counter.get_total_flops() > MOST_FLOPS:
        raise Unsuitable(f"it takes {counter.get_total_flops():.2g} operations")


_DROPS = re.compile("[Dd]rop|StochasticDepth")  # layers whose rate is `p`


def _without_dropout(module: nn.Module) -> nn.Module:
    """The module, with every rate of a dropout zero: contenders draw different masks."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and ("drop" in name or (name == "p" and _DROPS.search(type(part).__name__))):
                setattr(part, name, 0.0)
    return module


def _same_twice(module: nn.Module, inputs: Inputs) -> torch.Size:
    with torch.no_grad():
        torch.manual_seed(1)
        one = module(*inputs)
        torch.manual_seed(2)
        other = module(*inputs)
    if not torch.equal(one, other):
        raise Unsuitable("it is random")
    return one.shape
