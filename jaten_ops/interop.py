"""PyTorch in JAX programs and JAX in PyTorch programs, without a copy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from . import torch_functions
from .arrays import bridge
from .arrays.partitioned import with_auto_axes
from .device import privateuse1
from .errors import UnsupportedInputError
from .ops import called_functions
from .tensor.operand_values import Traced
from .tensor.tensor import Tensor, array_for_jax, from_array
from .tracing import uncaptured
from .xla.x64 import Enabled


def _tell_jax(kind: type) -> None:
    """Registers the result type of `x.max(0)` and others as a pytree."""
    with contextlib.suppress(ValueError):  # another library has registered it
        jax.tree_util.register_pytree_node(
            kind, lambda results: (tuple(results), None), lambda _, results: kind(results)
        )


for _kind in torch.return_types.all_return_types:
    _tell_jax(_kind)


@uncaptured
def from_jax(tree: Any) -> Any:
    """Turns `jax.Array`s into tensors on the device `jax`, without a copy; sharded arrays stay sharded.

    Args:
        tree: arrays of any shape and of a dtype that torch has, in any pytree; other leaves stay as they are. A weakly
            typed array, such as `jnp.asarray(2.0)`, is copied to one of the dtype that it shows: tensors have no weak
            types.

    Returns:
        The same structure with a `jaten_ops.Tensor` of the same shape and dtype for each array.

    Raises:
        DeviceSlotError: another backend has the process's slot for such a device.
        UnsupportedInputError: a dtype that torch does not have, such as that of PRNG keys.

    Example:
        >>> jaten_ops.from_jax({"x": jnp.arange(3.0)})
        {'x': tensor([0., 1., 2.], device='jax:0')}
    """
    privateuse1.require_slot()
    return jax.tree.map(lambda a: from_array(with_auto_axes(_strong(a))) if isinstance(a, jax.Array) else a, tree)


def _strong(array: jax.Array) -> jax.Array:
    if array.dtype not in bridge.TORCH_DTYPES:
        raise UnsupportedInputError(
            "array dtype", array.dtype, "a dtype that torch has; for a key: jax.random.key_data"
        )
    with Enabled():
        return jax.lax.convert_element_type(array, array.dtype) if array.weak_type else array


@uncaptured
def to_jax(tree: Any) -> Any:
    """Turns tensors on the device `jax` into arrays of JAX, without a copy for contiguous ones.

    Args:
        tree: tensors of any shape and dtype, in any structure that `torch.utils._pytree` knows; other leaves stay as
            they are. A tensor that requires gradients is taken, too: the array is not recorded by autograd.

    Returns:
        The same structure with a `jax.Array` of the same shape and dtype for each tensor.

    Raises:
        UnsupportedInputError: a tensor of another device; move it with `.to("jax")`. Or one without values, as in a
            function that `torch.vmap` or `torch.func.grad` transforms: `call_jax` calls JAX functions there. In one
            that `torch.compile` compiles, `to_jax` breaks the graph.

    Example:
        >>> jaten_ops.to_jax([torch.ones(2, device="jax")])
        [Array([1., 1.], dtype=float32)]
    """

    if type(tree) is Tensor:  # without the walk
        return _array_to_jax(tree)
    return tree_map_only(torch.Tensor, _array_to_jax, tree)


@uncaptured
def _array_to_jax(tensor: torch.Tensor) -> jax.Array:
    if tensor.device.type != "jax":
        raise UnsupportedInputError("tensor", f"one on {tensor.device}", "one on jax; move it with .to('jax')")
    try:
        found: jax.Array = array_for_jax(tensor)
    except Traced:
        raise UnsupportedInputError(
            "tensor", "one of a transform (torch.vmap, torch.func.grad) or of a program that torch captures",
            "one with values; jaten_ops.call_jax(function, tensor) calls a JAX function there",
        ) from None  # fmt: skip
    return found


_NO_LONGS = (
    "JAX makes integers of 32 bits, also of NumPy's, while jax.enable_x64 is off. Fix: to_jax(tensor.to('jax')) keeps"
    " those of 64; or call tensor.long() in the torch function."
)
_ARRAYS = (jax.Array, np.ndarray, np.number, np.bool_)


@uncaptured
def as_jax(program: Callable[..., Any], *, mutable: bool = False) -> Callable[..., Any]:
    """Turns a torch function or module into a function of `jax.Array`s, for `jax.jit`, `grad`, `vmap`, `scan`, ...

    Its derivatives, of any order, are those of torch's autograd, with `detach`, `no_grad`, hooks, the backward of each
    `autograd.Function`, and ATen's gradients at ties and zeros. `jax.jvp` is the transpose of the backward pass.

    Args:
        program: a function of tensors; or a module, whose parameters and buffers become the first argument, a dict of
            arrays by name (`to_jax(dict(module.to("jax").state_dict()))`). A parameter that does not require gradients
            gets none. A parameter with several names has the value of the first name given, and its gradient at each.
        mutable: if True, the function of a module returns a pair: the module's result, and a dict of its buffers after
            the call. If False, the module's writes to buffers are dropped.

    Returns:
        A function that takes arrays of any shape and of a dtype that torch has, in any pytree, and returns arrays with
        the shapes and dtypes that `program` gives. Its keyword argument `key`, a JAX PRNG key, seeds random operators:
        without it they raise RuntimeError, so that no fixed sample is compiled into a program. Errors of ATen about
        the values of tensors (an index out of range), or of a distribution's arguments, are not raised while JAX
        traces. Tensors of the CPU that `program` makes or holds are constants beside its operands. Functions that
        `torch.compile` compiles run eagerly inside. Arrays may have symbolic dimensions, as in `jax.export`; they have
        no `jax.jvp`.

    Raises:
        UnsupportedInputError: where JAX traces, the program reads the value of a tensor, writes to one that is not an
            argument, keeps one after the call, or reads an array that JAX traces elsewhere; or it holds only for some
            values of symbolic dimensions.

    Example:
        >>> jax.grad(jaten_ops.as_jax(lambda x: (x * x.detach()).sum()))(jnp.arange(3.0))
        Array([0., 1., 2.], dtype=float32)
    """
    if isinstance(program, torch.nn.Module):
        return function_of_arrays(torch_functions.of_module(program, mutable))
    return function_of_arrays(program)


def function_of_arrays(call: Callable[..., Any]) -> Callable[..., Any]:
    """`as_jax` of a function of tensors."""

    @uncaptured
    def function(*args: Any, key: jax.Array | None = None, **kwargs: Any) -> Any:
        privateuse1.require_slot()
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)]
        arrays = [with_auto_axes(_strong(jnp.asarray(leaves[i]))) for i in places]
        for i in places:
            leaves[i] = None  # JAX's caches may keep what follows
        made: list[Any] = []

        def flat(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            filled = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                filled[i] = tensor
            args, kwargs = jax.tree.unflatten(structure, filled)
            results, made[:] = torch_functions.taken_apart(call(*args, **kwargs))
            return results

        try:
            results = torch_functions.call(flat, arrays, key)
        except (RuntimeError, IndexError) as error:
            if "Long" in str(error) and any(a.dtype == np.int32 for a in arrays):
                error.add_note(_NO_LONGS)
            raise
        return torch_functions.put_together(results, *made)

    return function


def call_jax(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a JAX function in a torch program, with gradients by `jax.vjp`; Dynamo records it as one node.

    Args:
        fn: takes arrays, returns arrays in any pytree. A new lambda or `functools.partial` of the same code, with the
            same numbers and strings in its closure, is the same function; one that closes over arrays or other values
            is another at each call, and compiled anew. A function that is found under its name in a module, other
            than `__main__`, stays callable from exported programs, in a process that has imported the module.
        args, kwargs: tensors of any shape and dtype, plain ones, or on the device `jax`; floats and complex numbers,
            which are traced; ints, bools, strings and None, which are static; lists, tuples, named tuples and dicts
            of these.

    Returns:
        Tensors on the device of the arguments, in the structure that the function returns for arrays of these shapes
        and dtypes; None stays None.

    Raises:
        KernelResultError: the function returns something other than arrays.
        UnsupportedInputError: an argument of another class.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> jaten_ops.call_jax(jnp.cumsum, x).sum().backward()
        >>> x.grad
        tensor([2., 1.])
    """
    tensors: list[torch.Tensor] = []
    numbers: list[Any] = []
    taken = tuple([called_functions.structure_and_values(v, tensors, numbers) for v in args])
    named = tuple([(k, called_functions.structure_and_values(v, tensors, numbers)) for k, v in kwargs.items()])
    if torch.compiler.is_compiling():  # sizes may be symbolic
        _guard(fn)
        key = called_functions.key_in_graph(fn, (taken, named))
        results = called_functions.CALL(tensors, numbers or None, key)
        structure = called_functions.structure_of_results(key, tuple([(t.ndim, t.dtype) for t in tensors]))
        return getattr(called_functions.fillers, structure)(results)
    key = called_functions.call_key(fn, (taken, named))
    results = called_functions.CALL(tensors, numbers or None, key)  # an empty list of numbers cannot be exported
    fill = called_functions.FILLERS.get(key) or called_functions.filler_of(
        key, tuple([(tuple(t.shape), t.dtype) for t in tensors])
    )
    return fill(results)


def _guard(fn: Any) -> None:
    """Has Dynamo compile anew for another function of the same code, whose closure may have other values."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if called_functions.has_state(fn):
        id(fn)  # Dynamo guards it
