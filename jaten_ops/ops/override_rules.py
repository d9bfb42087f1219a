"""Overrides of operators: which one takes a call, and the operator that runs in its place.

Each pair of a kernel and a gradient is an operator of its own in `torch.ops.jaten_override`, which is registered as a
user's: so it is one node above autograd wherever PyTorch differentiates, has rules for transforms, and its kernel,
traces and executables are nobody else's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .. import autograd, meta, registry
from ..errors import InvalidSchemaError, UnsupportedInputError
from ..registry import active_overrides, parameters
from ..schema import OpSpec
from . import define
from .described import described
from .executor import Executor, Signature
from .namespace import LOCK
from .override_parts import Wrapped, is_wrapper, on_parts, structure_of
from .override_targets import OF_FUNCTIONS, operator

_log = logging.getLogger("jaten_ops.overrides")

NAMESPACE = "jaten_override"
_TAGS = frozenset({"pt2_compliant_tag"})
_numbers = itertools.count()

Gradient = Callable[[list[Any], list[Any], list[Any]], Mapping[str, Any]]

_OPERATORS: dict[Any, tuple[Callable[..., Any], Any]] = {}
"""Functions that take calls, by target, kernel and gradient. Equal rules share an operator, which is there for good."""


def _shared(key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    found = _OPERATORS.get(key)
    if found is None:
        with LOCK:
            if (found := _OPERATORS.get(key)) is None:
                found = _OPERATORS[key] = make(), make  # which has the functions, so that no other gets their identity
    return found[0]


def _identity(fn: Callable[..., Any] | None) -> Any:
    return (id(fn.__self__), id(fn.__func__)) if inspect.ismethod(fn) else id(fn)


class OverrideRule:
    """A kernel, a gradient, or both, for the calls of an overload that meet a condition.

    Args:
        spec: the overload.
        kernel, gradient, when, static, residuals: as `jaten_ops.override` takes them.
        own: makes the entry of what runs without a kernel.
        where: the line that made it.

    Raises:
        InvalidSchemaError: one of the functions cannot be called as it will be.
    """

    def __init__(
        self,
        spec: OpSpec,
        kernel: Callable[..., Any] | None,
        gradient: Gradient | None,
        when: Callable[..., Any] | None,
        static: frozenset[str],
        residuals: int,
        own: Callable[[], registry.Entry],
        where: str,
    ) -> None:
        self.spec, self.where, self.residuals = spec, where, residuals
        self.kernel, self.gradient = kernel, gradient
        self._when, self._static, self._own = when, static, own
        self._gradient_key = spec.name, _identity(gradient)
        self._kernel_key = _identity(kernel), static, residuals
        self._told: set[str] = set()
        _check(self)

    @property
    def target(self) -> str:
        return self.spec.overload if self.spec.namespace == "jaten" else self.spec.name

    @property
    def is_of_function(self) -> bool:
        """True if the target is a function of `torch.nn.functional` that is no operator of ATen."""
        return self.spec.namespace == OF_FUNCTIONS

    @property
    def when(self) -> Callable[..., Any] | None:
        return self._when

    def matches(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """True if it is for a call with these arguments, whose tensors are `described`."""
        return self._when is None or bool(self._when(*args, **kwargs))

    def entry(self) -> registry.Entry:
        """The kernel as the registry has them; without one, what the target runs itself."""
        return self._own() if self.kernel is None else registry.Entry(self.kernel, self.where, self._static)

    def call_with(self, of: OverrideRule | None) -> Callable[..., Any]:
        """The function of tensors that takes a call: this gradient, and the kernel of a rule, or the target's own."""
        by = of or self
        return _shared((self._gradient_key, by._kernel_key, None), lambda: _made(self, by))

    def call_on_parts(self, of: OverrideRule | None, structure: Wrapped) -> Callable[..., Any]:
        """The same for arguments of which some are tensors of a subclass that wraps others."""
        by = of or self
        return _shared(
            (self._gradient_key, by._kernel_key, repr(structure)),
            lambda: on_parts(self.spec, structure, NAMESPACE, by.entry(), self.gradient, f"the gradient of {self!r}"),
        )

    def tell(self, args: Sequence[Any], kwargs: Mapping[str, Any], kernel: OverrideRule | None) -> None:
        """Logs that it takes a call; once for each kind of arguments, unless everything is logged."""
        if not _log.isEnabledFor(logging.INFO):
            return
        given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        if given in self._told:
            _log.debug("%s(%s): as before", self.target, given)
            return
        self._told.add(given)
        parts = [f"the kernel of the override at {kernel.where}" if kernel is not None else "its own kernel"]
        if self.gradient is not None:
            parts.append(f"the gradient of the override at {self.where}")
        _log.info("%s(%s): %s", self.target, given, ", ".join(parts))


