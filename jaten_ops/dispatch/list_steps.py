"""Steps of optimizers over lists of the device's tensors, each as one program: what they have in common.

torch's own steps are a handful of operators on lists, each a program. These take only what is a plain tensor of one
floating dtype on one device, and leave all else to torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
import torch
from torch.autograd.graph import increment_version

from ..arrays import partitioned
from ..arrays.observers import OBSERVERS
from ..arrays.storage_views import View
from ..tensor.tensor import Tensor, array_of
from ..xla.x64 import Enabled
from . import in_place

Arrays = Sequence[jax.Array]
_DTYPES = (torch.float32, torch.float64)


@dataclass
class ListStep:
    """The operands of a step.

    Attributes:
        targets: the tensors that the step changes: parameters, and their states behind them.
        views: the targets' views.
        arrays: their arrays, a list for each list of tensors.
        grads: the gradients' arrays.
        given: whether the program may overwrite the arrays.
    """

    targets: Sequence[torch.Tensor]
    views: Sequence[View]
    arrays: Sequence[Arrays]
    grads: Arrays
    given: bool

    def run(self, program: Callable[..., Iterable[Arrays]], numbers: np.ndarray) -> list[jax.Array]:
        """Runs a program of the lists, the gradients and some numbers.

        Its results become the targets' arrays; what follows them is returned.
        """
        with Enabled():
            results = [array for part in program(*self.arrays, self.grads, numbers) for array in part]
        increment_version(self.targets)
        for view, array in zip(self.views, results, strict=False):
            view.write(array)
        return results[len(self.views) :]


def list_step(lists: Sequence[Sequence[torch.Tensor]], grads: Sequence[torch.Tensor]) -> ListStep | None:
    """The operands of a step; None if it is left to torch's.

    Args:
        lists: the parameters, and lists of as many states, of any shapes, float32 or float64, all of one dtype.
        grads: the parameters' gradients.
    """
    targets = [t for tensors in lists for t in tensors]
    if not _is_eager() or not _is_uniform([*targets, *grads]) or any(map(torch.Tensor.is_inference, targets)):
        return None
    if [t.shape for t in lists[0]] != [t.shape for t in grads]:
        return None
    views = in_place.views_apart(targets, [grads])
    if views is None:
        return None
    given = in_place.may_be_overwritten(views)  # asked while nothing else holds the arrays
    arrays, gradients = [view.read() for view in views], [array_of(g) for g in grads]
    if any(issubclass(kind, jax.core.Tracer) for kind in {type(a) for a in (*arrays, *gradients)}):
        return None
    count = len(grads)
    return ListStep(targets, views, [arrays[i : i + count] for i in range(0, len(arrays), count)], gradients, given)


def _is_uniform(tensors: Sequence[torch.Tensor]) -> bool:
    """True for tensors of jaten's own class, of one dtype that the programs are made for, and on one device."""
    (kind, dtype, _), *others = {(type(t), t.dtype, t.device) for t in tensors}
    return not others and kind is Tensor and dtype in _DTYPES


def _is_eager() -> bool:
    """True if nothing records, traces, watches or differentiates operators, and no tensor is over a mesh."""
    return not (
        OBSERVERS
        or partitioned.MET
        or torch.is_grad_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_tracing()
    )
