"""Parity of whole models: a run's error, measured from eager PyTorch in float64, compared with eager's own error.

A fixed tolerance is either blind or false: one network amplifies rounding a hundredfold, the next not at all. So the
yardstick is what eager PyTorch loses on the same model in the same dtype: tensor by tensor, a run may lose at most
`FACTOR` times that, plus a floor; and over all tensors of a model at most `LEVEL` times, in the geometric mean.

Three things make the yardstick steady.

- One run is one draw: a rounding in the last layer moves every gradient together, and now and then eager is lucky, or
  an activation lies so close to a kink that rounding decides on its gradient. Eager's error is therefore the largest of
  `DRAWS` runs whose weights differ by a few units in the last place, each measured from float64 at the same weights:
  the same problem, rounded anew. What is judged runs at the first of these weights too, and its error is the median.
- Each error is taken in two norms, both of which must hold: the largest element sees one wrong entry in a big tensor,
  the root mean square sees a small bias spread over all of it, which one bad element of eager's would hide.
- Of a thousand tensors the worst is far from the usual one, in eager's own runs as well: it shows what is wrong. That
  all lose a little more than eager's shows in the mean alone, whose bar is the narrower.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..programs.models import Inputs

# What a run produced, by "kind/name": "loss/0", "gradient 2/layer.weight", "final/layer.weight".
Record = dict[str, Tensor]
Batches = list[Inputs]

DRAWS = 10
JUDGED_DRAWS = 3  # an odd number, for medians

# How much more than eager a run may lose in a tensor, and in the mean over a model's.
FACTOR = {torch.float32: 2.0, torch.bfloat16: 3.0, torch.float16: 3.0}
LEVEL = 1.3

# The floor, in units in the last place of the tensor's scale. Some tensors eager gets right in every draw (a single
# number, a parameter that hardly moved, a sum whose order never changes); a run that adds in another order is still
# owed the rounding of the result and of a last addition.
FLOOR_ULPS = 1.0

# A tensor below this fraction of the largest of its kind is zero but for rounding, or lost in it: the gradient of the
# bias of attention's keys, or of a bias in front of a BatchNorm. What any run gives for it is the rounding of terms
# that cancel, and their scale is that of the largest.
ZERO = 1e-7


class Norms(NamedTuple):
    largest: float
    root_mean_square: float

    @staticmethod
    def of(x: Tensor) -> "Norms":
        return Norms(x.abs().max().item(), x.square().mean().sqrt().item()) if x.numel() else Norms(0.0, 0.0)

    @staticmethod
    def median(draws: Sequence["Norms"]) -> "Norms":
        """The lower one of an even number; NaN if one of them is."""
        return Norms(*torch.tensor(draws, dtype=torch.float64).median(0).values.tolist())

    @staticmethod
    def most(draws: Sequence["Norms"]) -> "Norms":
        return Norms(*torch.tensor(draws, dtype=torch.float64).amax(0).tolist())


@dataclass(frozen=True)
class Standard:
    """Eager PyTorch's records, exact and in the working dtype, and the errors of the latter.

    Attributes:
        dtype: the working dtype.
        exact: the records in float64 at the first `JUDGED_DRAWS` weights.
        eager: the record in the working dtype.
        errors: what eager loses in each floating point tensor, in each of `DRAWS` runs.
    """

    dtype: torch.dtype
    exact: Sequence[Record]
    eager: Record
    errors: dict[str, list[Norms]]


def to_float64(model: nn.Module, batches: Batches) -> tuple[nn.Module, Batches]:
    """Copies of both with every floating point tensor in float64."""
    widen = lambda x: x.double() if x.is_floating_point() else x  # noqa: E731
    return copy.deepcopy(model).double(), tree_map_only(Tensor, widen, batches)


def moved(model: nn.Module, draw: int) -> nn.Module:
    """A copy whose parameters are at most two units in the last place away; draw 0 is the model itself."""
    model = copy.deepcopy(model)
    if draw:
        generator = torch.Generator().manual_seed(draw)
        with torch.no_grad():
            for parameter in model.parameters():
                ulps = torch.randint(-2, 3, parameter.shape, generator=generator)
                parameter.mul_(1 + ulps * torch.finfo(parameter.dtype).eps)
    return model


def make_standard(model: nn.Module, batches: Batches, run: Callable[[nn.Module, Batches], Record]) -> Standard:
    """Runs `run` in eager mode, in the model's dtype and in float64, on `DRAWS` neighbours of the model."""
    draws = []
    for draw in range(DRAWS):
        neighbour = moved(model, draw)
        exact = run(*to_float64(neighbour, batches))
        eager = run(neighbour, batches)
        draws.append((exact, eager))
    exact, eager = draws[0]
    errors = {
        name: [Norms.of(e[name].double() - x[name]) for x, e in draws]
        for name, value in exact.items()
        if value.is_floating_point()
    }
    return Standard(next(model.parameters()).dtype, [x for x, _ in draws[:JUDGED_DRAWS]], eager, errors)


