"""Each kernel beside ATen's, warm, one thread: `python -m benchmarks.kernels [--only PATTERN] [--output FILE]`.

Elementwise operators and reductions get tensors of a million elements, the others the shapes of `OTHERS`. Prints a
Markdown table of the ratios of jaten's time to ATen's, the slowest first; what is over 5 is to be explained or mended.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo
from torch.utils._python_dispatch import TorchDispatchMode

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from jaten_ops import registry

from .threads import pin_threads
from .timing import by_turns, ratio

SIDE = 1000
ROUNDS = 9  # turns of each contender


def _matrix(n: int) -> torch.Tensor:
    return torch.rand(n, n) + n * torch.eye(n)


def _indices(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


OTHERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "mm": lambda: (torch.rand(512, 512), torch.rand(512, 512)),
    "bmm": lambda: (torch.rand(16, 128, 128), torch.rand(16, 128, 128)),
    "addmm": lambda: (torch.rand(512), torch.rand(512, 512), torch.rand(512, 512)),
    "convolution": lambda: (
        *(torch.rand(4, 32, 32, 32), torch.rand(32, 32, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ),
    "max_pool2d_with_indices": lambda: (torch.rand(8, 16, 64, 64), [2, 2]),
    "avg_pool2d": lambda: (torch.rand(8, 16, 64, 64), [2, 2]),
    "_adaptive_avg_pool2d": lambda: (torch.rand(8, 16, 64, 64), [7, 7]),
    "upsample_bilinear2d": lambda: (torch.rand(4, 16, 64, 64), [128, 128], False),
    "grid_sampler_2d": lambda: (torch.rand(4, 8, 64, 64), torch.rand(4, 64, 64, 2) * 2 - 1, 0, 0, False),
    "_softmax": lambda: (torch.rand(SIDE, SIDE), -1, False),
    "_log_softmax": lambda: (torch.rand(SIDE, SIDE), -1, False),
    "native_layer_norm": lambda: (torch.rand(SIDE, SIDE), [SIDE], torch.rand(SIDE), torch.rand(SIDE), 1e-5),
    "native_group_norm": lambda: (torch.rand(8, 32, 4096), torch.rand(32), torch.rand(32), 8, 32, 4096, 8, 1e-5),
    "native_batch_norm": lambda: (
        *(torch.rand(8, 32, 64, 64), torch.rand(32), torch.rand(32), torch.rand(32), torch.rand(32)),
        *(False, 0.1, 1e-5),
    ),
    "native_dropout": lambda: (torch.rand(SIDE, SIDE), 0.1, True),
    "cumsum": lambda: (torch.rand(SIDE, SIDE), 1),
    "cumprod": lambda: (torch.rand(SIDE, SIDE), 1),
    "cummax": lambda: (torch.rand(SIDE, SIDE), 1),
    "logcumsumexp": lambda: (torch.rand(SIDE, SIDE), 1),
    "sort": lambda: (torch.rand(SIDE, SIDE),),
    "topk": lambda: (torch.rand(SIDE, SIDE), 10),
    "kthvalue": lambda: (torch.rand(SIDE, SIDE), 10),
    "median.dim": lambda: (torch.rand(SIDE, SIDE), 1),
    "mode": lambda: (_indices(50, 200, SIDE), 1),
    "searchsorted.Tensor": lambda: (torch.rand(SIDE).sort().values, torch.rand(SIDE, SIDE)),
    "bucketize.Tensor": lambda: (torch.rand(SIDE, SIDE), torch.rand(SIDE).sort().values),
    "unique_dim": lambda: (_indices(50, SIDE, 2), 0),
    "_unique2": lambda: (_indices(SIDE, SIDE * 100),),
    "bincount": lambda: (_indices(SIDE, SIDE * SIDE),),
    "histc": lambda: (torch.rand(SIDE * SIDE), 100, 0, 1),
    "gather": lambda: (torch.rand(SIDE, SIDE), 1, _indices(SIDE, SIDE, SIDE)),
    "scatter.src": lambda: (torch.rand(SIDE, SIDE), 1, _indices(SIDE, SIDE, SIDE), torch.rand(SIDE, SIDE)),
    "scatter_add": lambda: (torch.rand(SIDE, SIDE), 1, _indices(SIDE, SIDE, SIDE), torch.rand(SIDE, SIDE)),
    "scatter_reduce.two": lambda: (
        *(torch.rand(SIDE, SIDE), 1, _indices(SIDE, SIDE, SIDE), torch.rand(SIDE, SIDE), "amax"),
    ),
    "index_select": lambda: (torch.rand(SIDE, SIDE), 0, _indices(SIDE, SIDE)),
    "index_add": lambda: (torch.rand(SIDE, SIDE), 0, _indices(SIDE, SIDE), torch.rand(SIDE, SIDE)),
    "index.Tensor": lambda: (torch.rand(SIDE, SIDE), [_indices(SIDE, SIDE)]),
    "index_put": lambda: (torch.rand(SIDE, SIDE), [_indices(SIDE, SIDE)], torch.rand(SIDE, SIDE), True),
    "take": lambda: (torch.rand(SIDE, SIDE), _indices(SIDE * SIDE, SIDE, SIDE)),
    "embedding": lambda: (torch.rand(SIDE, 64), _indices(SIDE, 64, 128)),
    "embedding_dense_backward": lambda: (torch.rand(64, 128, 64), _indices(SIDE, 64, 128), SIDE, -1, False),
    "masked_select": lambda: (torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE) > 0.5),
    "masked_scatter": lambda: (torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE) > 0.5, torch.rand(SIDE, SIDE)),
    "nonzero": lambda: (torch.rand(SIDE, SIDE) > 0.5,),
    "cat": lambda: ([torch.rand(SIDE, 250) for _ in range(4)], 1),
    "roll": lambda: (torch.rand(SIDE, SIDE), [3], [1]),
    "flip": lambda: (torch.rand(SIDE, SIDE), [1]),
    "tril": lambda: (torch.rand(SIDE, SIDE),),
    "constant_pad_nd": lambda: (torch.rand(SIDE, SIDE), [1, 1, 1, 1], 0.0),
    "repeat": lambda: (torch.rand(SIDE, 250), [1, 4]),
    "_cdist_forward": lambda: (torch.rand(500, 32), torch.rand(500, 32), 2.0, None),
    "_fft_r2c": lambda: (torch.rand(SIDE, 1024), [1], 0, True),
    "_fft_c2c": lambda: (torch.rand(SIDE, 1024, dtype=torch.complex64), [1], 0, True),
    "linalg_cholesky_ex": lambda: (_matrix(256) @ _matrix(256).T,),
    "_linalg_svd": lambda: (_matrix(128),),
    "_linalg_eigh": lambda: (_matrix(128) + _matrix(128).T,),
    "linalg_eig": lambda: (_matrix(128),),
    "linalg_qr": lambda: (_matrix(256),),
    "linalg_lu_factor_ex": lambda: (_matrix(256),),
    "linalg_inv_ex": lambda: (_matrix(256),),
    "_linalg_solve_ex": lambda: (_matrix(256), torch.rand(256, 16)),
    "linalg_matrix_exp": lambda: (torch.rand(64, 64),),
    "multinomial": lambda: (torch.rand(100, SIDE), 10, True),
    "bernoulli.p": lambda: (torch.rand(SIDE, SIDE), 0.3),
    "randperm": lambda: (SIDE * 100,),
    "_ctc_loss": lambda: (torch.rand(100, 8, 20).log_softmax(-1), _indices(19, 8, 20) + 1, [100] * 8, [20] * 8),
}


# Why some are more than 5 times as slow as ATen's on a CPU.
REASONS: dict[str, tuple[str, ...]] = {
    "XLA sorts numbers with their positions through a comparator, pair by pair": ("mode", "topk", "sort", "unique_dim"),
    "random keys are sorted, where ATen shuffles in place": ("randperm",),
    "a step for each row of all others, between two transposes": ("cum*",),
    "the series goes on for all elements until the last has converged": ("igamma*",),
    "ATen leaves out the exponential of a vector of positive numbers, as they all are here": ("elu", "celu"),
    "XLA has no vector code for this reduction": ("arg*",),
    "two reductions find the size of the result, a call of their own": ("bincount",),
    "ATen's does not touch the memory; here it is made": ("empty_like",),
    "LAPACK's, called on a copy in column order": ("linalg_*", "_linalg_*"),
}


class _First(TorchDispatchMode):
    """Keeps the first call that is more than a view."""

    call: tuple[Any, Any, Any] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        overload = func.name().removeprefix("aten::")
        if self.call is None and overload in registry.KERNELS and registry.SPECS[overload].kind == "functional":
            self.call = overload, args, kwargs or {}
        return func(*args, **(kwargs or {}))


def _elementwise() -> Iterator[tuple[str, Any, Any]]:
    torch.manual_seed(0)
    x, y = torch.rand(SIDE, SIDE) + 0.5, torch.rand(SIDE, SIDE) + 0.5
    for info in op_db:
        integral = torch.float32 not in info.supported_dtypes("cpu")
        operands = [(x * 20).long(), (y * 20).long()] if integral else [x, y]
        kind = isinstance(info, UnaryUfuncInfo | BinaryUfuncInfo | ReductionOpInfo)
        if not kind or info.name.startswith(("jiterator", "chalf")):
            continue
        first = _First()
        try:
            with first:
                info.op(*operands[: 2 if isinstance(info, BinaryUfuncInfo) else 1])
        except (RuntimeError, TypeError):  # it takes more arguments
            continue
        if first.call is not None:
            yield first.call


def calls() -> dict[str, tuple[Any, Any]]:
    """For each overload the arguments that it is timed with."""
    table = {overload: (args, kwargs) for overload, args, kwargs in _elementwise()}
    return table | {overload: (make(), {}) for overload, make in OTHERS.items()}


def _why(overload: str, ratio: float) -> str:
    if ratio <= 5:
        return ""
    found = (why for why, names in REASONS.items() if any(fnmatchcase(overload, name) for name in names))
    return next(found, "not explained yet")


def _op(namespace: Any, overload: str) -> Any:
    packet, _, suffix = overload.partition(".")
    return getattr(getattr(namespace, packet), suffix or "default")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of overloads")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    pin_threads(1)
    rows = []
    table = {o: call for o, call in calls().items() if fnmatchcase(o, options.only)}
    for done, (overload, (args, kwargs)) in enumerate(table.items(), 1):
        aten, jaten = _op(torch.ops.aten, overload), _op(torch.ops.jaten, overload)
        jobs = {n: lambda op=op, a=args, k=kwargs: op(*a, **k) for n, op in (("ATen", aten), ("jaten", jaten))}
        timings = by_turns(jobs, ROUNDS)
        middle = ratio(timings["jaten"], timings["ATen"]).median
        rows.append((middle, overload, [timing.median for timing in timings.values()]))
        print(f"\r{done} of {len(table)}: {overload:40}", end="", file=sys.stderr)
    rows.sort(reverse=True)
    lines = ["| overload | ATen | jaten | jaten / ATen | why |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| `{o}` | {s[0] * 1e6:.0f} µs | {s[1] * 1e6:.0f} µs | {r:.2f} | {_why(o, r)} |" for r, o, s in rows]
    middle = statistics.median(r for r, _, _ in rows)
    lines += ["", f"{len(rows)} overloads, median {middle:.2f}, over 5: {sum(r > 5 for r, _, _ in rows)}"]
    print("\n" + "\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
