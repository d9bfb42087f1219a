"""`jaten_ops.Tensor`: a torch tensor on the device `jax` whose data is a `jax.Array`.

Each ATen call on it runs the jaten op of the same overload on its arrays. For Dynamo and AOTAutograd it is a wrapper
of one carrier: the carriers are fake then, and the graph records jaten ops.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections import OrderedDict
from typing import Any

import jax
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from ..arrays import attributes, bridge, carrier
from ..arrays.attributes import Attributes, attributes_of, give, held_by
from ..arrays.observers import OBSERVERS, around, made, met
from ..arrays.storage_views import View
from ..arrays.strides import row_major
from ..device import placement, privateuse1
from ..errors import MissingValuesError
from ..registry.handlers import CHOSEN, RECORDED, handler_of
from ..tracing import is_recording, opaque_methods, uncaptured, unrecorded
from .checkpoint_shards import CheckpointShards
from .mesh_methods import MeshMethods, copy_placer
from .operand_values import Traced, is_constant, is_traced, number, stays, two_devices
from .storage import TracedStorage, pickled, storage_of, typed
from .subclasses import Counterparts

_get_data, _set_data = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined]  # for mypy it is a tensor
_COMPILER = ("torch._dynamo", "torch._functorch", "torch._subclasses")  # private to torch; a test fails without them
_MARK = "_dynamo_weak_dynamic_indices"  # sizes that may become symbolic and may be specialized again; private to torch


class _PutInPlace:
    """The carrier of a gradient that is in place already, or that there is not; torch asks it as it does a tensor."""

    def size(self) -> None: ...

    def stride(self) -> None: ...


PUT_IN_PLACE = _PutInPlace()


@opaque_methods
class Tensor(torch.Tensor, MeshMethods, CheckpointShards):
    """A tensor on the device `jax`, of any shape and of a dtype that JAX has.

    It is made by `tensor.to("jax")`, a factory's `device="jax"`, or `jaten_ops.from_jax`. Its values are a `jax.Array`,
    kept beside its attributes: see `jaten_ops.arrays.attributes`.

    Raises:
        DeviceSlotError: another backend has the process's slot for such a device.
        UnsupportedInputError: a sparse or quantized tensor moves to the device.

    Example:
        >>> x = torch.ones(2, 3, device="jax")
        >>> isinstance(x, jaten_ops.Tensor), (x @ x.T).cpu()
        (True, tensor([[3., 3.],
                [3., 3.]]))
    """

    __module__ = "torch.jax"  # by this name libraries recognize the array library of a tensor
    __dict__ = attributes.DICTIONARY
    _is_param = attributes.IS_PARAM

    @staticmethod
    def __new__(cls, inner: Any = (), *rest: Any, requires_grad: bool | None = None) -> Any:
        """A tensor of a carrier; for other arguments torch's own constructor, as in `type(tensor)(data)`.

        With `requires_grad` a parameter, as in `type(parameter)(data, requires_grad=False)`.
        """
        privateuse1.require_slot()
        if requires_grad is not None:
            return torch.nn.Parameter(inner, requires_grad)
        if rest or type(inner) is Tensor or not isinstance(inner, torch.Tensor) or inner.device.type != "jax":
            return torch.Tensor(inner, *rest)
        return cls.of_inner(inner, inner.stride())

    @classmethod
    def of_inner(cls, inner: torch.Tensor, stride: Any) -> Tensor:
        if type(inner) is Tensor:  # a compiled program has made it
            return inner
        if carrier.is_real(inner):
            return from_view(carrier.view_of(inner), inner.dtype)
        self = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=stride, storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=inner.device,
        )  # fmt: skip
        held_by(self).inner = inner
        if inner.is_conj():  # torch asks the tensor itself, as `imag` does
            torch._C._set_conj(self, True)
        return self

    @property
    def view_of_arrays(self) -> View:
        """The view of its values; a tensor met while tracing has none, and raises AttributeError."""
        view = attributes.view_or_none(self)
        if view is None:
            raise AttributeError("view_of_arrays: a tensor without values")
        return view

    @property
    def _carrier(self) -> torch.Tensor:
        try:
            return attributes_of(self).inner  # type: ignore[attr-defined]  # of `Attributes`
        except AttributeError:
            held_by(self).inner = inner = carrier.of(self.view_of_arrays)
            return inner

    def __dir__(self) -> list[str]:
        """All names but that of the carrier: `torch.export` has a graph read the attributes that it finds here."""
        return [name for name in super().__dir__() if name != "_carrier"]

    def __tensor_flatten__(self) -> tuple[list[str], torch.device | None]:
        """The name of the inner tensor, and the device if it is not the first: each carrier is on that one."""
        if _MARK in attributes_of(self) and not is_traced(self):
            # for `torch.export`, whose named dims are not on the carrier: its sizes equal the tensor's
            setattr(self._carrier, _MARK, set(range(self.dim())))
        return ["_carrier"], self.device if self.device.index else None

    def _stable_hash_for_caching(self) -> str:
        """The tensor's part of the keys of torch's caches."""
        return repr((self.shape, self.stride(), self.storage_offset(), self.dtype, self.device, self.requires_grad))

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], meta: torch.device | None, size: Any, stride: Any) -> Tensor:
        held = inner["_carrier"]
        if held is PUT_IN_PLACE:
            return None  # type: ignore[return-value]  # torch's interface knows of no such
        if meta is not None and isinstance(held, FakeTensor):
            held.fake_device = meta  # what torch traces gets its device from that of fakes
        # carriers are contiguous; their views need not be
        return Tensor.of_inner(held, held.stride() if stride is None else stride)

    def __coerce_tangent_metadata__(self) -> Tensor:
        """The gradient that AOTAutograd expects has a contiguous carrier, as real ones have, also with one element."""
        if self._carrier.stride() == row_major(tuple(self.shape)):
            return self
        return Tensor.of_inner(self._carrier.clone(memory_format=torch.contiguous_format), self.stride())

    def __coerce_same_metadata_as_tangent__(self, meta: torch.device | None, cls: Any = None) -> Any:
        """A gradient in the class that AOTAutograd expects: for tensors of a subclass it is mostly plain."""
        return self if cls in (None, type(self)) else self.as_subclass(CLASSES.elsewhere(cls) or torch.Tensor)

    def __repr__(self) -> str:  # type: ignore[override]  # torch.Tensor's takes tensor_contents, which only torch uses
        if is_traced(self):
            return f"jaten_ops.Tensor({self._carrier})"
        # as torch's own: a tensor captured by a transform is printed as outside
        _outside = torch._C._DisableFuncTorch()
        kind = "Parameter containing:\n" if isinstance(self, torch.nn.Parameter) else ""
        if attributes.has_no_values(self):
            return f"{kind}tensor(..., size={tuple(self.shape)}, dtype={self.dtype}, sharding={self.sharding})"
        moved = self.detach().cpu()
        if isinstance(moved, Tensor):  # it has none where JAX traces it
            return f"{kind}tensor(..., size={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"
        text = kind + repr(moved)
        grad = f", grad_fn=<{type(self.grad_fn).__name__}>" if self.grad_fn is not None else ""
        grad = grad or (", requires_grad=True" if self.requires_grad else "")
        return f"{text[:-1]}, device='{self.device}'{grad})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if is_traced(self) or not self.is_leaf:  # torch.Tensor's method raises the error for the latter
            return super().__deepcopy__(memo)
        if id(self) in memo:
            return memo[id(self)]
        if isinstance(self, torch.nn.Parameter):  # as in torch: only the values, in new memory
            cls: Any = CLASSES.elsewhere(type(self)) or torch.nn.Parameter
            memo[id(self)] = parameter = cls(self.detach().clone(), self.requires_grad)
            copy_placer(self, parameter)
            return parameter
        new = from_view(copy.deepcopy(self.view_of_arrays, memo), self.dtype).requires_grad_(self.requires_grad)
        new.__class__ = type(self)
        memo[id(self)] = new
        for name, value in attributes_of(self).items():
            setattr(new, name, copy.deepcopy(value, memo))
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles like torch's tensors: sharing and attributes are restored, and `map_location` works."""
        if is_traced(self):
            return super().__reduce_ex__(protocol)
        torch.utils.hooks.warn_if_has_hooks(self)
        state = dict(attributes_of(self))
        if not isinstance(self, torch.nn.Parameter):
            cls = CLASSES.elsewhere(type(self))
            return pickled(self.view_of_arrays, self.dtype, self.requires_grad, state, cls or torch.Tensor)
        hooks: OrderedDict[Any, Any] = OrderedDict()
        parts = from_view(self.view_of_arrays, self.dtype), self.requires_grad, hooks
        if state:
            return torch._utils._rebuild_parameter_with_state, (*parts, state)
        return torch._utils._rebuild_parameter, parts

    def __dlpack__(self, **options: Any) -> Any:
        """The array's memory, read-only for the consumer."""
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return carrier.unwrap(self).__dlpack__(**options)

    def __jax_array__(self) -> jax.Array:
        """The array, for functions of `jax.numpy` and the operators of `jax.Array`s; views are copied.

        Raises:
            RuntimeError: as of torch's `numpy()`: it requires gradients, and autograd would not record what JAX
                computes; or torch captures the program.
            MissingValuesError: it is over a mesh that is not there.
        """
        if self.requires_grad or is_traced(self):
            what = "a tensor that requires gradients" if self.requires_grad else "one that torch captures"
            raise RuntimeError(
                f"a JAX function cannot take {what}. Fix: jaten_ops.call_jax(function, tensor), which torch records,"
                " or tensor.detach()"
            )
        if attributes.has_no_values(self):
            raise MissingValuesError
        return array_for_jax(self)

    def __dlpack_device__(self) -> Any:
        return carrier.unwrap(self).__dlpack_device__()  # type: ignore[attr-defined]  # jax's stub lacks it

    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage: the same object for all tensors that share memory. See `jaten_ops.tensor.storage`."""
        if not is_traced(self):
            return storage_of(self.view_of_arrays)
        found = super().untyped_storage()
        found.__class__ = TracedStorage
        return found

    def _typed_storage(self) -> torch.TypedStorage:
        return super()._typed_storage() if is_traced(self) else typed(self.untyped_storage(), self.dtype)

    def data_ptr(self) -> int:
        """A number in place of an address: unique for each storage, plus the offset."""
        if is_traced(self):
            return super().data_ptr()
        return self.untyped_storage().data_ptr() + int(self.storage_offset()) * self.itemsize

    def numpy(self, *, force: bool = False) -> Any:
        """A NumPy array of the values, copied to the host, with `force`; without, TypeError as on other devices."""
        if not force and (is_traced(self) or not stays(self, array_of(self), "cpu")):
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host"
                " memory first."
            )
        return self._on_host().numpy()

    def _on_host(self) -> torch.Tensor:
        """The values on the CPU, also where tensors that JAX traces stay as they are."""
        moved = self.detach().cpu()
        return bridge.to_host(array_of(self)) if isinstance(moved, Tensor) else moved

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 and not is_traced(self) else object.__format__(self, spec)

    def new_tensor(self, data: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]  # its keywords are torch's
        """As torch's, which asks for the current device, on the tensor's own."""
        if options.get("device") is None:
            options["device"] = self.device
        return super().new_tensor(data, **options)

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self._on_host().tolist()

    def _is_view(self) -> bool:
        """As torch's, but False for compilers if the tensor has values: they then trace a view as a plain tensor.

        Replaying the view would give a carrier with the view's strides, while real carriers are contiguous.
        """
        if is_traced(self):
            return super()._is_view()
        asking = sys._getframe(1).f_globals.get("__name__", _COMPILER[0])  # generated code has none
        return not asking.startswith(_COMPILER) and super()._is_view()

    def set_(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As torch's, but a traced tensor keeps its storage, which is empty and not shared."""
        if args and isinstance(args[0], torch.UntypedStorage) and is_traced(self):
            return self
        return super().set_(*args, **kwargs)

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]  # torch's is not writable for a type checker
        return _get_data(self)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if is_traced(new) or is_traced(self):
            _set_data(self, new)
        elif isinstance(new, Tensor):
            become(self, new.view_of_arrays, new.dtype)
        elif may_leave(self, new):
            _leave(self, new)
        else:
            _set_data(self, new)

    def as_subclass(self, cls: Any) -> Any:
        """As torch's, but on the device plain tensors are of this class, and others of their own class and this one."""
        if cls is torch.Tensor and type(self) is Tensor:
            return self
        with torch._C.DisableTorchFunctionSubclass():
            new = torch.ops.aten.alias(self)
            if issubclass(cls, torch.nn.UninitializedParameter | torch.nn.UninitializedBuffer):  # these are leaves
                new = new.detach().requires_grad_(self.requires_grad)
        new.__class__ = Tensor if cls is torch.Tensor else CLASSES.on_device(cls)
        return new

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch's own annotation is of its disabled default
        if len(types) > 1 and not all(issubclass(t, _KNOWN) for t in types):
            return NotImplemented  # a class that runs operators itself, such as jagged nested tensors
        handler = CHOSEN.get(id(func)) or handler_of(func)
        if OBSERVERS:
            args, kwargs = met(func, args, kwargs)
            handler = around(handler)
        if is_recording():
            return (RECORDED.get(func) or functools.partial(unrecorded, handler))(*args, **kwargs or {})
        return handler(*args, **kwargs) if kwargs else handler(*args)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch documents


