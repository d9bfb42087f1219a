"""The one factory of `autograd.Function` classes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from jaten_ops.schema import OpSpec
from jaten_ops.tracing import opaque

_NOTHING = contextlib.nullcontext()


class _Modes:
    """The differentiation modes, reverse and forward, in which an op was called.

    torch switches both modes off while it calls the methods of an `autograd.Function`. A transform of torch.func is a
    level of its own: the level around it records the same op again, in the modes that the program set.
    """

    __slots__ = ("_backward", "_forward")

    def __init__(self) -> None:
        self._backward, self._forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        with torch.set_grad_enabled(self._backward), forward_ad._set_fwd_grad_enabled(self._forward):
            yield


class Derivative(Protocol):
    """The derivative of an op, at the values of its arguments in schema order.

    `mask` selects among the differentiable arguments; an argument that is a list of tensors stands for all of them.
    """

    needs_results: bool

    def pull_back(
        self, grads: Sequence[torch.Tensor], values: list[Any], results: Sequence[Any], mask: list[bool]
    ) -> Sequence[Any]:
        """The gradients of the selected arguments, for gradients of the differentiable results."""

    def push_forward(
        self, tangents: Sequence[torch.Tensor], values: list[Any], results: Sequence[Any], mask: list[bool]
    ) -> Sequence[Any]:
        """The tangents of the differentiable results, for tangents of the selected arguments."""


def _needs_grad(values: Sequence[Any], positions: Sequence[int]) -> bool:
    for i in positions:
        value = values[i]
        if value is None:
            continue
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif any(t is not None and t.requires_grad for t in value):
            return True
    return False


class _Call:
    """The values of a call without its tensors, which `autograd.Function` must see one by one."""

    def __init__(self, values: Sequence[Any], positions: Sequence[int], modes: _Modes | None = None) -> None:
        self.values = list(values)
        self._modes = modes
        self.tensors: list[torch.Tensor | None] = []
        self.slices: dict[int, slice] = {}  # where the tensors of each argument are among all
        self._lengths: list[int | None] = []
        self._lists: set[int] = set()
        for i in positions:
            value, start = values[i], len(self.tensors)
            if isinstance(value, list | tuple):
                self._lists.add(i)
                self.tensors.extend(value)
            else:
                self.tensors.append(value)
            self.slices[i] = slice(start, len(self.tensors))
            self.values[i] = None

    def take_tensors(self) -> list[torch.Tensor | None]:
        tensors, self.tensors = self.tensors, []
        return tensors

    def in_its_modes(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the outer levels record as they did where the op was called."""
        return _NOTHING if self._modes is None else self._modes.restored()

    def at_its_level(self, tensors: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Tensors without the tangents of their own level, which would otherwise be pushed forward twice."""
        if self._modes is None:
            return tensors
        # what `forward_ad.unpack_dual` calls at its level, which in a graph that is replayed it does not know
        return [None if t is None else torch._VF._unpack_dual(t, level=0)[0] for t in tensors]

    def restore(self, tensors: Sequence[torch.Tensor | None]) -> list[Any]:
        values = list(self.values)
        for i, where in self.slices.items():
            values[i] = list(tensors[where]) if i in self._lists else tensors[where.start]
        return values

    def taken_apart(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """Results with those in lists one by one, as `autograd.Function` must see them."""
        self._lengths = [len(r) if isinstance(r, list | tuple) else None for r in results]
        return tuple([t for r in results for t in (r if isinstance(r, list | tuple) else (r,))])

    def put_together(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        """The results in their lists."""
        each = iter(flat)
        return tuple([next(each) if n is None else list(itertools.islice(each, n)) for n in self._lengths])


def make_function(
    spec: OpSpec, call: Callable[[Sequence[Any]], Any], derivative: Derivative
) -> type[_SingleLevelFunction]:
    """The `autograd.Function` of one op. Its `apply` takes a `_Call`, then the tensors of it."""
    methods = *_forward_methods(spec, call, derivative), *_derivative_methods(spec, derivative)
    # autograd calls them from C++, also between the graphs of a program, where Dynamo would compile what it sees
    body = {method.__name__: staticmethod(opaque(method)) for method in methods}
    body["_compiled_autograd_key"] = staticmethod(torch.autograd.Function._compiled_autograd_key)
    # `Function` itself hands over to torch.func, whose dispatch has brought the call here already
    return type(f"{spec.packet}_{spec.overload.partition('.')[2] or 'default'}", (_SingleLevelFunction,), body)


def _has_lists(spec: OpSpec) -> bool:
    """True if an op returns lists of tensors among other results."""
    return len(spec.returns) > 1 and "Tensor[]" in spec.returns


def _forward_methods(
    spec: OpSpec, call: Callable[[Sequence[Any]], Any], derivative: Derivative
) -> tuple[Callable[..., Any], ...]:
    """The methods `forward` and `setup_context`: functions, since compiled autograd takes no bound methods."""

    def is_differentiable(i: int, result: torch.Tensor) -> bool:
        return i not in spec.nondifferentiable_outputs and (result.is_floating_point() or result.is_complex())

    def forward(made: _Call, *tensors: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), made.in_its_modes():
            results = call(made.restore(tensors))
        if _has_lists(spec):
            return made.taken_apart(results)
        return tuple(results) if isinstance(results, list) else results

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.made, *tensors = inputs
        flat = output if isinstance(output, tuple) else (output,)
        results = {i: r for i, r in enumerate(flat) if isinstance(r, torch.Tensor)}
        ctx.numbers = {i: r for i, r in enumerate(flat) if i not in results}  # lengths, and results that are absent
        ctx.count, ctx.inputs = len(flat), len(tensors)
        ctx.differentiable = [i for i, r in results.items() if is_differentiable(i, r)]
        ctx.mark_non_differentiable(*(r for i, r in results.items() if i not in ctx.differentiable))
        ctx.save_for_backward(*tensors, *(map(results.get, range(len(flat))) if derivative.needs_results else ()))
        ctx.save_for_forward(*tensors, *map(results.get, range(len(flat))))

    return forward, setup_context


def _derivative_methods(spec: OpSpec, derivative: Derivative) -> tuple[Callable[..., Any], ...]:
    """The methods `backward` and `jvp`."""
    names = [a.name for a in spec.arguments]
    diff_positions = [names.index(n) for n in spec.differentiable]
    returns_many = spec.returns == ("Tensor[]",) or len(spec.returns) > 1

    def restored(ctx: Any, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = [ctx.numbers.get(i, r) for i, r in enumerate(tensors[ctx.inputs :])]
        return ctx.made.restore(tensors[: ctx.inputs]), results

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        values, results = restored(ctx, ctx.saved_tensors)
        needs = ctx.needs_input_grad[1:]
        slices = [ctx.made.slices[i] for i in diff_positions]
        mask = [any(needs[where]) for where in slices]
        got = iter(derivative.pull_back([grads[i] for i in ctx.differentiable], values, results, mask))
        out: list[Any] = [None] * (1 + ctx.inputs)
        for on, where in zip(mask, slices, strict=True):
            if on:
                for at in range(where.start, where.stop):
                    out[1 + at] = next(got)
        return tuple(out)

    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        if not spec.differentiable and ctx.differentiable and any(t is not None for t in tangents):
            raise NotImplementedError(f"derivative for {spec.name} is not implemented")  # as ATen says
        with ctx.made.in_its_modes():
            return push_forward(ctx, tangents)

    def push_forward(ctx: Any, tangents: Sequence[Any]) -> Any:
        primals = ctx.made.at_its_level(ctx.saved_tensors)
        values, results = restored(ctx, primals)
        slices = [ctx.made.slices[i] for i in diff_positions]
        mask = [any(t is not None for t in tangents[where]) for where in slices]
        wanted = [  # an element of a list that is absent has none
            torch.zeros_like(primals[at]) if tangents[at] is None and primals[at] is not None else tangents[at]
            for on, where in zip(mask, slices, strict=True)
            if on
            for at in range(where.start, where.stop)
        ]
        out: list[Any] = [None] * ctx.count
        if any(mask) and ctx.differentiable:
            pushed = derivative.push_forward(wanted, values, results, mask)
            for i, tangent in zip(ctx.differentiable, pushed, strict=True):
                out[i] = tangent
        return tuple(out) if returns_many else out[0]

    return backward, jvp


def leaf_like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros that require a gradient, also where torch.func does not allow programs to ask for one."""
    if not torch._C._are_functorch_transforms_active():
        return torch.zeros_like(tensor, requires_grad=True)
    before = torch._C._functorch.get_inplace_requires_grad_allowed()
    torch._C._functorch.set_inplace_requires_grad_allowed(True)
    try:
        return torch.zeros_like(tensor).requires_grad_()
    finally:
        torch._C._functorch.set_inplace_requires_grad_allowed(before)


def is_recorded(values: Iterable[Any]) -> bool:
    """True if autograd, or a transform of torch.func around, may differentiate what is computed from the values."""
    if not torch.is_grad_enabled():
        return False
    requires = any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
    return requires or torch._C._are_functorch_transforms_active()


def is_transformed() -> bool:
    """True in forward-mode differentiation or in a transform of torch.func; the tensors themselves do not tell."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def make_autograd_kernel(
    spec: OpSpec,
    bind: Callable[[Sequence[Any], dict[str, Any]], list[Any]],
    call: Callable[[Sequence[Any]], Any],
    make_derivative: Callable[[], Derivative],
    recorded: Callable[[Sequence[Any]], Any] | None = None,
    kept: Callable[[list[Any]], list[Any]] | None = None,
) -> Callable[..., Any]:
    """The op's kernel for the Autograd dispatch key.

    Args:
        spec: the op.
        bind: turns a call's arguments into values in schema order.
        call: the op itself, on values in schema order.
        make_derivative: makes its derivative, when it is first needed.
        recorded: another op, with gradients of its own, that is called where this one would be differentiated.
        kept: gives the values that are kept for the derivative, in place of a call's.
    """
    names = [a.name for a in spec.arguments]
    tensor_positions = [i for i, a in enumerate(spec.arguments) if a.is_tensor]
    # without a derivative, a gradient by any tensor is an error, when it is asked for
    diff_positions = [names.index(n) for n in spec.differentiable] or tensor_positions
    apply: Callable[..., Any] | None = None
    returns_list, lists_in_results = spec.returns == ("Tensor[]",), _has_lists(spec)

    def autograd_kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal apply
        values = bind(args, kwargs)
        if not (torch.is_grad_enabled() and _needs_grad(values, diff_positions)) and not is_transformed():
            with torch._C._AutoDispatchBelowAutograd():
                return call(values)
        if recorded is not None:
            return recorded(values)
        if kept is not None:
            values = kept(values)
        if apply is None:
            apply = make_function(spec, call, make_derivative()).apply  # type: ignore[attr-defined]  # not in its stubs
        if torch._C._are_functorch_transforms_active():
            made = _Call(values, tensor_positions, _Modes())
            with enable_single_level_autograd_function():
                results = apply(made, *made.take_tensors())
        else:
            made = _Call(values, tensor_positions)
            results = apply(made, *made.take_tensors())
        if lists_in_results:
            return made.put_together(results)
        return list(results) if returns_list else results

    return autograd_kernel