def violations(actual: Sequence[Record], standard: Standard) -> list[str]:
    """Every way in which a run falls short of the standard, one line each; empty when there is parity.

    Args:
        actual: what came of it at the weights of each of the first draws, one or more.
    """
    found = [line for record in actual for line in _mismatches(record, standard)]
    if found:
        return found
    scales = _scales(standard.exact[0])
    errors = {
        name: Norms.median([Norms.of(r[name].double() - x[name]) for r, x in zip(actual, standard.exact, strict=False)])
        for name in standard.errors
    }
    found = [line for name in errors for line in _excess(name, errors[name], standard, scales[name])]
    level = _level(errors, standard, scales)
    return found if level <= LEVEL else [*found, f"all tensors: {level:.2f} times eager's error in the mean"]


def _mismatches(record: Record, standard: Standard) -> list[str]:
    """Tensors that are missing, differ in shape or dtype, or, if not floating point, in value, a line each."""
    found = [f"{name}: missing" for name in standard.eager.keys() - record.keys()]
    found += [f"{name}: eager has none" for name in record.keys() - standard.eager.keys()]
    for name in standard.eager.keys() & record.keys():
        got, eager = record[name], standard.eager[name]
        if (got.dtype, got.shape) != (eager.dtype, eager.shape):
            found.append(f"{name}: got {got.dtype} {tuple(got.shape)}, expected {eager.dtype} {tuple(eager.shape)}")
        elif name not in standard.errors and not torch.equal(got, eager):
            found.append(f"{name}: differs from eager, and is not floating point")
    return found


def _excess(name: str, errors: Norms, standard: Standard, scale: Norms) -> list[str]:
    ulp = torch.finfo(standard.dtype).eps
    lines = []
    for norm in Norms._fields:
        error, eager, size = (getattr(x, norm) for x in (errors, Norms.most(standard.errors[name]), scale))
        if not error <= FACTOR[standard.dtype] * eager + FLOOR_ULPS * ulp * size:  # written so that NaN is a violation
            unit = ulp * size
            lines.append(f"{name}: {norm} error {error / unit:.1f} ulp, eager's {eager / unit:.1f} (ulp = {unit:.1e})")
    return lines


def _level(errors: dict[str, Norms], standard: Standard, scales: dict[str, Norms]) -> float:
    """The ratio of the error to eager's, by medians, in the geometric mean over tensors.

    A few numbers say too little: eager has some exactly, which is luck.
    """
    ulp = FLOOR_ULPS * torch.finfo(standard.dtype).eps
    logarithms = []
    for name, own in errors.items():
        if standard.eager[name].numel() < 16:
            continue
        for error, eager, size in zip(own, Norms.median(standard.errors[name]), scales[name], strict=True):
            if size:
                logarithms.append(math.log((error + ulp * size) / (eager + ulp * size)))
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else 1.0


def _scales(exact: Record) -> dict[str, Norms]:
    """The size of each tensor, which for those that are zero up to rounding is that of the largest of the same kind."""
    own = {name: Norms.of(value) for name, value in exact.items() if value.is_floating_point()}
    largest: dict[str, Norms] = {}
    for name, norms in own.items():
        kind = name.split("/")[0]
        largest[kind] = max(largest.get(kind, norms), norms)
    return {
        name: top if norms.largest <= ZERO * (top := largest[name.split("/")[0]]).largest else norms
        for name, norms in own.items()
    }
