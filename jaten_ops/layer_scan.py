"""Equal layers run as one loop: a program as small, and compiled as fast, as that of one layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch._higher_order_ops import scan
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from .arrays.observers import is_in_program
from .errors import UnsupportedInputError
from .tracing import is_traced_now


def scan_layers(layers: Iterable[torch.nn.Module], x: Any, *args: Any, remat: bool = False, **kwargs: Any) -> Any:
    """Calls equal layers one after the other, `x = layer(x, *args, **kwargs)`, as one loop of the compiled program.

    The time to compile, and the size of the program, hardly grow with the number of layers. Parameters and buffers of
    the layers are stacked for it, which copies them, and the first layer's code runs for all. Gradients go to the
    parameters of each layer. Dropout differs from layer to layer. It works under `torch.compile`, in `compile_step`,
    `as_jax` and `torch.export`, on the CPU and on the device `jax`. In eager mode it calls layer after layer.

    Args:
        layers: at least one, such as a `torch.nn.ModuleList`, equal but for the values of their parameters and buffers,
            which they do not write to: BatchNorm in training does. Parameters that `distributed.fully_shard` has
            partitioned are gathered within the loop, those of one layer at a time, and again for its gradient.
        x: a tensor, or tensors in any structure; a layer returns one of the same structure, shapes and dtypes.
        args, kwargs: the same for all layers, such as a mask.
        remat: if True, the backward pass computes each layer's forward pass again: only the values between layers are
            kept.

    Returns:
        What the last layer returns.

    Raises:
        UnsupportedInputError: no layers, or layers that differ in more than values: in their modules, in shapes,
            dtypes, or attributes of a module that are floats, bools, strings or functions. Under `torch.compile` they
            are compared when it compiles, and Dynamo raises an error with the same text.

    Example:
        >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(8))
        >>> jaten_ops.scan_layers(layers, torch.ones(2, 4)).shape
        torch.Size([2, 4])
    """
    layers = list(layers)
    _require_equal(*layers)
    if not (is_in_program() or is_traced_now()):  # torch would compile its loop at each call
        return _one_after_the_other(layers, x, args, kwargs, remat)
    first = layers[0]
    states = [{**dict(layer.named_parameters()), **dict(layer.named_buffers())} for layer in layers]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}

    def call(state: dict[str, torch.Tensor], x: Any) -> Any:
        return functional_call(first, state, (x, *args), kwargs)

    def one(x: Any, of_layer: tuple[torch.Tensor, dict[str, torch.Tensor]]) -> tuple[Any, torch.Tensor]:
        _, state = of_layer
        result = checkpoint(call, state, x, use_reentrant=False) if remat else call(state, x)
        # scan refuses a result in the memory of what it is given: a dropout outside of training returns that itself
        return tree_map(torch.clone, result), tree_leaves(result)[0].new_zeros(0)  # it stacks something of each layer

    numbers = torch.arange(len(layers), device=tree_leaves(x)[0].device)  # layers without parameters count, too
    return scan(one, x, (numbers, stacked), dim=0)[0]


def _one_after_the_other(
    layers: Sequence[torch.nn.Module], x: Any, args: Sequence[Any], kwargs: dict[str, Any], remat: bool
) -> Any:
    for layer in layers:
        call = partial(layer, **kwargs)
        x = checkpoint(call, x, *args, use_reentrant=False) if remat else call(x, *args)
    return x


def _require_equal(*layers: torch.nn.Module) -> None:
    if not layers:
        raise UnsupportedInputError("scan_layers", "no layers", "one at least")
    first = _described(layers[0])
    for i, layer in enumerate(layers[1:], 1):
        for expected, found in zip_longest(first, _described(layer)):
            if found != expected:
                raise UnsupportedInputError("scan_layers", f"layer {i} with {found}", f"{expected}, as layer 0")


# as torch.compiler.assume_constant_result, which would import Dynamo
setattr(_require_equal, "_dynamo_marked_constant", True)  # noqa: B010  # mypy knows no such attribute


def _described(layer: torch.nn.Module) -> list[str]:
    """All of a layer but its values, as texts. Integers that its text does not show may be its number: left out."""
    settings = [
        f"{type(part).__name__}.{name} = {value.__qualname__ if isinstance(value, _FUNCTIONS) else value}"
        for part in layer.modules()
        for name, value in vars(part).items()
        if isinstance(value, (bool, float, str, *_FUNCTIONS))
    ]
    tensors = [f"{n}: {t.dtype}{list(t.shape)} on {t.device}" for n, t in layer.state_dict().items()]
    return [*repr(layer).splitlines(), *settings, *tensors]


_FUNCTIONS = (FunctionType, BuiltinFunctionType)
