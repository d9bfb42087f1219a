"""Checks of ops against ATen on PyTorch's own samples, which `tests/test_ops.py` and `tests/sweep.py` run.

A check takes the name of an OpInfo (or an overload), a dtype, and the number of samples. It returns its findings; it
raises only if PyTorch's own samples or ATen fail.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
import torch.autograd.forward_ad as forward_ad
from torch.testing._internal.optests.generate_tests import DEFAULT_TEST_UTILS
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from jaten_ops import registry

from . import interpreted
from .comparison import assert_fake, assert_near, in_float64
from .recorded import Call, op_named, recorded_calls
from .replay import DEPENDS_ON_VALUES, OP_INFOS, Replay, describe, describe_call, differentiable, replay_opinfo, samples

# The vectors of a decomposition are determined up to sign or phase, and so are their gradients; test_decomposition
# tests functions of them that are unique.
FREE = frozenset({"_linalg_svd", "_linalg_eigh", "linalg_eig", "geqrf"})

# ATen's messages for missing derivatives; the last one is for the tangent of lift_fresh
_NO_DERIVATIVE = (
    *("not implemented", "not supported", "not differentiable", "does not support", "not yet supported"),
    "is_inplace_op INTERNAL ASSERT FAILED",
    "are out of bounds for storage",  # reads memory around its operand, which a recorded call does not have
)


@dataclass
class Found:
    """The findings of a check: the number of calls compared, those that differ, or the reason why it compared none."""

    compared: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: str = ""
    missing: list[str] = field(default_factory=list)

    def need(self, reason: str) -> Found:
        """These findings, marked as skipped if nothing was compared, for the noted reason or else for this one."""
        self.skipped = "" if self.compared else self.skipped or reason
        return self


def values(name: str, dtype: torch.dtype, most: int, *, ignored: Container[str] = ()) -> Found:
    """Results and fakes of each ATen call that the samples reach, forward and backward, compared with jaten's.

    Calls of the overloads in `ignored` are left out.
    """
    mode = Replay(lambda overload: overload not in ignored, check_fakes=True)
    with interpreted.compared():
        replay_opinfo(name, dtype, mode, most)
    return _of_replay(mode)


def padded(name: str, dtype: torch.dtype, most: int, *, ignored: Container[str] = ()) -> Found:
    """As `values`, with programs for larger arrays wherever there are some."""
    mode = Replay(lambda overload: overload not in ignored)
    with interpreted.padded() as names:
        replay_opinfo(name, dtype, mode, most)
    found = _of_replay(mode)
    found.compared = len(names)
    return found.need("no call has a program for larger arrays")


def _of_replay(mode: Replay) -> Found:
    found = Found(missing=sorted(o for o in mode.missing if o in registry.SPECS))
    for outcome in mode.outcomes.values():
        found.compared += outcome.passed + len(outcome.failures or [])
        found.failures += outcome.failures or []
    return found.need("no overload with a kernel is reached")


def _with_leaves(call: Call, make: Callable[[torch.Tensor], torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments, with `make` applied to each differentiable tensor."""
    spec = registry.SPECS[call.overload]

    def leaf(t: torch.Tensor) -> torch.Tensor:
        t = t.detach().clone()
        return make(t) if t.is_floating_point() or t.is_complex() else t

    def leaves(name: str, value: Any) -> Any:
        return tree_map_only(torch.Tensor, leaf, value) if name in spec.differentiable else value

    args = [leaves(a.name, v) for a, v in zip(spec.arguments, call.args, strict=False)]
    return args, {name: leaves(name, v) for name, v in call.kwargs.items()}


def _random_like(tensors: Iterable[torch.Tensor], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, dtype=t.dtype, generator=generator).to(t.device) for t in tensors]


Derivatives = list[torch.Tensor | None]


