"""Gives torch and XLA the same cores."""

import os

import torch


def pin_threads(threads: int) -> None:
    """XLA has no setting for its CPU threads: it makes as many as the process may use cores, when it first runs.

    So this must come before anything is computed. What the process starts, such as Inductor's compiler, inherits it.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)
