"""The carrier: a plain torch tensor on the device `jax`, without a torch storage, that has a `View` of arrays.

Users hold `jaten_ops.Tensor`, which has the same view; compiled graphs and `jaten::` kernels see the carriers.
"""

from __future__ import annotations

import functools

import jax
import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

from ..errors import UnsupportedInputError
from ..tracing import is_faked_now, uncaptured
from . import attributes
from .bridge import TORCH_DTYPES
from .storage_views import View
from .strides import row_major

# the kernel that serves all devices, without dispatch
_restrided = functools.partial(torch.ops.aten.as_strided.default._op_dk, torch._C.DispatchKey.CPU)


def of(view: View) -> torch.Tensor:
    """A new carrier of a view, with contiguous strides."""
    tensor = torch._C._acc.create_empty_tensor(view.shape, TORCH_DTYPES[view.storage.array.dtype])
    if 0 in view.shape:  # for these torch computes other strides than the view has
        with torch._C.DisableTorchFunction():  # a mode would see the operator, whichever kernel is called here
            tensor = _restrided(tensor, view.shape, row_major(view.shape))
    attributes.held_by(tensor).place = view  # this makes it a carrier
    return tensor


def wrap(array: jax.Array) -> torch.Tensor:
    """A new carrier of an array."""
    return of(View.whole(array))


def is_real(tensor: torch.Tensor) -> bool:
    """True if a tensor on the device has arrays; fake and functional tensors, met while tracing, do not."""
    return attributes.place_of(tensor) is not None


def view_of(tensor: torch.Tensor) -> View:
    """The view that a carrier or a `jaten_ops.Tensor` has.

    Raises:
        UnsupportedInputError: the tensor has none: jaten did not put it on the device.
        UnsupportedFakeTensorException: it is one that torch traces. At this error Dynamo breaks the graph.
    """
    view = attributes.view_or_none(tensor)
    if view is None:
        if is_faked_now() and tensor.device.type == "jax":
            raise UnsupportedFakeTensorException("the values of a tensor that is traced, on the device jax")
        raise UnsupportedInputError(
            "tensor", f"a {type(tensor).__name__} on {tensor.device}",
            "a tensor on the device 'jax' made by jaten: with device='jax', or by .to('jax')",
        )  # fmt: skip
    return view


@uncaptured
def unwrap(tensor: torch.Tensor) -> jax.Array:
    """The array of a carrier or a `jaten_ops.Tensor`; raises as `view_of` does."""
    place = getattr(attributes.attributes_of(tensor), "place", None)  # compiled programs ask for each of their inputs
    return place.read() if type(place) is View else view_of(tensor).read()


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A carrier of the values that another one has now: later writes to that leave it alone.

    Of memory that is freed and filled again, as FSDP's, it is the carrier itself.
    """
    return tensor if view_of(tensor).storage.root.is_freed else wrap(unwrap(tensor))
