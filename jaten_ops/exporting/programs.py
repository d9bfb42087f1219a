"""`export`: a torch program as StableHLO with its state, for processes without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import torch
from jax.sharding import Mesh

from ..arrays import bridge
from ..cpu.layouts import flattened, ordered
from ..errors import KernelError, UnsupportedInputError
from ..step import Step
from ..xla import matmul_precision
from ..xla.x64 import tracing
from .artifact import Exported
from .over_meshes import mesh_over, partition_of, sharding_of, spec_over, updated_in_place
from .torch_programs import ProgramToExport, torch_program
from .training_steps import step_to_export


def export(
    program: Callable[..., Any] | torch.export.ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    platforms: Sequence[str] | None = None,
    training: bool = False,
) -> Exported:
    """Exports a module or a function as a program that runs without torch: StableHLO, and its state beside it.

    The program is captured by `torch.export`. Parameters, buffers and constants that it reads are its state, each once
    and under the name that it has in the module; counters of BatchNorm are not read in inference. Buffers that it
    writes to are updated at each call. A program that draws random numbers, such as dropout in training, takes a seed.

    Args:
        program: a module, which is exported in the mode that it is in; a function of tensors, with the tensors and
            modules that it reads; or an `ExportedProgram` of `torch.export`.
        args, kwargs: an example of its arguments: tensors of any shape and dtype that JAX has, on any device, in
            tuples, lists and dicts; numbers, strings and None become constants. Not needed for an `ExportedProgram`.
        dynamic_shapes: as that of `torch.export.export`. A size that is open has the name of its `Dim`.
        platforms: of "cpu", "cuda", "rocm" and "tpu", for all of which it is to run; by default the first that JAX has.
        training: whether `program` is a step that `compile_step` returned, called at least once: parameters, the
            optimizer's state and its hyperparameters are the state, and each call of the program updates it.

    Returns:
        An `Exported`: call it, save it to a folder, or look at its `stablehlo`.

    Raises:
        UnsupportedInputError: the program writes to an argument, calls what has no kernel or what a platform lacks, or
            has a size or a result that a program without torch cannot have.
        MissingKernelError: an operator has no kernel.
        RuntimeError: an optimizer of a step has no state yet.

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
    found = _to_export(program, args, kwargs or {}, dynamic_shapes, training)
    names = tuple(platforms or (jax.export.default_export_platform(),))
    return Exported(_exported(found, names), _signature(found, names), found.state)


def _signature(found: ProgramToExport, platforms: Sequence[str]) -> dict[str, Any]:
    mesh = _mesh(found)
    return {
        "format": 1,
        "platforms": list(platforms),
        "mesh": None if mesh is None else dict(mesh.shape),
        "inputs": found.inputs,
        "arrays": found.arrays,
        "results": found.results,
        "state": list(found.state),
        "partitions": {n: partition_of(s) for n, t in found.state.items() if (s := sharding_of(t)) is not None},
        "updated": found.updated,
        "random": found.random,
        "hyperparameters": list(found.hyperparameters),
    }


def _to_export(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any, training: bool
) -> ProgramToExport:
    if training is not isinstance(program, Step):
        expected = "training=True and what compile_step returned, or training=False and another function"
        raise UnsupportedInputError("export", f"{type(program).__name__} and training={training}", expected)
    if not isinstance(program, Step):
        return torch_program(program, args, kwargs, dynamic_shapes)
    if dynamic_shapes is not None:
        raise UnsupportedInputError("export of a step", "dynamic_shapes", "known sizes")
    return step_to_export(program, args, kwargs)


def _exported(found: ProgramToExport, platforms: tuple[str, ...]) -> jax.export.Exported:
    function, mesh = found.function, _mesh(found)
    state = [spec_over(mesh, t.shape, bridge.to_numpy_dtype(t.dtype), sharding_of(t)) for t in found.state.values()]
    inputs = [spec_over(mesh, s.shape, s.dtype, s.sharding) for s in found.specs]
    is_open = any(isinstance(size, str) for array in found.arrays for size in array["shape"])
    if platforms == ("cpu",) and not is_open and mesh is None:  # the rewrites for a CPU take known sizes of one device
        function = flattened(ordered(function, platform="cpu"), platform="cpu")
    if mesh is not None:
        specs = dict(zip(found.state, state, strict=True))
        function = updated_in_place(function, [specs[name].sharding for name in found.updated])
    seeds = [spec_over(mesh, (), np.dtype("int64"))] * found.random
    try:
        with tracing(), matmul_precision.as_in_torch(is_elsewhere=platforms != ("cpu",)):
            return jax.export.export(jax.jit(function, keep_unused=True), platforms=platforms)(state, inputs, seeds)
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


def _mesh(found: ProgramToExport) -> Mesh | None:
    return mesh_over([*map(sharding_of, found.state.values()), *(spec.sharding for spec in found.specs)])