_KNOWN = (Tensor, FakeTensor, FunctionalTensor)

CLASSES = Counterparts(Tensor)
"""The classes of tensors on the device, and their counterparts off the device."""


_DTYPES = bridge.TORCH_DTYPES
_STRIDED = torch.strided
_make_wrapper = torch.Tensor._make_wrapper_subclass


def from_array(array: jax.Array) -> Tensor:
    """A new tensor of an array."""
    # contiguous strides, offset 0 and layout by position: keywords would take torch a quarter more time
    self = _make_wrapper(
        Tensor, array.shape, None, None, None, _DTYPES[array.dtype], _STRIDED, placement.of_array(array)
    )
    held = Attributes()
    held.place = array
    give(self, held)
    if OBSERVERS:
        made(self)
    return self


def from_view(view: View, dtype: torch.dtype) -> Tensor:
    """A new tensor with the storage, shape and strides of a view."""
    array = view.storage.array
    if view.is_whole(array) and view.is_plain():  # torch finds the same strides and size
        self = _make_wrapper(Tensor, view.shape, None, None, None, dtype, _STRIDED, placement.of_array(array))
    else:
        self = _make_wrapper(
            Tensor, view.shape, strides=view.strides(), storage_offset=view.offset, dtype=dtype,
            device=placement.of_array(array), storage_size=math.prod(array.shape) * dtype.itemsize,
        )  # fmt: skip
    held = Attributes()
    held.place = view
    give(self, held)
    if OBSERVERS:
        made(self)
    return self


