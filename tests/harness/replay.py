"""Replays PyTorch's own samples: every ATen call of an OpInfo, forward and backward, is compared with jaten's op.

`python -m tests.harness.replay [--opinfo add nn.functional.relu] [--overload 'add.*'] [--dtypes float32 int64]` prints
what differs; the tests use the same functions.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import itertools
import sys
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import jaten_ops  # noqa: F401  # registers torch.ops.jaten
from jaten_ops import registry

from .comparison import assert_fake, assert_same, in_float64

# For each sample OpInfos look through all modules, for each frame of the stack, for a TestCase: a twelfth of a second.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

OP_INFOS = {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


@dataclass
class Outcome:
    """The results of the calls of one overload."""

    passed: int = 0
    failures: list[str] | None = None


def jaten_overload(func: torch._ops.OpOverload) -> str | None:
    """The name of an ATen overload if jaten has a kernel for it."""
    name = func._schema.name
    if not name.startswith("aten::"):
        return None
    overload = name.removeprefix("aten::") + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    return overload if overload in registry.KERNELS else None


def op_named(overload: str) -> torch._ops.OpOverload:
    packet, _, suffix = overload.partition(".")
    return getattr(getattr(torch.ops.jaten, packet), suffix or "default")


DEPENDS_ON_VALUES = {"dynamic_output_shape", "data_dependent_output"}


def callable_overload(overload: str, args: Any) -> str | None:
    """The jaten overload for these arguments.

    ATen's operators accept a number in place of a tensor, as in `x * 2`; for others there may be a Scalar overload.
    """
    slots = (a for a in registry.SPECS[overload].arguments if not a.kwarg_only)
    numbers = [isinstance(v, int | float | complex) for a, v in zip(slots, args, strict=False) if a.type == "Tensor"]
    if not any(numbers):
        return overload
    scalar = overload.replace(".Tensor", ".Scalar")
    return scalar if numbers == [False, True] and scalar in registry.KERNELS else None


def _is_lazy(args: Any) -> bool:
    return any(isinstance(a, torch.Tensor) and a.is_complex() for a in tree_flatten(args)[0])


class Replay(TorchDispatchMode):
    """Runs each ATen call and the jaten op of the same name, and compares the results."""

    def __init__(self, wanted: Callable[[str], bool] = lambda overload: True, *, check_fakes: bool = False) -> None:
        super().__init__()
        self._check_fakes = check_fakes
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.missing: Counter[str] = Counter()
        self._faked: set[str] = set()
        self._wanted = wanted
        self._state = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    def _outside(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """A call without dispatch modes: below a mode, ATen's own compositions ignore lazy conjugation."""
        with torch._C._ForceDispatchKeyGuard(*self._state), torch.no_grad():
            return func(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        overload = jaten_overload(func)
        if overload is None:
            self.missing[str(func).removeprefix("aten.").removesuffix(".default")] += 1
            return func(*args, **kwargs)
        called = callable_overload(overload, args)
        if called is None or not self._wanted(overload):
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        outcome = self.outcomes[overload]
        try:
            outside = functools.partial(self._outside, func)
            expected = outside(*args, **kwargs) if _is_lazy(args) else result
            got = op_named(called)(*args, **kwargs)
            assert_same(overload, got, expected, args, lambda: in_float64(outside, args, kwargs))
            if self._check_fakes and self._is_new_to_fakes(overload, args, kwargs):
                assert_fake(op_named(called), got, args, kwargs)
            outcome.passed += 1
        except Exception as error:
            outcome.failures = outcome.failures or []
            outcome.failures.append(describe(error, describe_call(overload, args, kwargs)))
        return result

    def _is_new_to_fakes(self, overload: str, args: Any, kwargs: Any) -> bool:
        """True if a fake can answer a call, and no call before differed from it only in the values of tensors."""
        call = describe_call(overload, args, kwargs)
        if call in self._faked or registry.SPECS[overload].tags & DEPENDS_ON_VALUES:
            return False
        self._faked.add(call)
        return True


def describe_call(overload: str, args: Any, kwargs: Any) -> str:
    """A call with tensors as dtype, shape and, unless contiguous, strides."""

    def short(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            strides = "" if x.is_contiguous() else f"/{x.stride()}"
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{strides}"
        if isinstance(x, list | tuple):
            return "[" + ", ".join(map(short, x)) + "]"
        return repr(x)

    call = ", ".join([*map(short, args), *(f"{k}={short(v)}" for k, v in kwargs.items())])
    return f"{overload}({call})"


def describe(error: Exception, call: str) -> str:
    """A failure in one paragraph: the call, the error, and the place where it was raised."""
    lines = traceback.format_exception_only(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{call}: {''.join(lines).strip()[:900]} [{place.filename.rsplit('/', 1)[-1]}:{place.lineno}]"


def samples(name: str, dtype: torch.dtype, requires_grad: bool, most: int) -> Iterator[Any]:
    """The first samples of an OpInfo, from a fixed seed."""
    torch.manual_seed(0)
    yield from itertools.islice(OP_INFOS[name].sample_inputs("cpu", dtype, requires_grad=requires_grad), most)


def differentiable(name: str, dtype: torch.dtype) -> bool:
    """True if an OpInfo claims gradients in a dtype."""
    return OP_INFOS[name].supports_autograd and dtype in OP_INFOS[name].supported_backward_dtypes("cpu")


def replay_sample(name: str, sample: Any, backward: bool, mode: TorchDispatchMode) -> None:
    """Runs one sample of an OpInfo, and its backward pass if wanted and possible, under a dispatch mode."""
    with mode:
        results = OP_INFOS[name](sample.input, *sample.args, **sample.kwargs)
    if not backward:
        return
    if sample.output_process_fn_grad is not None:
        results = sample.output_process_fn_grad(results)
    outputs = [r for r in tree_flatten(results)[0] if isinstance(r, torch.Tensor) and r.requires_grad]
    arguments = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    inputs = [t for t in arguments if isinstance(t, torch.Tensor) and t.requires_grad]
    if outputs and inputs:
        grads = [torch.randn_like(o) for o in outputs]
        with mode:
            torch.autograd.grad(outputs, inputs, grads, allow_unused=True)


def replay_opinfo(name: str, dtype: torch.dtype, mode: TorchDispatchMode, most: int = 1000) -> None:
    """Runs the samples of an OpInfo, with their backward passes if there are any, under a dispatch mode."""
    backward = differentiable(name, dtype)
    for sample in samples(name, dtype, backward, most):
        replay_sample(name, sample, backward, mode)


def supported(name: str, dtype: torch.dtype) -> bool:
    return dtype in OP_INFOS[name].supported_dtypes("cpu")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.harness.replay", description=__doc__)
    parser.add_argument("--opinfo", nargs="*", default=["*"], help="patterns of OpInfo names")
    parser.add_argument("--overload", nargs="*", default=["*"], help="patterns of overloads to compare")
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--most", type=int, default=1000, help="samples an OpInfo")
    parser.add_argument("--show", type=int, default=2, help="failures to print for each overload")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [n for n in OP_INFOS if any(fnmatch.fnmatch(n, p) for p in options.opinfo)]
    failed = 0
    missing: Counter[str] = Counter()
    for dtype in (getattr(torch, d) for d in options.dtypes):
        mode = Replay(lambda overload: any(fnmatch.fnmatch(overload, p) for p in options.overload))
        for name in names:
            if supported(name, dtype):
                try:
                    replay_opinfo(name, dtype, mode, options.most)
                except Exception as error:
                    print(f"{name}: the sample itself failed: {type(error).__name__}: {str(error)[:200]}")
        for overload, outcome in sorted(mode.outcomes.items()):
            failures = outcome.failures or []
            failed += len(failures)
            print(f"{dtype} {overload}: {outcome.passed} passed, {len(failures)} failed")
            for failure in failures[: options.show]:
                print("    " + failure.replace("\n", "\n      "))
        missing += mode.missing
    print("without kernel:", " ".join(sorted(missing)))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
