"""Overrides for tensors of a subclass that wraps others: the kernel gets the tensors inside.

Such a class (quantized, masked, scaled tensors) has `__tensor_flatten__` and a `__torch_dispatch__` of its own, which
knows no operators of overrides. So these run on what is inside, below autograd, which differentiates by the tensors of
the class.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import autograd, registry
from ..errors import UnsupportedInputError
from ..schema import OpSpec
from . import define
from .executor import Signature

_numbers = itertools.count()


class InnerArrays:
    """A tensor of a subclass in a kernel: its inner tensors are attributes, as arrays.

    Attributes:
        context: what its `__tensor_flatten__` gives beside their names.
    """

    def __init__(self, position: int, context: Any, arrays: Mapping[str, Any]) -> None:
        self._position, self.context, self._names = position, context, tuple(arrays)
        vars(self).update(arrays)

    def replace(self, **arrays: Any) -> InnerArrays:
        """A tensor of the same class, shape and context, with other arrays inside."""
        if unknown := arrays.keys() - set(self._names):
            raise UnsupportedInputError("InnerArrays.replace", ", ".join(sorted(unknown)), ", ".join(self._names))
        return InnerArrays(self._position, self.context, {n: arrays.get(n, getattr(self, n)) for n in self._names})

    def arrays(self) -> list[Any]:
        """The arrays inside, in their order."""
        return [getattr(self, n) for n in self._names]


Wrapped = tuple[tuple[int, tuple[str, ...], Any], ...]
"""The positions of arguments that have parts, with the names and the context of each."""


def is_wrapper(value: Any) -> bool:
    """True for a tensor of a subclass that wraps others, unless it is jaten's own."""
    return is_traceable_wrapper_subclass(value) and all(c.__module__ != "torch.jax" for c in type(value).__mro__)


def structure_of(values: Sequence[Any]) -> Wrapped:
    """The arguments of a call, in schema order, that have parts."""
    found = []
    for i, value in enumerate(values):
        if is_wrapper(value):
            names, context = value.__tensor_flatten__()
            found.append((i, tuple(names), context))
    return tuple(found)


def _taken_apart(structure: Wrapped, values: Sequence[Any]) -> list[Any]:
    apart = list(values)
    for i, names, _ in structure:
        apart[i] = [getattr(values[i], name) for name in names]
    return apart


def with_inner_arrays(structure: Wrapped, values: Sequence[Any]) -> list[Any]:
    """A kernel's arguments with `InnerArrays` in place of lists of arrays."""
    together = list(values)
    for i, names, context in structure:
        together[i] = InnerArrays(i, context, dict(zip(names, values[i], strict=True)))
    return together


def _keywords(spec: OpSpec) -> list[str]:
    return [a.name for a in spec.arguments if a.kwarg_only and not a.is_of_storage]


def _schema(spec: OpSpec, structure: Wrapped, name: str, before: str = "") -> str:
    arguments = spec.schema[len(spec.overload) + 1 : spec.schema.rindex(") ->")]
    for i, _, _ in structure:
        argument = spec.arguments[i].name
        arguments = re.sub(rf"Tensor\?? {argument}(=None)?(?=,|$)", f"Tensor[] {argument}", arguments)
    return f"{name}({before}{arguments}) -> Tensor[]"


def _defined(schema: str, namespace: str, entry: registry.Entry) -> torch._ops.OpOverload:
    spec = OpSpec(schema=schema, tags=frozenset({"pt2_compliant_tag"}), namespace=namespace)
    registry.add_op(spec, entry)
    define.register_op(spec)
    return define.op_of(spec)


