"""Definition of torch operators from the rows of the registry, with kernel, fake and gradient.

This is the only user of `torch.library.Library`. Everything that an op needs at run time is made at its first call.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from .. import autograd, kernels, meta, registry
from ..arrays import bridge, carrier
from ..errors import UnsupportedInputError
from ..schema import COMPOSITE, KEEPS_MEMORY_ORDER, READS_MEMORY, VARIANTS, OpSpec
from ..tracing import opaque
from . import companions, memory_layout, variants, vmap
from .composite import make_composite
from .derivative import OpDerivative
from .executor import Executor, Signature
from .named_device import differentiable_with_named_device, names_device, with_named_device
from .namespace import LOCK, operator_of, when_named
from .op_call import DIRECT, OpKernel, registry_key

# kernels: imported for the registrations in it
__all__ = ["define_vjp", "kernels", "op_of", "register_op"]

_LIBRARIES: dict[str, torch.library.Library] = {}


def _unwrap_operand(operand: Any) -> Any:
    if not isinstance(operand, torch.Tensor):
        return operand  # a number that ATen takes in place of a tensor, as in `x * 2`, promotes as a number
    try:
        return carrier.unwrap(operand)
    except UnsupportedInputError:
        if operand.is_cpu and operand.dim() == 0:  # ATen takes it beside tensors of any device
            return bridge.uncommitted(operand.clone())
        raise


def _library(namespace: str) -> torch.library.Library:
    # FRAGMENT: users may have libraries of their own in their namespace
    if namespace not in _LIBRARIES:
        _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return _LIBRARIES[namespace]


def op_of(spec: OpSpec) -> torch._ops.OpOverload:
    """The torch operator of a spec."""
    return operator_of(spec.overload, spec.namespace)


# tags that compilers check on an operator; ATen's other tags describe ATen's schemas
_TAGS = ("pt2_compliant_tag", "nondeterministic_seeded", "dynamic_output_shape", "data_dependent_output")


def _tags(spec: OpSpec) -> list[torch.Tag]:
    return [getattr(torch.Tag, name) for name in _TAGS if name in spec.tags]


def _vjp_op(spec: OpSpec) -> torch._ops.OpOverload:
    """Defines the companion op of a differentiable op, for a user's op at its first use."""
    companion = autograd.vjp_spec(spec)
    if spec.namespace != "jaten":
        with LOCK:
            if registry_key(companion) not in registry.SPECS:
                define_vjp(spec)
    return op_of(companion)


def define_vjp(spec: OpSpec) -> None:
    """Defines the companion op that computes the gradients of an op."""
    companion = autograd.vjp_spec(spec)
    key, entry = registry_key(companion), registry.KERNELS.get(registry_key(spec))
    registry.SPECS[key] = companion
    kernel = registry.Entry(companions.vjp_kernel(spec), "its kernel")
    if entry is not None:
        is_eager = spec.namespace != "jaten" and entry.eager
        kernel = dataclasses.replace(kernel, static=entry.static, eager=is_eager)
    registry.KERNELS[key] = kernel
    registry.FAKES[key] = registry.Entry(companions.vjp_fake(spec), "its kernel")
    register_op(companion)
    if spec.namespace == "jaten":
        when_named(autograd.vjp_spec(companion).overload, functools.partial(define_vjp, companion))


def _companion_op(spec: OpSpec, kind: str) -> torch._ops.OpOverload:
    """Defines a companion op of a user's op, at its first use.

    Args:
        spec: the user's op.
        kind: "vmap", its calls on a batch, or "keyed", a random op with its PRNG key as an argument.
    """
    companion = companions.SPECS[kind](spec)
    key = registry_key(companion)
    with LOCK:
        if key not in registry.SPECS:
            entry = registry.KERNELS[registry_key(spec)]
            registry.SPECS[key] = companion
            registry.KERNELS[key] = dataclasses.replace(entry, fn=companions.KERNELS[kind](spec), where="its kernel")
            companions.BASES[key] = kind, spec
            register_op(companion)
    return op_of(companion)