def _with_gradients(call: Call, op: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The leaves of a call, and the results that depend on them."""
    leaves: list[torch.Tensor] = []

    def make(t: torch.Tensor) -> torch.Tensor:
        leaves.append(t.requires_grad_())
        return t

    args, kwargs = _with_leaves(call, make)
    results = tree_flatten(op(*args, **kwargs))[0]
    return leaves, [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]


def first_order(call: Call, op: Any) -> Derivatives:
    """Gradients of an op's differentiable arguments, for random gradients of its results."""
    leaves, results = _with_gradients(call, op)
    if not results or not leaves:
        return []
    return list(torch.autograd.grad(results, leaves, _random_like(results, 1), allow_unused=True))


def second_order(call: Call, op: Any) -> Derivatives:
    """Second-order gradients, by an op's arguments and by the gradients of its results, for random gradients."""
    leaves, results = _with_gradients(call, op)
    if not results or not leaves:
        return []
    cotangents = [t.requires_grad_() for t in _random_like(results, 1)]
    first = torch.autograd.grad(results, leaves, cotangents, allow_unused=True, create_graph=True)
    by = [*leaves, *cotangents]
    # one gradient at a time: a gradient that ATen does not have may exist in jaten
    seconds: Derivatives = []
    for i, gradient in enumerate(first):
        if gradient is None or not gradient.requires_grad:
            seconds += [None] * len(by)
        else:
            cotangent = _random_like([gradient], 2 + i)
            seconds += torch.autograd.grad([gradient], by, cotangent, allow_unused=True, retain_graph=True)
    return seconds


def forward_mode(call: Call, op: Any) -> Derivatives:
    """Tangents of an op's results, for random tangents of its differentiable arguments."""
    seeds = iter(range(1, 1000))
    with forward_ad.dual_level():
        args, kwargs = _with_leaves(call, lambda t: forward_ad.make_dual(t, _random_like([t], next(seeds))[0]))
        results = tree_flatten(op(*args, **kwargs))[0]
        return [forward_ad.unpack_dual(r).tangent for r in results if isinstance(r, torch.Tensor)]


def assert_same_derivatives(got: Derivatives, expected: Derivatives) -> None:
    """Derivatives with zeros in place of absent ones."""
    assert len(got) == len(expected), f"got {len(got)} derivatives, expected {len(expected)}"
    pairs = [(g, e) for g, e in zip(got, expected, strict=True) if g is not None or e is not None]
    for g, e in pairs:
        zeros = torch.zeros_like(g if g is not None else e)
        torch.testing.assert_close(zeros if g is None else g, zeros if e is None else e, equal_nan=True)


def _derivatives(
    name: str, dtype: torch.dtype, most: int, of: Callable[[Call, Any], Derivatives], ignored: Container[str] = ()
) -> Found:
    found = Found()
    for call in recorded_calls(name, dtype, most, ignored=ignored):
        spec = registry.SPECS[call.overload]
        if call.overload in FREE:
            found.skipped = f"{call.overload} is free in sign or phase; test_decomposition has it"
        if not spec.differentiable or spec.random or call.overload in FREE:
            continue
        try:
            expected = of(call, call.aten)
        except (RuntimeError, NotImplementedError) as error:
            if not any(says in str(error) for says in _NO_DERIVATIVE):
                raise
            found.skipped = f"ATen has no such derivative: {str(error).splitlines()[0]}"
            continue
        try:
            assert_same_derivatives(of(call, op_named(call.overload)), expected)
            found.compared += any(e is not None for e in expected)
        except Exception as error:
            found.compared += 1
            found.failures.append(describe(error, str(call)))
    return found.need("no differentiable call is reached")


def gradients(name: str, dtype: torch.dtype, most: int, *, ignored: Container[str] = ()) -> Found:
    """The gradients of direct calls, but for those of the overloads in `ignored`."""
    return _derivatives(name, dtype, most, first_order, ignored)


def second(name: str, dtype: torch.dtype, most: int) -> Found:
    """The second-order gradients of direct calls."""
    return _derivatives(name, dtype, most, second_order)


def jvp(name: str, dtype: torch.dtype, most: int) -> Found:
    """The forward-mode derivatives of direct calls."""
    return _derivatives(name, dtype, most, forward_mode)


def _within_domain(call: Call) -> Call:
    """A call, with absolute values if its arguments are outside the op's domain: in opcheck NaN is unequal to NaN."""
    results = tree_flatten(call.aten(*call.args, **call.kwargs))[0]
    if all(r.isfinite().all() for r in results if isinstance(r, torch.Tensor)):
        return call
    absolute = tree_map_only(torch.Tensor, lambda t: t.abs() if t.is_floating_point() else t, (call.args, call.kwargs))
    return Call(call.overload, call.aten, *absolute)


def _gapped(t: torch.Tensor) -> torch.Tensor:
    """The same values with a gap after each."""
    return torch.stack([t, torch.zeros_like(t)], -1)[..., 0]


def _permuted(t: torch.Tensor) -> torch.Tensor:
    """The same values, dense, with the dimensions in reverse order in memory."""
    backwards = tuple(reversed(range(t.dim())))
    return t.permute(backwards).contiguous().permute(backwards)


def _lazy(t: torch.Tensor) -> torch.Tensor:
    """The same values, lazily conjugated or negated."""
    if t.is_complex():
        return t.conj().resolve_conj().conj()
    return torch._neg_view(-t) if t.is_floating_point() else t


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gapped": _gapped,
    "permuted": _permuted,
    "lazy": _lazy,
    "offset": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
    "on jax": lambda t: t.to("jax"),
}
# The results of these depend on the layout of their operand.
_OF_MEMORY = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter", "set.source_Tensor", "view.dtype"})


def layouts(overload: str, name: str, dtype: torch.dtype, most: int) -> Found:
    """Calls with operands in other layouts, and on the device jax: equal results, and strides as in the fake."""
    for call in recorded_calls(name, dtype, most):
        if call.overload != overload or overload in _OF_MEMORY:
            continue
        op, found = op_named(overload), Found(1)
        torch.manual_seed(0)
        expected = op(*call.args, **call.kwargs)
        for layout, change in LAYOUTS.items():
            args, kwargs = tree_map_only(torch.Tensor, lambda t, c=change: c(t.clone()), (call.args, call.kwargs))
            try:
                if layout != "on jax":
                    call.aten(*args, **kwargs)  # some, such as view, do not support other layouts
            except RuntimeError:
                continue
            torch.manual_seed(0)
            try:
                got = op(*args, **kwargs)
                got = tree_map_only(torch.Tensor, torch.Tensor.cpu, got)
                torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
                if layout != "on jax" and not registry.SPECS[overload].tags & DEPENDS_ON_VALUES:
                    assert_fake(op, got, args, kwargs)
            except Exception as error:
                found.failures.append(f"{layout}: {describe(error, str(call))}")
        return found
    return Found(skipped=f"{name} does not reach it")