def become(tensor: torch.Tensor, view: View, dtype: torch.dtype) -> None:
    """Changes the storage of a tensor in place, with its sizes, strides and dtype.

    It stays an inference tensor, or none, since torch takes the sizes of no other.
    """
    with torch._C.DisableTorchFunctionSubclass():  # a parameter of a lazy module refuses to say
        is_inference = tensor.is_inference()
    if torch.is_inference_mode_enabled() is is_inference:
        _set_data(tensor, from_view(view, dtype))
    else:
        with torch.inference_mode(is_inference):
            _set_data(tensor, from_view(view, dtype))
    held = held_by(tensor)
    held.place = view  # this makes it a tensor of the device
    if hasattr(held, "inner"):
        del held.inner


def may_leave(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    """True if `tensor.data = new` may move a tensor of the device to another device."""
    plain = type(new) in (torch.Tensor, torch.nn.Parameter) and new.layout is torch.strided and not is_traced(new)
    return isinstance(tensor, Tensor) and not is_traced(tensor) and tensor.is_leaf and plain


def _leave(tensor: Tensor, new: torch.Tensor) -> None:
    grad = tensor.grad
    tensor.grad = None
    new = new.detach().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        new = torch.nn.Parameter(new, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, new)  # by `exchange`
    if grad is not None:  # torch refuses a gradient on another device than its tensor
        tensor.grad = grad.to(tensor.device, tensor.dtype)


def has_values(tensor: torch.Tensor) -> bool:
    """True if a tensor of the device has values that can be read: neither torch nor JAX traces it."""
    return not is_traced(tensor) and not isinstance(array_of(tensor), jax.core.Tracer)


def array_for_jax(tensor: torch.Tensor) -> jax.Array:
    """The array of a tensor of the device, that leaves torch: observers see that it is read."""
    if OBSERVERS:
        met(None, (tensor,), None)
    found: jax.Array = array_of(tensor)
    return found


@uncaptured
def array_of(operand: Any) -> Any:
    """The array of an operand: a tensor of the device, a 0-d CPU tensor, or a number.

    Raises:
        Traced: it has no values.
        RuntimeError: a tensor of another device.
    """
    if type(operand) is not Tensor and not isinstance(operand, torch.Tensor):
        return number(operand)
    place = getattr(attributes_of(operand), "place", None)
    if place is not None:
        return place.read() if type(place) is View else place
    if is_traced(operand):
        raise Traced
    if (operand.dim() == 0 and operand.device.type == "cpu") or is_constant(operand):
        return bridge.uncommitted(operand.clone())
    raise two_devices("jax:0", str(operand.device))