def _batched_by_jax(spec: OpSpec) -> bool:
    """True if `jax.vmap` of the kernel is what a batch of calls computes; else the kernel is called for each."""
    entry = registry.KERNELS.get(registry_key(spec))
    own = spec.namespace != "jaten" and entry is not None and not entry.eager
    return own and all(r.startswith("Tensor") for r in spec.returns)


def _batching_rule(spec: OpSpec) -> Callable[..., Any]:
    if not _batched_by_jax(spec):
        return vmap.make_batched(spec, op_of(spec))
    signature = Signature(spec)

    def in_order(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return signature.split(signature.bind(args, kwargs))

    if spec.name == companions.DRAW:
        return vmap.make_batched_draw(op_of(spec))
    if not spec.random:
        return vmap.make_batched_by_jax(_companion_op(spec, "vmap"), op_of(spec), in_order)
    keyed = companions.SPECS["keyed"](spec)
    _companion_op(spec, "keyed")
    return vmap.make_batched_random(
        spec, _companion_op(keyed, "vmap"), op_of(spec), in_order, companions.key_drawer(spec)
    )


def register_op(spec: OpSpec, *, overrides: bool = False) -> None:
    """Defines the operator of a spec and everything it has. Kernel, fake and gradient are looked up at first use.

    Args:
        spec: the spec.
        overrides: whether it runs in place of one of ATen's, as `jaten_ops.override` has it: its fake is then asked
            on the device of the tensors, and it has jaten's rule for `torch.vmap`.
    """
    lib = _library(spec.namespace)
    lib.define(spec.schema, tags=_tags(spec))
    if spec.kind == "composite":
        run = _lazy(lambda: make_composite(spec, _aten(spec)))
        lib.impl(spec.overload, run, "CompositeImplicitAutograd")
        _register_batching(lib, spec, run if spec.random else None)
        return
    plain = OpKernel(spec, bridge.borrow, bridge.as_tensor)
    of_plain = memory_layout.on_memory(plain) if spec.overload in READS_MEMORY else plain
    if spec.overload == "as_strided_scatter":
        of_plain = memory_layout.within_memory(plain)
    if spec.overload in KEEPS_MEMORY_ORDER:
        of_plain = memory_layout.in_memory_order(OpKernel(registry.SPECS["resize"], bridge.borrow, bridge.as_tensor))
    if names_device(spec):
        of_plain = with_named_device(spec, of_plain, functools.partial(op_of, spec))
    on_jax = OpKernel(spec, _unwrap_operand, carrier.wrap)
    if spec.namespace == "jaten":
        DIRECT[spec.overload] = (plain, on_jax)
    _on_replacement(spec, plain.forget, on_jax.forget)
    lib.impl(spec.overload, of_plain, "CPU")
    lib.impl(spec.overload, of_plain, "CUDA")
    lib.impl(spec.overload, on_jax, "PrivateUse1")
    if spec.takes_no_tensors:
        lib.impl(spec.overload, of_plain, "BackendSelect")
    elif not spec.takes_tensor and spec.overload != "_stack":  # ATen's meta function of _stack([]) crashes
        # the key of calls without a tensor, for example with an empty list
        lib.impl(spec.overload, of_plain, "CompositeExplicitAutograd")
    if spec.overload == "as_strided":
        lib.impl(spec.overload, _lazy(lambda: _as_it_lies(spec, torch.conj, "_conj_physical")), "Conjugate")
        lib.impl(spec.overload, _lazy(lambda: _as_it_lies(spec, torch._neg_view, "neg")), "Negative")
    _register_fake(lib, spec, overrides)
    _register_batching(lib, spec)
    if spec.differentiable or not _is_constant(spec):
        lib.impl(spec.overload, _lazy(lambda: _autograd_kernel(spec), spec), "Autograd")
    else:
        lib.impl(spec.overload, torch.library.fallthrough_kernel, "Autograd")


def define_composition(spec: OpSpec, fn: Callable[..., Any]) -> None:
    """Defines an operator that is composed of others by a torch function."""
    lib = _library(spec.namespace)
    lib.define(spec.schema, tags=_tags(spec))
    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        lib.impl(spec.overload, fn, key)


def _as_it_lies(spec: OpSpec, flip: Callable[..., Any], overload: str) -> Callable[..., Any]:
    return memory_layout.as_it_lies(op_of(spec), flip, operator_of(overload))


def _register_batching(lib: torch.library.Library, spec: OpSpec, run: Callable[..., Any] | None = None) -> None:
    """Registers the `torch.vmap` rule: the one for all ops, or that of a composition, whose parts have their own."""
    rule = run or _lazy(lambda: _batching_rule(spec), spec)
    lib.impl(spec.overload, rule, "FuncTorchBatched")
    if spec.random:
        lib.impl(spec.overload, rule, "FuncTorchVmapMode")
    if "Tensor[]" in spec.schema and run is None:
        lib.impl(spec.overload, _lazy(lambda: vmap.make_batched_gradient(spec, op_of(spec))), "Batched")


def _is_constant(spec: OpSpec) -> bool:
    """True if ATen takes the results for constants: they depend on no tensor's values, or are detached on purpose."""
    made_like = spec.packet.endswith("_like") or spec.packet.startswith(("new_", "_new_", "detach", "empty"))
    return spec.takes_no_tensors or spec.random or made_like


_FORGETTING: dict[str, list[Callable[[], None]]] = {}
"""For each user's operator and companion: what drops all that was made for its kernel."""


def _on_replacement(spec: OpSpec, *forget: Callable[[], None]) -> None:
    if spec.namespace != "jaten":
        _FORGETTING.setdefault(spec.name, []).extend(forget)


def _forget(spec: OpSpec) -> None:
    """Drops what was made for the former kernel, fake or gradient of a user's operator, and of its companions."""
    made = tuple([f"{spec.namespace}::{spec.packet}_{kind}" for kind in ("vjp", *companions.SPECS)])
    for name, drops in list(_FORGETTING.items()):
        if name == spec.name or name.startswith(made):
            for drop in drops:
                drop()
    if "torch._dynamo" in sys.modules:  # compiled functions have the former one in them
        torch.compiler.reset()


registry.when_replaced(_forget)


def _lazy(make: Callable[[], Callable[..., Any]], spec: OpSpec | None = None) -> Callable[..., Any]:
    """A function that is made at its first call, and anew after the kernel of a spec was replaced."""
    made: Callable[..., Any] | None = None

    @opaque
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        if made is None:
            if spec is not None:
                registry.USED.add(registry_key(spec))
            made = make()
        return made(*args, **kwargs)

    def drop() -> None:
        nonlocal made
        made = None

    if spec is not None:
        _on_replacement(spec, drop)
    return call


def _autograd_kernel(spec: OpSpec) -> Callable[..., Any]:
    op, signature = op_of(spec), Signature(spec)

    def call(values: Sequence[Any]) -> Any:
        args, kwargs = signature.split(values)
        return op(*args, **kwargs)

    keeper = KEEPERS.get(spec.namespace)
    kept = None if keeper is None else _each_string(keeper.in_node)
    derivative = functools.partial(OpDerivative, spec, _vjp_op)
    recorded = _keyed_call(spec) if _draws_for_gradient(spec) else None
    run = autograd.make_autograd_kernel(spec, signature.bind, call, derivative, recorded, kept)
    return differentiable_with_named_device(spec, run) if names_device(spec) else run


def _each_string(fn: Callable[[str], str]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [fn(v) if type(v) is str else v for v in values]


class Keeper(NamedTuple):
    """Keeps alive what the strings among the arguments of a namespace's operators name.

    Attributes:
        in_node: gives a string that keeps it, for autograd to hold.
        in_graph: keeps it for a graph, which holds plain strings.
    """

    in_node: Callable[[str], str]
    in_graph: Callable[[str], None]


KEEPERS: dict[str, Keeper] = {}
"""By namespace."""


def _draws_for_gradient(spec: OpSpec) -> bool:
    """True for a random op of a user whose gradient is `jax.vjp` of its kernel, with the numbers that it has drawn."""
    own = spec.namespace != "jaten" and spec.random and bool(spec.differentiable)
    return own and companions.formula_of(spec) is None


def _keyed_call(spec: OpSpec) -> Callable[[Sequence[Any]], Any]:
    keyed, signature, draw = _companion_op(spec, "keyed"), Signature(spec), companions.key_drawer(spec)

    def call(values: Sequence[Any]) -> Any:
        args, kwargs = signature.split(values)
        return keyed(draw(values, []), *args, **kwargs)

    return call


def _register_fake(lib: torch.library.Library, spec: OpSpec, by_device: bool) -> None:
    # A Meta kernel also serves fake tensors, and registers fifteen times faster than a fake. A fake is needed if no
    # tensor determines the device, or if a result's shape depends on values.
    run = _lazy(lambda: companions.fake_of_user(spec) or _fake_from_kernel(spec), spec)
    by_values = "dynamic_output_shape" in spec.tags or _is_eager_of_user(spec)
    if by_device or by_values or not spec.takes_tensor or spec.takes_device:
        # as Library._register_fake, without its look at the call stack, which takes a millisecond
        entry = torch._library.simple_registry.singleton.find(spec.name)
        lib._registration_handles.append(entry.fake_impl.register(run, __file__, lib=lib, allow_override=False))
    else:
        lib.impl(spec.overload, run, "Meta")


def _is_eager_of_user(spec: OpSpec) -> bool:
    entry = registry.KERNELS.get(registry_key(spec))
    return spec.namespace != "jaten" and entry is not None and bool(entry.eager)


def _fake_from_kernel(spec: OpSpec) -> Callable[..., Any]:
    """The default fake of a user's op: its kernel, traced for shapes."""
    entry = registry.KERNELS.get(registry_key(spec))
    if entry is None:
        raise registry.missing(spec.name)
    if not all(kind.startswith("Tensor") for kind in spec.returns):
        return _fake_of_numbers(spec)
    if _is_eager_of_user(spec):
        remedy = f"one: jaten_ops.fake({spec.name!r}), with sizes of torch.library.get_ctx().new_dynamic_size()"
        raise UnsupportedInputError(f"{spec.name} in a graph", "an eager kernel without a fake", remedy)
    fake = Executor(spec, entry, None).fake
    if spec.namespace not in KEEPERS:
        return fake
    keep = KEEPERS[spec.namespace].in_graph

    def keeping(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if type(value) is str:
                keep(value)
        return fake(*args, **kwargs)

    return keeping


def _fake_of_numbers(spec: OpSpec) -> Callable[..., Any]:
    """The default fake of a user's op with a number among its results: torch parts a graph at what it raises.

    Shapes do not tell a number, as they do not tell that of `Tensor.item`.
    """

    def fake(*_: Any, **__: Any) -> Any:
        raise DataDependentOutputException(op_of(spec))

    return fake


def define_aten() -> None:
    """Registers each row of the generated data when its name is first used."""
    for spec in registry.SPECS.values():
        if spec.namespace != "jaten":
            continue  # another library defines it
        when_named(spec.overload, functools.partial(register_op, spec))
        if spec.differentiable and not spec.random:
            companion = autograd.vjp_spec(spec)
            when_named(companion.overload, functools.partial(define_vjp, spec))
    for spec in COMPOSITE.values():
        when_named(spec.overload, functools.partial(register_op, spec))
    for spec in VARIANTS.values():
        when_named(spec.overload, functools.partial(define_variant, spec))


def define_variant(spec: OpSpec) -> None:
    """Defines an overload that writes to arguments."""
    lib = _library(spec.namespace)
    lib.define(spec.schema, tags=_tags(spec))
    run = _lazy(functools.partial(_variant, spec))
    for key in ("CompositeImplicitAutograd", "Functionalize"):  # the latter takes no other library's that writes
        lib.impl(spec.overload, run, key)
    _register_batching(lib, spec, run)


def _variant(spec: OpSpec) -> Callable[..., Any]:
    if "inplace_view" in spec.tags:  # changes sizes and strides, not values: there is nothing for a kernel to compute
        return _aten(spec)
    base = registry.SPECS.get(spec.base) or COMPOSITE[spec.base]
    aten = meta.aten_overload(spec.overload) if spec.namespace == "jaten" else None
    return variants.make_variant(spec, base, op_of(base), aten=aten)


def _aten(spec: OpSpec) -> torch._ops.OpOverload:
    op = meta.aten_overload(spec.overload)
    assert op is not None
    return op


define_aten()
