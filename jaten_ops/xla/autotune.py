"""The measured choice between forms of an operation: each is compiled and timed once, on this processor.

What a form costs depends on the processor, and rules know those that they were made on. So a program may ask for
measurements: of expensive operations, or of all. They are kept on the disk, by operation, shapes, processor and
versions, and are what later programs and processes go by, if these ask as well.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from . import autotune_mode, compiler_options, cpu_client
from .disk_cache import DiskCache

_GAIN = 0.95  # of the time of the form that the rules choose: a smaller gain may be noise
_HOPELESS = 2.0  # times the fastest: not timed again
_ROUNDS, _TURN = 5, 0.003  # seconds

_log = logging.getLogger(__name__)
_CACHE = DiskCache("measurement")
_known: dict[str, dict[str, float]] = {}  # by key: seconds by name
_one_at_a_time = threading.RLock()


class Form(NamedTuple):
    """One form of an operation.

    Attributes:
        compute: a function of the operands.
        options: compiler options, instead of those that its program would get.
    """

    compute: Callable[..., Any]
    options: Mapping[str, str | bool] | None = None


def fastest(key: str, forms: Mapping[str, Form], operands: Sequence[Any], default: str) -> str:
    """The name of the fastest form; `default` if none is clearly faster.

    Args:
        key: the operation, its shapes and dtypes, as text.
        forms: by name.
        operands: shapes and dtypes.
        default: the form that rules choose.
    """
    if len(forms) < 2:
        return default
    times = seconds(key, forms, operands)
    best = min(times, key=times.__getitem__)
    return best if times[best] < _GAIN * times[default] else default


def seconds(key: str, forms: Mapping[str, Form], operands: Sequence[Any]) -> dict[str, float]:
    """The seconds that forms take, by name; infinite if one does not compile."""
    with _one_at_a_time, autotune_mode.using("off"):  # what two threads time at once says little
        found = _known.get(key, {})
        if found.keys() >= forms.keys():
            return {name: found[name] for name in forms}
        device = cpu_client.device()
        stored = _CACHE.fingerprint(key, device=device, of_package=True)
        found = found or _CACHE.lookup(stored, json.loads) or {}
        if lacking := {name: form for name, form in forms.items() if name not in found}:
            found |= _measured(lacking, operands, device)
            _CACHE.store(stored, lambda: json.dumps(found).encode())
            each = ", ".join(f"{name} {found[name] * 1e6:.0f} µs" for name in sorted(found, key=found.__getitem__))
            _log.info("measured %s: %s", key, each)
        _known[key] = found
    return {name: found[name] for name in forms}


def _measured(forms: Mapping[str, Form], operands: Sequence[Any], device: Any) -> dict[str, float]:
    # another program may be traced or lowered in this thread, of which this is no part
    with jax.ensure_compile_time_eval():
        draw = np.random.default_rng(0).standard_normal
        arrays = [jax.device_put(draw(x.shape, np.float32).astype(x.dtype), device) for x in operands]
        runs = {name: run for name, form in forms.items() if (run := _compiled(form, arrays, name)) is not None}
        times = dict.fromkeys(forms, math.inf) | {name: _once(run, arrays) for name, run in runs.items()}
        least = min(times.values())
        runs = {name: run for name, run in runs.items() if times[name] <= _HOPELESS * least}
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                calls = max(1, round(_TURN / times[name]))
                start = time.perf_counter()
                for _ in range(calls):
                    jax.block_until_ready(run(*arrays))
                times[name] = min(times[name], (time.perf_counter() - start) / calls)
    return times


def _once(run: Callable[..., Any], arrays: Sequence[Any]) -> float:
    """The seconds of a call, the faster of two: the first one maps its memory."""
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        jax.block_until_ready(run(*arrays))
        taken.append(time.perf_counter() - start)
    return min(taken)


def _compiled(form: Form, arrays: Sequence[Any], name: str) -> Callable[..., Any] | None:
    try:
        lowered = jax.jit(form.compute).lower(*arrays)
        told = compiler_options.of_program("cpu", lowered.as_text())
        options = told.options if form.options is None else dict(form.options)
        with compiler_options.compiling(told):
            return lowered.compile(compiler_options=options)
    except Exception as error:  # whatever JAX and XLA raise: such a form is none to choose
        _log.info("%s is not measured: %s", name, error)
        return None
