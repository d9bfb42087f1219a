"""Definition of torch operators from the rows of the registry, with kernel, fake and gradient.

This is the only user of `torch.library.Library`. Everything that an op needs at run time is made at its first call.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .. import autograd, kernels, meta, registry
from ..arrays import bridge, carrier
from ..errors import MissingGradientError, UnsupportedInputError
from ..kernel_base.vjp import make_vjp
from ..registry import parameters
from ..schema import COMPOSITE, KEEPS_MEMORY_ORDER, READS_MEMORY, VARIANTS, OpSpec
from ..tracing import opaque
from . import batched, memory_layout, result_checks, variants, vmap
from .composite import make_composite
from .executor import Executor, KernelCall, Signature, as_meta
from .namespace import LOCK, operator_of, when_named
from .op_call import DIRECT, OpKernel, registry_key

# kernels: imported for the registrations in it
__all__ = ["define_vjp", "kernels", "op_of", "register_op"]

_LIBRARIES: dict[str, torch.library.Library] = {}


def _unwrap_operand(operand: Any) -> Any:
    # a number that ATen takes in place of a tensor, as in `x * 2`, promotes as a number
    return carrier.unwrap(operand) if isinstance(operand, torch.Tensor) else operand


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


class _Derivative:
    """The derivative of an op: by the registered formula, else by its companion `_vjp` op."""

    def __init__(self, spec: OpSpec) -> None:
        self._spec = spec
        entry = registry.GRADIENTS.get(registry_key(spec))
        self._formula = None if entry is None else entry.fn
        self.needs_results = self._formula is not None
        self._asks = entry is not None and "wanted" in inspect.signature(entry.fn).parameters
        self._signature = Signature(spec)
        # looked up here, since Dynamo traces the functions that compiled autograd calls, and cannot trace a lock
        has_companion = spec.differentiable and self._formula is None and not spec.random
        self._companion = _vjp_op(spec) if has_companion else None

    def pull_back(self, grads: Sequence[Any], values: list[Any], results: Sequence[Any], mask: list[bool]) -> list[Any]:
        if not self._spec.differentiable:
            raise RuntimeError(f"derivative for {self._spec.name} is not implemented")  # as ATen says
        if self._formula is not None:
            wanted = self._selected(mask)
            by_name = self._formula(grads, values, results, **({"wanted": wanted} if self._asks else {}))
            return [g for n in wanted for g in self._each(by_name.get(n), n, values)]
        if self._companion is None:
            raise MissingGradientError(self._spec.name)
        args, kwargs = self._signature.split(values)
        return self._companion(list(grads), mask, *args, **kwargs)

    def _each(self, gradient: Any, name: str, values: list[Any]) -> Sequence[Any]:
        """The gradients of an argument, one for each of its tensors."""
        value = values[self._signature.index[name]]
        if not isinstance(value, list | tuple):
            return [gradient]
        return [None] * len(value) if gradient is None else gradient

    def push_forward(
        self, tangents: Sequence[Any], values: list[Any], results: Sequence[Any], mask: list[bool]
    ) -> Sequence[Any]:
        """Tangents of the results: the transpose of `pull_back`, which is linear in the gradients."""
        outputs = [
            r
            for i, r in enumerate(results)
            if i not in self._spec.nondifferentiable_outputs
            and isinstance(r, torch.Tensor)
            and (r.is_floating_point() or r.is_complex())
        ]
        if self._companion is not None:
            zeros = [torch.zeros_like(r) for r in outputs]
            transposed = _vjp_op(autograd.vjp_spec(self._spec))
            args, kwargs = self._signature.split(values)
            by_grads_only = [True] + [False] * len(mask)
            return transposed(list(tangents), by_grads_only, zeros, mask, *args, **kwargs)
        recorded = autograd.is_recorded([*tree_leaves(values), *tangents])
        with torch.enable_grad():
            zeros = [autograd.leaf_like(r) for r in outputs]
            pulled = self._pulled(zeros, values, results, mask)
            pairs = [(p, t) for p, t in zip(pulled, tangents, strict=True) if p.requires_grad]
            if not pairs:
                return zeros
            by, along = zip(*pairs, strict=True)
            return torch.autograd.grad(
                by, zeros, along, create_graph=recorded, allow_unused=True, materialize_grads=True
            )

    def _pulled(
        self, grads: Sequence[Any], values: list[Any], results: Sequence[Any], mask: list[bool]
    ) -> tuple[Any, ...]:
        """The gradients of the selected arguments, one for each tensor, in the form that autograd returns.

        They are zeros where the formula gives none, and summed if the operand was broadcast.
        """
        pulled = self.pull_back(grads, values, results, mask)
        wanted = [v for a, v in zip(self._spec.arguments, values, strict=True) if a.name in self._selected(mask)]
        return tuple(
            torch.zeros_like(t) if g is None else g.sum_to_size(t.shape)
            for g, t in zip(pulled, tree_leaves(wanted), strict=True)
        )

    def _selected(self, mask: list[bool]) -> list[str]:
        return [n for n, on in zip(self._spec.differentiable, mask, strict=True) if on]


def _vjp_op(spec: OpSpec) -> torch._ops.OpOverload:
    """Defines the companion op of a differentiable op, for a user's op at its first use."""
    companion = autograd.vjp_spec(spec)
    if spec.namespace != "jaten":
        with LOCK:
            if registry_key(companion) not in registry.SPECS:
                define_vjp(spec)
    return op_of(companion)