def _opcheck_tests(overload: str) -> Sequence[str]:
    """opcheck's tests, without those of fakes if the result is a number that depends on values."""
    numbers = "data_dependent_output" in registry.SPECS[overload].tags
    return ("test_schema", "test_autograd_registration") if numbers else DEFAULT_TEST_UTILS


def opcheck(overload: str, name: str, dtype: torch.dtype, most: int, *, backward: bool = False) -> Found:
    """`torch.library.opcheck` on the first call of an overload that the samples of an OpInfo reach, in two layouts."""
    for call in recorded_calls(name, dtype, most, backward=backward):
        if call.overload != overload:
            continue
        found = Found()
        for layout in (torch.Tensor.contiguous, _permuted):
            changed = _opchecked_call(_within_domain(call), layout)
            if changed is None:
                continue
            found.compared += 1
            try:
                torch.library.opcheck(op_named(overload), *changed, test_utils=_opcheck_tests(overload))
            except Exception as error:
                cause = error.__cause__  # the exception of the checked call; the error itself only names the test
                found.failures.append(describe(cause if isinstance(cause, Exception) else error, str(call)))
        return found
    return Found(skipped=f"{name} does not reach it")


def _opchecked_call(
    call: Call, layout: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A call's arguments in a layout, the differentiable ones as leaves; None if ATen does not support it."""
    args, kwargs = _with_leaves(call, lambda t: layout(t).requires_grad_())
    if layout is not torch.Tensor.contiguous:
        try:
            call.aten(*args, **kwargs)
        except RuntimeError:
            return None
    return tuple(args), kwargs


WITH_BACKWARD = (torch.float64, torch.complex128)


def compiled(name: str, dtype: torch.dtype, most: int) -> Found:
    """Each sample as one graph under `torch.compile`, compared with the eager call; in float64 also backward."""
    op, backward = OP_INFOS[name], dtype in WITH_BACKWARD
    unspecified = name.startswith(("empty", "new_empty")) or draws(name, dtype)
    found = Found()
    for sample in samples(name, dtype, backward and differentiable(name, dtype), most):

        def call(*args: Any, **kwargs: Any) -> Any:
            return op.op(*args, **kwargs)

        # the unique parts of vectors that are determined up to sign or phase
        settled = sample.output_process_fn_grad
        arguments = (sample.input, *sample.args)
        leaves = tree_leaves((arguments, sample.kwargs))
        expected = settled(call(sample.input, *sample.args, **sample.kwargs))
        gradients = gradients_of(expected, leaves) if backward else []
        try:
            got = settled(_captured_whole(call, "jaten", sample))
            if not unspecified:
                exact = functools.partial(_settled_in_float64, call, sample)
                assert_near(got, expected, exact)
            if gradients:
                got_gradients = gradients_of(got, leaves)
                if not unspecified:
                    assert_same_derivatives(got_gradients, gradients)
        except Exception as error:
            reason = _not_ours(call, sample)
            if reason:
                found.skipped = reason
                continue
            found.failures.append(describe(error, describe_call(name, arguments, sample.kwargs)))
        found.compared += 1
    return found.need("no samples")


def _settled_in_float64(call: Callable[..., Any], sample: Any) -> Any:
    return sample.output_process_fn_grad(in_float64(call, (sample.input, *sample.args), sample.kwargs))


def gradients_of(result: Any, of: Sequence[Any]) -> Derivatives:
    """Gradients of the leaves, for random gradients of a result; none if ATen has no such derivative."""
    leaves = [t for t in of if isinstance(t, torch.Tensor) and t.requires_grad]
    results = [r for r in tree_leaves(result) if isinstance(r, torch.Tensor) and r.requires_grad]
    if not leaves or not results:
        return []
    try:
        return list(torch.autograd.grad(results, leaves, _random_like(results, 1), allow_unused=True))
    except (RuntimeError, NotImplementedError) as error:
        if any(says in str(error) for says in _NO_DERIVATIVE):
            return []
        raise


def draws(name: str, dtype: torch.dtype) -> bool:
    return any(registry.SPECS[c.overload].random for c in recorded_calls(name, dtype, 1))


def _not_ours(call: Any, sample: Any) -> str:
    """The error of PyTorch's own backend, with ATen's kernels, if it cannot compile a sample as one graph either."""
    try:
        _captured_whole(call, "aot_eager", sample)
    except Exception as error:
        return f"Dynamo cannot capture this: {str(error).splitlines()[0]}"
    return ""


def _captured_whole(call: Any, backend: str, sample: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, backend=backend, fullgraph=True)(sample.input, *sample.args, **sample.kwargs)
