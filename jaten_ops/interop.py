"""PyTorch in JAX programs and JAX in PyTorch programs, without a copy."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from . import torch_functions
from .arrays import bridge
from .arrays.observers import OBSERVERS, met
from .arrays.partitioned import with_auto_axes
from .device import privateuse1
from .errors import UnsupportedInputError
from .ops import user_ops
from .tensor.tensor import array_of, from_array
from .xla.x64 import Enabled


def _tell_jax(kind: type) -> None:
    """Registers the result type of `x.max(0)` and others as a pytree."""
    with contextlib.suppress(ValueError):  # another library has registered it
        jax.tree_util.register_pytree_node(
            kind, lambda results: (tuple(results), None), lambda _, results: kind(results)
        )


for _kind in torch.return_types.all_return_types:
    _tell_jax(_kind)


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


def to_jax(tree: Any) -> Any:
    """Turns tensors on the device `jax` into `jax.Array`s, without a copy for contiguous ones.

    Args:
        tree: tensors of any shape and dtype, in any structure that `torch.utils._pytree` knows; other leaves stay as
            they are. A tensor that requires gradients is taken, too: the array is not recorded by autograd.

    Returns:
        The same structure with a `jax.Array` of the same shape and dtype for each tensor.

    Raises:
        UnsupportedInputError: a tensor of another device; move it with `.to("jax")`.

    Example:
        >>> jaten_ops.to_jax([torch.ones(2, device="jax")])
        [Array([1., 1.], dtype=float32)]
    """

    def one(tensor: torch.Tensor) -> jax.Array:
        if tensor.device.type != "jax":
            raise UnsupportedInputError("tensor", f"one on {tensor.device}", "one on jax; move it with .to('jax')")
        if OBSERVERS:
            met(None, (tensor,), None)
        return array_of(tensor)

    return tree_map_only(torch.Tensor, one, tree)


_ARRAYS = (jax.Array, np.ndarray, np.number, np.bool_)


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
        the values of tensors (an index out of range) are not raised while JAX traces. Functions that `torch.compile`
        compiles run eagerly inside.

    Raises:
        UnsupportedInputError: where JAX traces, the program reads the value of a tensor, writes to one that is not an
            argument, keeps one after the call, or reads an array that JAX traces elsewhere.

    Example:
        >>> jax.grad(jaten_ops.as_jax(lambda x: (x * x.detach()).sum()))(jnp.arange(3.0))
        Array([0., 1., 2.], dtype=float32)
    """
    call = torch_functions.of_module(program, mutable) if isinstance(program, torch.nn.Module) else program

    def function(*args: Any, key: jax.Array | None = None, **kwargs: Any) -> Any:
        privateuse1.require_slot()
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)]
        arrays = [with_auto_axes(_strong(jnp.asarray(leaves[i]))) for i in places]
        made: list[Any] = []

        def flat(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            filled = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                filled[i] = tensor
            args, kwargs = jax.tree.unflatten(structure, filled)
            results, made[:] = torch_functions.taken_apart(call(*args, **kwargs))
            return results

        results = torch_functions.call(flat, arrays, key)
        return torch_functions.put_together(results, *made)

    return function


_names: dict[Callable[..., Any], str] = {}
_structures: dict[tuple[str, Any], str] = {}
_fillers = types.SimpleNamespace()  # an object: Dynamo guards only the attributes that it has read, but all of a dict
_numbers = itertools.count()


def call_jax(fn: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """Calls a JAX function in a torch program, with gradients by `jax.vjp`; Dynamo records it as one node.

    Args:
        fn: takes arrays, returns arrays in any pytree. It becomes a torch operator at its first call, so pass the
            same function each time, not a new lambda.
        tensors: of any shape and dtype, plain ones, or on the device `jax`.

    Returns:
        Tensors on the device of the arguments, in the structure that the function returns for arrays of these shapes
        and dtypes; None stays None.

    Raises:
        KernelResultError: the function returns something other than arrays.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> jaten_ops.call_jax(jnp.cumsum, x).sum().backward()
        >>> x.grad
        tensor([2., 1.])
    """
    name = _name_of(fn)
    results = getattr(torch.ops.jaten_call, name)(list(tensors))
    structure = _structure_of(name, tuple([(t.shape, t.dtype) for t in tensors]))
    return getattr(_fillers, structure)(results)


def _name_of(fn: Callable[..., Any]) -> str:
    """The name of a function's operator, which is made on first use."""
    found = _names.get(fn)
    return _new_name_of(fn) if found is None else found


def _new_name_of(fn: Callable[..., Any]) -> str:
    name = f"f{next(_numbers)}"

    def kernel(operands: Any) -> Any:
        leaves, structure = jax.tree.flatten(fn(*operands))
        kinds = tuple([(tuple(a.shape), bridge.TORCH_DTYPES[np.dtype(a.dtype)]) for a in operands])
        filler = _filler(jax.tree.unflatten(structure, range(len(leaves))))
        setattr(_fillers, filler.__name__, filler)
        _structures[name, kinds] = filler.__name__
        return leaves

    user_ops.op(f"jaten_call::{name}(Tensor[] operands) -> Tensor[]", differentiable=["operands"])(kernel)
    return _names.setdefault(fn, name)  # one for all threads


def _structure_of(name: str, kinds: tuple[tuple[torch.Size, torch.dtype], ...]) -> str:
    """The name of the function that rebuilds the results, as traced for operands of these shapes and dtypes."""
    return _structures[name, kinds]


def _filler(template: Any) -> Callable[[Sequence[torch.Tensor]], Any]:
    """A generated function that puts results into a structure, in the places of their indices.

    Dynamo cannot trace JAX's pytrees.
    """
    scope: dict[str, Any] = {}

    def source(value: Any) -> str:
        if value is None or type(value) is int:
            return "None" if value is None else f"results[{value}]"
        if type(value) is tuple:
            return f"({''.join(f'{source(v)}, ' for v in value)})"
        if type(value) is list:
            return f"[{', '.join(map(source, value))}]"
        if type(value) is dict and all(type(key) in (str, int) for key in value):
            return f"{{{', '.join(f'{key!r}: {source(v)}' for key, v in value.items())}}}"
        name = f"part_{len(scope)}"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            scope[name] = type(value)
            return f"{name}({', '.join(map(source, value))})"
        scope[name] = lambda results: jax.tree.map(lambda number: results[number], value)
        return f"{name}(results)"

    text, name = source(template), f"fill_{next(_numbers)}"
    exec(compile(f"def {name}(results):\n    return {text}\n", __file__, "exec"), scope)  # our own text
    return scope[name]


for _fn in (_name_of, _structure_of):
    # as torch.compiler.assume_constant_result, which would import Dynamo
    setattr(_fn, "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute
