"""A worker process: reads one JSON object a line, writes one a line, and ends when its memory has grown too large."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import torch
import torch._dynamo

from . import garbage

_MEMORY = 2 << 30  # bytes above which caches are cleared, and, if that frees nothing, the worker is replaced
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def _forget() -> None:
    jax.clear_caches()
    torch._dynamo.reset()
    gc.unfreeze()
    garbage.collect()


def serve(run: Callable[[Any, Any], Any]) -> int:
    """Answers requests: `run` takes an item and the request's options, and returns a record with `seconds`."""
    # output of torch or XLA must not mix with the answers
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        garbage.keep()
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            start = time.monotonic()
            record = run(request["item"], request["options"])
            record.seconds = round(time.monotonic() - start, 2)
            garbage.collect()
            if _resident() > _MEMORY:
                _forget()
            gc.freeze()
            answer = {"record": record.to_json(), "tired": _resident() > _MEMORY}
            print(json.dumps(answer), file=answers, flush=True)
    return 0