def on_parts(
    spec: OpSpec, structure: Wrapped, namespace: str, entry: registry.Entry, gradient: Any, whose: str
) -> Callable[..., Any]:
    """The function of an override for arguments of which some have parts.

    Args:
        spec: the target.
        structure: which of its arguments have parts.
        namespace: the namespace of the operators that run on the parts.
        entry: the kernel.
        gradient: the gradient; None if there is none, and it is an error to ask for one.
        whose: names the override in errors.
    """
    signature, keywords = Signature(spec), _keywords(spec)
    name = f"{spec.overload.replace('.', '_')}_parts_{next(_numbers)}"
    made: list[list[Any]] = []  # for each result its position if it has parts, and how many arrays it is

    def kernel(*args: Any, **kwargs: Any) -> list[Any]:
        values = with_inner_arrays(structure, [*args, *(kwargs[n] for n in keywords)])
        results = entry.fn(*values[: len(args)], **dict(zip(keywords, values[len(args) :], strict=True)))
        each = results if isinstance(results, tuple | list) else (results,)
        made[:] = [[r._position, len(r.arrays())] if isinstance(r, InnerArrays) else [None, 1] for r in each]
        return [a for r in each for a in (r.arrays() if isinstance(r, InnerArrays) else [r])]

    own = registry.Entry(kernel, entry.where, entry.static)
    op = _defined(_schema(spec, structure, name), namespace, own)

    def call(values: Sequence[Any]) -> Any:
        args, kwargs = signature.split(_taken_apart(structure, values))
        found = iter(op(*args, **kwargs))
        results = [_result(values, position, list(itertools.islice(found, count))) for position, count in made]
        return results[0] if len(spec.returns) == 1 and spec.returns[0] == "Tensor" else tuple(results)

    tensors = tuple([a.name for a in spec.arguments if a.is_tensor])
    plain = OpSpec(schema=spec.schema, differentiable=tensors, namespace=namespace)
    derivative = _Derivative(plain, structure, name, entry, gradient, whose)
    return autograd.make_autograd_kernel(plain, signature.bind, call, lambda: derivative)


def _result(values: Sequence[Any], position: int | None, tensors: list[torch.Tensor]) -> torch.Tensor:
    if position is None:
        return tensors[0]
    like = values[position]
    names, context = like.__tensor_flatten__()
    inner = dict(zip(names, tensors, strict=True))
    return type(like).__tensor_unflatten__(inner, context, like.shape, like.stride())  # type: ignore[no-any-return]  # a protocol


class _Derivative:
    """The gradient, as `autograd.make_autograd_kernel` takes one."""

    needs_results = True

    def __init__(
        self, spec: OpSpec, structure: Wrapped, name: str, entry: registry.Entry, gradient: Any, whose: str
    ) -> None:
        self._spec, self._structure, self._gradient, self._whose = spec, structure, gradient, whose
        self._signature = Signature(spec)
        self._keywords = _keywords(spec)
        before = "Tensor[] grads, bool[] output_mask, Tensor[] results, "
        schema = _schema(spec, structure, f"{name}_backward", before)
        own = registry.Entry(self._kernel, entry.where, entry.static)
        self._op = None if gradient is None else _defined(schema, spec.namespace, own)

    def _kernel(self, grads: Any, output_mask: Any, results: Any, /, *args: Any, **kwargs: Any) -> list[Any]:
        values = with_inner_arrays(self._structure, [*args, *(kwargs[n] for n in self._keywords)])
        by_name = self._gradient(list(grads), values, list(results))
        wanted = [n for n, on in zip(self._spec.differentiable, output_mask, strict=True) if on]
        if missing := [n for n in wanted if by_name.get(n) is None]:
            raise UnsupportedInputError(self._whose, f"none by {', '.join(missing)}", "one, with its argument's shape")
        return [by_name[n] for n in wanted]

    def pull_back(self, grads: Any, values: list[Any], results: Any, mask: list[bool]) -> Sequence[Any]:
        if self._op is None:
            raise UnsupportedInputError(
                self._whose, "none", "gradient=..., since what autograd differentiates by is no array"
            )
        args, kwargs = self._signature.split(_taken_apart(self._structure, values))
        inner = [
            t for r in results for t in ([getattr(r, n) for n in r.__tensor_flatten__()[0]] if is_wrapper(r) else [r])
        ]
        flat = [
            t for g in grads for t in ([getattr(g, n) for n in g.__tensor_flatten__()[0]] if is_wrapper(g) else [g])
        ]
        return self._op(flat, mask, inner, *args, **kwargs)  # type: ignore[no-any-return]  # an operator of lists

    def push_forward(self, tangents: Any, values: list[Any], results: Any, mask: list[bool]) -> Sequence[Any]:
        raise UnsupportedInputError(self._whose, "forward-mode differentiation", "reverse mode")
