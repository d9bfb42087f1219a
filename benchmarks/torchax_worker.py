"""The process of `torchax.py`: it makes a job, and waits for what it is to do. The parent's turns are its turns.

A question, pickled, is a pair of what is wanted and of how many calls; the answer is a value, seconds or an exception.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import torch
import torchax
from torchax import interop
from torchax.train import make_train_step

from .models import CASES, Case
from .models.case import BETA1, BETA2, DECAY, EPSILON, RATE, torch_loss
from .threads import pin_threads
from .torchax import VALUE


def make_job(case: Case, job: str, dtype: torch.dtype) -> Callable[[], Any]:
    """As torchax's documentation does it: a compiled module, and a jitted step with optax's AdamW."""
    torchax.enable_globally()
    module, inputs, target = case.make(dtype)
    module, inputs = module.to("jax"), [x.to("jax") for x in inputs]
    if job == "training":
        assert target is not None
        return _training(module.train(), inputs, target.to("jax"))
    compiled = torchax.compile(module.eval())

    def infer() -> Any:
        with torch.no_grad():
            output = compiled(*inputs)
        output.jax().block_until_ready()
        return output

    return infer


def _training(module: torch.nn.Module, inputs: list[Any], target: Any) -> Callable[[], Any]:
    def model(weights: Any, buffers: Any, inputs: list[Any]) -> Any:
        return torch.func.functional_call(module, {**weights, **buffers}, tuple(inputs))

    optimizer = optax.adamw(RATE, BETA1, BETA2, EPSILON, weight_decay=DECAY)
    update = make_train_step(model, torch_loss, optimizer)
    update = interop.jax_jit(update, kwargs_for_jax_jit={"donate_argnums": (0, 2)})
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    state = interop.call_jax(optimizer.init, weights)

    def step() -> Any:
        nonlocal weights, state
        loss, weights, state = update(weights, buffers, state, inputs, target)
        jax.block_until_ready(interop.jax_view(weights))
        return loss

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", required=True, choices=CASES)
    parser.add_argument("--job", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    pin_threads(options.threads)
    job = make_job(CASES[options.case], options.job, getattr(torch, options.dtype))
    while True:
        try:
            what, calls = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_answer(job, what, calls), answers)
        answers.flush()


def _answer(job: Callable[[], Any], what: str, calls: int) -> np.ndarray | float | Exception:
    try:
        if what == VALUE:
            return np.asarray(job().jax().astype("float32"))
        start = time.perf_counter()
        for _ in range(calls):
            job()
        return (time.perf_counter() - start) / calls
    except Exception as error:  # the parent says what failed
        return RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
