"""Garbage of tests, collected between them alone."""

from __future__ import annotations

import gc
import logging
from typing import Any

import torch
import torch._dynamo


def keep() -> None:
    """Has nothing collected but by `collect`: Dynamo would do it after each compilation."""
    gc.disable()
    torch._dynamo.config.run_gc_after_compile = False


def modes() -> tuple[Any, ...]:
    """The settings of torch in this thread that programs are compiled under, and the level of the log."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    settings = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return *settings, *map(str, keys), logging.getLogger("jaten_ops").level


def collect() -> None:
    """Collects garbage, between tests only, and sets back what that changes of torch's modes.

    What Dynamo leaves of a trace that it gave up, such as one of `torch.func.hessian` over a batch normalization, sets
    the modes of its time when it is collected. In the middle of a later test that would change a graph, or end the
    process. Dynamo itself collects after each compilation, if it is not told otherwise.
    """
    before = modes()
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    inference, grad = torch.inference_mode(torch.is_inference_mode_enabled()), torch.is_grad_enabled()
    with inference, torch.set_grad_enabled(grad), torch._C._ForceDispatchKeyGuard(*keys):
        gc.collect()
    assert modes() == before, "what was collected has changed them"
