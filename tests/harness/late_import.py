"""Run as a script: jaten is imported in the middle of a program, which then uses the device.

`python tests/harness/late_import.py` names the places; with one of them it imports jaten there.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.autograd import forward_ad


def _import() -> None:
    import jaten_ops  # noqa: F401, PLC0415  # what is tested


def _on_cpu() -> None:
    x = torch.ones(3, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


def _use() -> None:
    """Backward passes on the device, eagerly and compiled, and through both devices."""
    x = torch.arange(3.0, device="jax", requires_grad=True)
    y = torch.ones(3, requires_grad=True)
    (x * x * y.to("jax")).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 2, 4]
    assert y.grad is not None and y.grad.tolist() == [0, 1, 4]
    torch.compile(lambda x: (x * 3).sum(), backend="jaten")(x).backward()
    assert x.grad.tolist() == [3, 5, 7]
    z = torch.ones(3, requires_grad=True)
    torch.compile(lambda z: (z * z).sum(), backend="jaten")(z).backward()
    assert z.grad is not None and z.grad.tolist() == [2, 2, 2]
    _on_cpu()


def after_backward() -> None:
    _on_cpu()
    _import()
    _use()


def after_compiling() -> None:
    compiled = torch.compile(lambda x: (x * x).sum(), backend="aot_eager")
    compiled(torch.ones(2, requires_grad=True)).backward()
    _import()
    _use()
    compiled(torch.ones(3, requires_grad=True)).backward()


def in_threads() -> None:
    """Backward passes in a pool whose threads have run backward before, in all of them at once."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: _on_cpu(), range(4)))
        barrier = threading.Barrier(4)
        list(pool.map(lambda _: (barrier.wait(), _import()), range(4)))
        x = torch.ones(3, device="jax", requires_grad=True)
        list(pool.map(lambda _: (x * x).sum().backward(), range(8)))
        assert x.grad is not None and x.grad.tolist() == [16, 16, 16]
    _use()


def beside_a_thread() -> None:
    """Another thread computes on the CPU all the while, and never sees the device as the process's accelerator."""
    is_done, accelerators = threading.Event(), set()

    def compute() -> None:
        while not is_done.is_set():
            accelerators.add(torch.accelerator.current_accelerator())
            _on_cpu()

    with ThreadPoolExecutor(1) as pool:
        computing = pool.submit(compute)
        _import()
        is_done.set()
        computing.result()
    assert accelerators == {None}
    _use()


def in_a_forward_mode_level() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.full((2,), 3.0))
        _import()
        on_device = forward_ad.make_dual(torch.ones(2, device="jax"), torch.full((2,), 3.0, device="jax"))
        for x in (dual, on_device):
            assert forward_ad.unpack_dual(x * x).tangent.tolist() == [6, 6]
    _use()


def in_a_hook() -> None:
    x = torch.ones(3, requires_grad=True)

    def hook(_: torch.Tensor) -> None:
        _import()
        with torch.enable_grad():  # which a hook is called without
            _use()

    x.register_hook(hook)
    (x * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]
    _use()


def after_a_fork() -> None:
    _on_cpu()
    child = os.fork()
    if not child:
        status = 1
        try:
            _import()
            _use()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    _import()
    _use()


PLACES: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        after_backward,
        after_compiling,
        in_threads,
        beside_a_thread,
        in_a_forward_mode_level,
        in_a_hook,
        after_a_fork,
    )
}

if __name__ == "__main__":
    print(*PLACES) if len(sys.argv) == 1 else PLACES[sys.argv[1]]()
