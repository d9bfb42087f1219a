"""The program of the values that a step reads early, which each call runs to find the step's program for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.storage_views import Storage
from ..xla import executables
from ..xla.x64 import Enabled
from .lowered_step import Groups
from .trace import Trace

Met = dict[Any, tuple[list[int], list[Any]]]
"""The values that programs have computed in a call, and the arrays that they are of, whose `id`s are the keys."""


class EarlyProgram:
    """Computes the values for which a step's program is, from the operands of a call.

    Args:
        trace: the traced step.
        groups: its operands.
        arrays: those that it reads and does not write to, or what stands for them, by their numbers.
        known: executables by their programs' text and nesting, to which this one is added.
    """

    def __init__(
        self, trace: Trace, groups: Groups, arrays: dict[int, Any], known: dict[Any, jax.stages.Compiled]
    ) -> None:
        self._expected = [int(v) for read in trace.early for v in read.value.reshape(-1)]
        places = {n: (0, i) for i, n in enumerate(groups.read)} | {n: (1, i) for i, n in enumerate(groups.others)}
        operands = sorted(places.keys() & frozenset[int]().union(*(read.operands for read in trace.early)))
        self._places = [places[n] for n in operands]

        def program(given: Sequence[Any]) -> jax.Array:
            found = trace.early_values(groups.constants | dict(zip(operands, given, strict=True)))
            return jnp.concatenate([jnp.asarray(v, "int64").reshape(-1) for v in found])

        with Enabled():
            lowered = jax.jit(program).trace([arrays[i] for i in operands]).lower()
            key = "early", lowered.as_text(), executables.devices_of_program(lowered)
            if key not in known:
                known[key], _ = executables.compiled(lowered)
        self._run = known[key]

    def holds(self, read: Sequence[Storage], others: Sequence[Any], met: Met) -> bool:
        """True if the values are those of the step's program.

        Args:
            read, others: the operands of these groups in this call.
            met: the values that programs have computed in this call, to which they are added.
        """
        arrays = [others[at] if group else read[at].array for group, at in self._places]
        key = id(self._run), tuple(map(id, arrays))
        if key not in met:
            with Enabled():
                met[key] = np.asarray(self._run(arrays)).tolist(), arrays
        return met[key][0] == self._expected