def define_vjp(spec: OpSpec) -> None:
    companion = autograd.vjp_spec(spec)
    key = registry_key(companion)
    registry.SPECS[key] = companion

    def vjp_kernel(*args: Any, **kwargs: Any) -> Any:
        entry = registry.KERNELS.get(registry_key(spec))
        if entry is None:
            raise registry.missing(spec.name)
        call = KernelCall(spec, entry.fn)
        fn = make_vjp(
            parameters.by_schema(spec, entry.fn),
            call.positional_names,
            call.keyword_names,
            spec.differentiable,
            spec.nondifferentiable_outputs,
        )
        if spec.namespace == "jaten":
            return fn(*args, **kwargs)
        try:
            return fn(*args, **kwargs)
        except UnsupportedInputError:
            raise
        except Exception as error:  # the forward call was right, so it is the differentiation that fails
            refusal = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise MissingGradientError(spec.name, refusal) from error

    def vjp_fake(grads: Any, output_mask: Sequence[bool], /, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        values = Signature(spec).bind(args, kwargs)
        names = [a.name for a in spec.arguments]
        wanted = [values[names.index(n)] for n, on in zip(spec.differentiable, output_mask, strict=True) if on]
        flat = [t for w in wanted for t in (w if isinstance(w, list | tuple) else (w,))]
        return [meta.as_contiguous(t) for t in flat]

    entry = registry.KERNELS.get(registry_key(spec))
    registry.KERNELS[key] = registry.Entry(vjp_kernel, "its kernel", entry.static if entry else frozenset())
    registry.FAKES[key] = registry.Entry(vjp_fake, "its kernel")
    register_op(companion)
    if spec.namespace == "jaten":
        when_named(autograd.vjp_spec(companion).overload, functools.partial(define_vjp, companion))


def _vmap_op(spec: OpSpec) -> torch._ops.OpOverload:
    """Defines the companion op for batches of a user's op, at its first use."""
    companion = autograd.vmap_spec(spec)
    with LOCK:
        if registry_key(companion) not in registry.SPECS:
            _define_vmap(spec, companion)
    return op_of(companion)


def _define_vmap(spec: OpSpec, companion: OpSpec) -> None:
    key, entry = registry_key(companion), registry.KERNELS[registry_key(spec)]

    def vmap_kernel(in_dims: Sequence[int], batch_size: int, /, *args: Any, **kwargs: Any) -> Any:
        kernel = parameters.by_schema(spec, registry.KERNELS[registry_key(spec)].fn)
        fake = registry.FAKES.get(registry_key(spec))

        def one(*args: Any, **kwargs: Any) -> Any:
            got = result_checks.settled(spec, kernel(*args, **kwargs))
            if fake is not None:
                own, named = as_meta(Signature(spec), [*args, *kwargs.values()])
                result_checks.hold_against(spec, got, fake.fn(*own, **named))
            return got

        return batched.call_batch(one, in_dims, batch_size, args, kwargs)

    registry.SPECS[key] = companion
    registry.KERNELS[key] = registry.Entry(vmap_kernel, "its kernel", entry.static)
    register_op(companion)
    if companion.differentiable:
        define_vjp(companion)


def _batched_by_jax(spec: OpSpec) -> bool:
    """True if `jax.vmap` of the kernel is what a batch of calls computes.

    An own gradient holds for each call of the batch, and kernels that draw numbers or take concrete arrays are called
    one by one.
    """
    entry = registry.KERNELS.get(registry_key(spec))
    own = spec.namespace != "jaten" and entry is not None and not entry.eager and not spec.random
    return own and registry_key(spec) not in registry.GRADIENTS and all(r.startswith("Tensor") for r in spec.returns)


def _batching_rule(spec: OpSpec) -> Callable[..., Any]:
    if _batched_by_jax(spec):
        signature = Signature(spec)
        return vmap.make_batched_by_jax(
            _vmap_op(spec), op_of(spec), lambda args, kwargs: signature.split(signature.bind(args, kwargs))
        )
    return vmap.make_batched(spec, op_of(spec))


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
    if spec.overload in KEEPS_MEMORY_ORDER:
        of_plain = memory_layout.in_memory_order(OpKernel(registry.SPECS["resize"], bridge.borrow, bridge.as_tensor))
    on_jax = OpKernel(spec, _unwrap_operand, carrier.wrap)
    if spec.namespace == "jaten":
        DIRECT[spec.overload] = (plain, on_jax)
    _on_replacement(spec, plain.forget, on_jax.forget)
    lib.impl(spec.overload, of_plain, "CPU")
    lib.impl(spec.overload, of_plain, "CUDA")
    lib.impl(spec.overload, on_jax, "PrivateUse1")
    if spec.takes_no_tensors:
        lib.impl(spec.overload, _by_device(spec, plain, on_jax), "BackendSelect")
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
    companions = (f"{spec.namespace}::{spec.packet}_vjp", f"{spec.namespace}::{spec.packet}_vmap")
    for name, drops in list(_FORGETTING.items()):
        if name == spec.name or name.startswith(companions):
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

    return autograd.make_autograd_kernel(spec, signature.bind, call, functools.partial(_Derivative, spec))


def _by_device(spec: OpSpec, plain: OpKernel, on_jax: OpKernel) -> Callable[..., Any]:
    """The implementation of an op without tensor arguments: its device, if it takes one, decides."""

    @opaque
    def select(*args: Any, **kwargs: Any) -> Any:
        devices = [args[i] if i < len(args) else kwargs.get(name) for i, name in taken]
        on_carrier = any(device is not None and torch.device(device).type == "jax" for device in devices)
        return (on_jax if on_carrier else plain)(*args, **kwargs)

    taken = [(i, a.name) for i, a in enumerate(spec.arguments) if a.type.startswith("Device")]

    return select


def _register_fake(lib: torch.library.Library, spec: OpSpec, by_device: bool) -> None:
    # A Meta kernel also serves fake tensors, and registers fifteen times faster than a fake. A fake is needed if no
    # tensor determines the device, or if a result's shape depends on values.
    run = _lazy(lambda: meta.fake_of(spec) or _fake_from_kernel(spec), spec)
    if by_device or "dynamic_output_shape" in spec.tags or not spec.takes_tensor or spec.takes_device:
        # as Library._register_fake, without its look at the call stack, which takes a millisecond
        entry = torch._library.simple_registry.singleton.find(spec.name)
        lib._registration_handles.append(entry.fake_impl.register(run, __file__, lib=lib, allow_override=False))
    else:
        lib.impl(spec.overload, run, "Meta")


def _fake_from_kernel(spec: OpSpec) -> Callable[..., Any]:
    """The default fake of a user's op: its kernel, traced for shapes. Symbolic sizes become concrete."""
    entry = registry.KERNELS.get(registry_key(spec))
    if entry is None:
        raise registry.missing(spec.name)
    executor = Executor(spec, entry, None)
    return executor.fake


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
    lib.impl(spec.overload, run, "CompositeImplicitAutograd")
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