def _check(rule: OverrideRule) -> None:
    if rule.kernel is not None:
        # no PRNG key, although some of these draw random numbers in other calls
        parameters.check(dataclasses.replace(rule.spec, tags=_TAGS), rule.kernel)
    names = [a.name for a in rule.spec.arguments]
    for name in rule._static - set(names):
        raise InvalidSchemaError(
            f"aten::{rule.spec.schema}", f"static names {name!r}", f"name arguments of the schema: {', '.join(names)}"
        )
    positional = sum(not a.kwarg_only for a in rule.spec.arguments)
    keywords = dict.fromkeys(names[positional:])
    for what, fn, args, kwargs in (
        ("gradient", rule.gradient, ("grads", "args", "results"), {}),
        ("when", rule.when, names[:positional], keywords),
    ):
        if fn is None:
            continue
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError):  # a C function
            continue
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            written = ", ".join([*args, *["*"][: len(kwargs)], *kwargs])
            raise InvalidSchemaError(
                f"aten::{rule.spec.schema}", f"its {what} takes {signature}: {error}", f"write def {what}({written})"
            ) from None


# The choice


def override_for(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The function that takes a call of an overload in place of ATen's operator; None if no override does.

    The innermost whose condition holds does. If it has no kernel, the next one further out that has one gives it.
    """
    rules = active_overrides.of_target(target)
    if not rules:
        return None
    first: Any = rules[0]
    signature = Signature(first.spec)
    values = signature.bind(with_tensors(first.spec, args), dict(kwargs))
    if first.spec.draws(values):
        return None  # an override has no random numbers
    seen, named = signature.split([described(v) for v in values])
    found: Any = None
    rule: Any
    for rule in rules:
        if (found is None or rule.kernel is not None) and rule.matches(seen, named):
            found = found or rule
            if rule.kernel is not None:
                break
    else:
        if found is None:
            _log.debug("%s: no override is for %s, %s", target, seen, named)
            return None
        rule = None
    found.tell(seen, named, rule)
    if any(map(is_wrapper, values)):
        return found.call_on_parts(rule, structure_of(values))  # type: ignore[no-any-return]  # rules are a protocol
    return functools.partial(_with_tensors, first.spec, found.call_with(rule))


_FLOAT32_INSIDE = frozenset({"cross_entropy_loss", "nll_loss_nd"})  # autocast's policy of what they are made of


def _with_tensors(spec: OpSpec, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call with tensors in place of numbers, as in `x * 2`, and cast where autocast casts only ATen's parts."""
    args = with_tensors(spec, args)
    if spec.overload in _FLOAT32_INSIDE and torch.is_autocast_enabled(args[0].device.type):
        args = tuple([a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args])
    return run(*args, **kwargs)


def with_tensors(spec: OpSpec, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with a tensor in place of each number where the schema has one; it does not change the dtype."""
    numbers = [i for i, a in enumerate(args) if isinstance(a, int | float | complex) and spec.arguments[i].is_tensor]
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if not numbers or not tensors:
        return tuple(args)

    def tensor_of(number: Any) -> torch.Tensor:
        dtype = functools.reduce(torch.promote_types, [torch.result_type(t, number) for t in tensors])
        return torch.tensor(number, dtype=dtype, device=tensors[0].device)

    return tuple([tensor_of(a) if i in numbers else a for i, a in enumerate(args)])


# The operator


def _made(rule: OverrideRule, of: OverrideRule) -> Callable[..., Any]:
    """Defines the operator; returns it as a function with the target's results."""
    target, count = rule.spec, of.residuals
    name = f"{target.overload.replace('.', '_')}_{next(_numbers)}"
    tensors = tuple([a.name for a in target.arguments if a.is_tensor])
    known = target.kind == "functional" and (target.differentiable or rule.gradient is None)
    constant = [*target.nondifferentiable_outputs, *range(len(target.returns), len(target.returns) + count)]
    returns = ", ".join([*target.returns, *["Tensor"] * count])
    spec = OpSpec(
        schema=f"{name}({_arguments(target)}) -> {returns if len(target.returns) + count == 1 else f'({returns})'}",
        differentiable=target.differentiable if known else tensors,
        nondifferentiable_outputs=tuple(constant),
        tags=_TAGS,
        namespace=NAMESPACE,
    )
    entry = of.entry()
    registry.add_op(spec, entry)
    registry.FAKES[spec.name] = registry.Entry(_fake(spec, entry, target, count), rule.where)
    if rule.gradient is not None:
        backward = _backward(spec, rule, entry.static)
        registry.GRADIENTS[spec.name] = registry.Entry(_formula(spec, backward), rule.where)
    define.register_op(spec, overrides=True)
    if spec.differentiable and rule.gradient is None:
        define.define_vjp(spec)
    op = define.op_of(spec)
    if not count:
        return op
    kept = len(target.returns)

    def without_residuals(*args: Any, **kwargs: Any) -> Any:
        results = op(*args, **kwargs)
        return results[0] if kept == 1 else results[:kept]

    return without_residuals


def _arguments(spec: OpSpec) -> str:
    return spec.schema[len(spec.overload) + 1 : spec.schema.rindex(") ->")]


def _fake(spec: OpSpec, entry: registry.Entry, target: OpSpec, residuals: int) -> Callable[..., Any]:
    """ATen's own results, without values, and then what the kernel adds to them."""
    op = operator(target)

    def fake(*args: Any, **kwargs: Any) -> Any:
        with active_overrides.suspended():
            results = op(*args, **kwargs)
        if any(t.device.type == "jax" for t in jax.tree.leaves((args, kwargs)) if isinstance(t, torch.Tensor)):
            results = meta.as_contiguous(results)
        if not residuals:
            return results
        traced = Executor(spec, entry, None).fake(*args, **kwargs)
        given = results if len(target.returns) > 1 else (results,)
        return (*given, *traced[len(given) :])

    return fake


# The gradient


def _backward(spec: OpSpec, rule: OverrideRule, static: frozenset[str]) -> torch._ops.OpOverload:
    """Defines the operator of the gradients: `name_backward(grads, output_mask, results, ...)`."""
    companion = autograd.vjp_spec(spec)
    grads, mask = (a.name for a in companion.arguments[:2])
    results = "results" if "results" not in {a.name for a in spec.arguments} else "results_1"
    own = OpSpec(
        schema=f"{spec.overload}_backward(Tensor[] {grads}, bool[] {mask}, Tensor[] {results}, {_arguments(spec)})"
        " -> Tensor[]",
        differentiable=(grads, results, *spec.differentiable),
        tags=_TAGS,
        namespace=NAMESPACE,
    )
    gradient = rule.gradient
    assert gradient is not None
    taken = parameters.arguments_of_kernel(spec)
    names, keywords = [a.name for a in taken], [a.name for a in taken if a.kwarg_only]
    whose = f"the gradient of override({rule.target!r}) at {rule.where}"

    def kernel(grads: Any, mask: Any, results: Any, /, *args: Any, **kwargs: Any) -> list[Any]:
        values = [*args, *(kwargs[name] for name in keywords)]
        by_name = gradient(list(grads), list(values), list(results))
        if not isinstance(by_name, Mapping) or by_name.keys() - spec.differentiable:
            got = f"a dict with {', '.join(map(repr, by_name))}" if isinstance(by_name, Mapping) else f"{by_name!r}"
            raise UnsupportedInputError(whose, got, f"a dict from {', '.join(spec.differentiable)} to gradients")
        found = []
        for name, on in zip(spec.differentiable, mask, strict=True):
            if on:
                found += _gradients_of(f"{whose} by {name!r}", by_name.get(name), values[names.index(name)])
        return found

    def fake(grads: Any, mask: Any, results: Any, /, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        values = dict(zip([a.name for a in spec.arguments], Signature(spec).bind(args, kwargs), strict=True))
        wanted = [values[n] for n, on in zip(spec.differentiable, mask, strict=True) if on]
        flat = [t for w in wanted for t in (w if isinstance(w, list | tuple) else (w,))]
        return [meta.as_contiguous(t) for t in flat]

    registry.add_op(own, registry.Entry(kernel, rule.where, static))
    registry.FAKES[own.name] = registry.Entry(fake, rule.where)
    define.register_op(own, overrides=True)
    define.define_vjp(own)
    return define.op_of(own)


def _gradients_of(whose: str, given: Any, value: Any) -> list[Any]:
    """The gradients of an argument, one for each array, with its shape and dtype; zeros where none is given."""
    arrays = list(value) if isinstance(value, tuple | list) else [value]
    gradients = list(given) if isinstance(given, tuple | list) else [given] * (len(arrays) if given is None else 1)
    if len(gradients) != len(arrays):
        raise UnsupportedInputError(whose, f"{len(gradients)} gradients", f"{len(arrays)}")
    found = []
    for gradient, array in zip(gradients, arrays, strict=True):
        if gradient is None:
            gradient = jnp.zeros(array.shape, array.dtype)
        elif not isinstance(gradient, jax.Array | np.ndarray | np.generic):
            raise UnsupportedInputError(whose, type(gradient).__name__, "an array")
        if gradient.shape != array.shape or gradient.dtype != array.dtype:
            raise UnsupportedInputError(whose, _kind(gradient), f"{_kind(array)}, as the argument")
        found.append(gradient)
    return found


def _kind(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _formula(spec: OpSpec, backward: torch._ops.OpOverload) -> Callable[..., dict[str, Any]]:
    signature, names = Signature(spec), [a.name for a in spec.arguments]

    def gradient(grads: Any, args: Any, results: Any, wanted: Any) -> dict[str, Any]:
        mask = [name in wanted for name in spec.differentiable]
        given, named = signature.split(args)
        tensors = [r for r in results if isinstance(r, torch.Tensor)]
        found = iter(backward(list(grads), mask, tensors, *given, **named))
        by_name: dict[str, Any] = {}
        for name in wanted:
            value = args[names.index(name)]
            by_name[name] = [next(found) for _ in value] if isinstance(value, list | tuple) else next(found)
        return by_name

    return gradient
