"""`export`: a torch program as StableHLO with its state, for processes without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import torch

from ..arrays import bridge
from ..cpu.layouts import flattened, ordered
from ..errors import KernelError, UnsupportedInputError
from ..xla.x64 import tracing
from .artifact import Exported
from .torch_programs import ProgramToExport, torch_program


def export(
    program: Callable[..., Any] | torch.export.ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    platforms: Sequence[str] | None = None,
) -> Exported:
    """Exports a module or a function as a program that runs without torch: StableHLO, and its state beside it.

    The program is captured by `torch.export` and computes as a compiled one does. Parameters, buffers and constants are
    its state: each is kept once, under the name that it has in the module, and only if the program reads it, so not the
    counters of BatchNorm in inference. A buffer that the program writes to is part of its results, and a loaded program
    updates it at each call. A program that draws random numbers, such as dropout in training, takes a seed.

    Args:
        program: a module, which is exported in the mode that it is in; a function of tensors, with the tensors and
            modules that it reads; or an `ExportedProgram` of `torch.export`.
        args, kwargs: an example of its arguments: tensors of any shape and dtype that JAX has, on any device, in
            tuples, lists and dicts; numbers, strings and None become constants. Not needed for an `ExportedProgram`.
        dynamic_shapes: as that of `torch.export.export`. A size that is open has the name of its `Dim`.
        platforms: of "cpu", "cuda", "rocm" and "tpu", for all of which the program is to run; by default the first that
            JAX has in this process.

    Returns:
        An `Exported`: call it, save it to a folder, or look at its `stablehlo`.

    Raises:
        UnsupportedInputError: the program writes to an argument, or has an operator of another library without a
            kernel, a result or size that a program without torch cannot have, or a call that a platform lacks.
        MissingKernelError: an operator has no kernel.

    Example:
        >>> batch = torch.export.Dim("batch", max=64)
        >>> model = torch.nn.Linear(4, 2)
        >>> exported = jaten_ops.export(model, (torch.ones(3, 4),), dynamic_shapes=({0: batch},))
        >>> exported.call(torch.ones(5, 4)).shape
        torch.Size([5, 2])
        >>> exported.signature["arrays"]
        [{'name': 'input', 'dtype': 'float32', 'shape': ['batch', 4]}]

    Source: `torch.export.export` and `jax.export.export`.
    """
    found = torch_program(program, args, kwargs or {}, dynamic_shapes)
    names = tuple(platforms or (jax.default_backend(),))
    exported = _exported(found, names)
    signature = {
        "format": 1,
        "platforms": list(names),
        "inputs": found.inputs,
        "arrays": found.arrays,
        "results": found.results,
        "state": list(found.state),
        "updated": found.updated,
        "random": found.random,
    }
    return Exported(exported, signature, found.state)


def _exported(found: ProgramToExport, platforms: tuple[str, ...]) -> jax.export.Exported:
    function, state = found.function, [_spec(tensor) for tensor in found.state.values()]
    is_open = any(isinstance(size, str) for array in found.arrays for size in array["shape"])
    if platforms == ("cpu",) and not is_open:  # the rewrites for a CPU take sizes that are known
        function = flattened(ordered(function, platform="cpu"), platform="cpu")
    seeds = [jax.ShapeDtypeStruct((), np.dtype("int64"))] * found.random
    try:
        with tracing():
            return jax.export.export(jax.jit(function), platforms=platforms)(state, found.specs, seeds)
    except KernelError as error:
        got = str(error).partition("\n")[0]
        if is_open:
            expected = "an operator that takes it, or a size that is not in dynamic_shapes"
            raise UnsupportedInputError("a size that is open", got, expected) from error
        if isinstance(error.__cause__, jax.errors.JAXTypeError):
            expected = "a program whose sizes are known, such as one with torch.where and masks"
            raise UnsupportedInputError("a size that depends on values", got, expected) from error
        raise
    except NotImplementedError as error:
        got = f"what JAX cannot lower for {' and '.join(platforms)}: {str(error).partition(chr(10))[0]}"
        raise UnsupportedInputError("a program to export", got, "another platform, or sizes that are known") from error


def _spec(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape), bridge.to_numpy_dtype(tensor.dtype))
