"""A torch program captured by `torch.export`, as one JAX function of its state and its inputs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from .. import registry
from ..arrays import bridge
from ..backend import pipeline
from ..backend.captured_overrides import overridden
from ..backend.lowering import Lowered
from ..backend.nodes import overload_of, source_line
from ..backend.passes.third_party_calls import is_unknown
from ..errors import UnsupportedInputError
from .open_sizes import OpenSizes, names_of
from .over_meshes import entry_of, lies_over_mesh, sharding_of, tie
from .trees import Place, tree_of

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_STATE = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


@dataclass(frozen=True)
class ProgramToExport:
    """A program to export.

    Attributes:
        function: of three lists of arrays: its state, its inputs, and the seed if it draws random numbers. It returns
            the arrays of its results, and those of the state that it updates.
        state: the tensors of its state, by name; one that has several names once.
        updated: the names of those that it updates.
        inputs, results: the trees of its arguments, a list and a dict, and of what it returns.
        arrays: for each input its name, dtype and shape, with names for open sizes.
        specs: what stands for each input when it is traced; over a mesh with its sharding.
        random: whether it draws random numbers.
        hyperparameters: the names of the floats of optimizers, if it is a step.
    """

    function: Callable[[list[Any], list[Any], list[Any]], list[Any]]
    state: dict[str, torch.Tensor]
    updated: list[str]
    inputs: Any
    results: Any
    arrays: list[dict[str, Any]]
    specs: list[Any]
    random: bool
    hyperparameters: Sequence[str] = ()


class _Function(torch.nn.Module):
    """A function as a module, as `torch.export` takes it, with the modules that it reads from around it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = fn
        own = getattr(fn, "__self__", None)
        inner = inspect.unwrap(getattr(fn, "__func__", fn))
        around = inspect.getclosurevars(inner) if inspect.isfunction(inner) else None
        found = {"self": own} if around is None else {"self": own, **around.nonlocals, **around.globals}
        for name, value in found.items():
            if isinstance(value, torch.nn.Module):
                self.add_module(name, value)


def torch_program(
    program: Callable[..., Any] | torch.export.ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Any,
) -> ProgramToExport:
    """A program captured for arguments like these.

    Args:
        program: a module, a function, or an exported program, of which the arguments are not looked at.
        args, kwargs: an example of its arguments.
        dynamic: as `dynamic_shapes` of `torch.export.export`.

    Raises:
        UnsupportedInputError: it writes to an argument, or calls or returns what cannot be exported.
        MissingKernelError: an operator has no kernel.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own code
        exported, forward = _exported(program, args, kwargs, dynamic)
        with overridden(exported.graph_module, ()):
            exported = exported.run_decompositions(_decompositions() | _composites(exported.graph_module))
    graph, signature = exported.graph_module, exported.graph_signature
    for node in graph.graph.nodes:  # what `hooks.export` makes of views, for inputs of any strides: arrays have none
        if node.target is torch.ops.aten.reshape.default:
            node.target = torch.ops.aten.view.default
    _require_known(graph)
    _refuse_other_writes(signature)
    pipeline.run_on_functional(graph)
    lowered = Lowered(graph, torch.get_default_dtype())
    specs = dict(zip(lowered.placeholders, signature.input_specs, strict=True))
    outputs = list(zip(signature.output_specs, lowered.outputs, strict=True))
    updated = [(str(spec.target), node) for spec, node in outputs if spec.kind is OutputKind.BUFFER_MUTATION]
    returned = [(spec, node) for spec, node in outputs if spec.kind is OutputKind.USER_OUTPUT]
    state, places = _state_of(exported, specs, {name for name, _ in updated})
    given = [node for node, spec in specs.items() if _is_input(spec)]
    names = [] if forward is None else names_of(forward, args, kwargs, dynamic)
    examples = [t for t in pytree.tree_leaves(exported.example_inputs) if isinstance(t, torch.Tensor)]
    arrays, operands = _inputs_of(given, OpenSizes(exported, _named_symbols(given, names)), examples)
    wanted = [*(node for spec, node in returned if isinstance(spec.arg, TensorArgument)), *(n for _, n in updated)]

    def function(held: list[Any], inputs: list[Any], seeds: list[Any]) -> list[Any]:
        by_name = dict(zip(state, held, strict=True))
        values = {node: by_name[name] for node, name in places.items()} | dict(zip(given, inputs, strict=True))
        results, _ = lowered(values, seeds[0] if seeds else None, wanted)
        return results

    return ProgramToExport(
        function, state, [name for name, _ in updated], _input_tree(exported), _result_tree(exported, returned),
        arrays, operands, lowered.random,
    )  # fmt: skip


def _state_of(
    exported: torch.export.ExportedProgram, specs: Mapping[torch.fx.Node, Any], updated: set[str]
) -> tuple[dict[str, torch.Tensor], dict[torch.fx.Node, str]]:
    """The tensors that the program reads or updates, by name; and for each placeholder of one its name there.

    Tied tensors are one, unless they are updated.
    """
    state: dict[str, torch.Tensor] = {}
    places: dict[torch.fx.Node, str] = {}
    firsts: dict[Any, str] = {}
    for node, spec in specs.items():
        name = str(spec.target)
        if spec.kind not in _STATE or not (node.users or name in updated):
            continue
        tensor = _tensor_of(exported, name)
        places[node] = name if name in updated else firsts.setdefault(tie(tensor), name)
        state.setdefault(places[node], tensor)
    return state, places


def _inputs_of(
    given: Sequence[torch.fx.Node], sizes: OpenSizes, examples: Sequence[torch.Tensor]
) -> tuple[list[dict[str, Any]], list[Any]]:
    """For each input what the signature says of it, and what stands for it when it is traced."""
    arrays, operands = [], []
    for node, example in itertools.zip_longest(given, examples[: len(given)]):
        value = node.meta["val"]
        shape, dtype = tuple(map(sizes.value, value.shape)), bridge.to_numpy_dtype(value.dtype)
        sharding = None if example is None else sharding_of(example)
        operands.append(jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))
        arrays.append(entry_of(str(node.target), shape, dtype, sharding))
    return arrays, operands


def _exported(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any
) -> tuple[torch.export.ExportedProgram, Callable[..., Any] | None]:
    """The program of torch.export, and the function whose parameters the arguments are."""
    if isinstance(program, torch.export.ExportedProgram):
        return program, None
    module = program if isinstance(program, torch.nn.Module) else _Function(program)
    held = [*module.parameters(), *module.buffers()]
    over_mesh = any(map(lies_over_mesh, (*held, *pytree.tree_leaves((args, kwargs)))))
    if over_mesh:
        _require_mesh(module, held, dynamic)
    moved = _on_device if over_mesh else _in_memory
    args, kwargs = pytree.tree_map_only(torch.Tensor, moved, (tuple(args), dict(kwargs)))
    with contextlib.nullcontext() if over_mesh else _tensors_in_memory(module):
        try:
            found = torch.export.export(module, tuple(args), kwargs, dynamic_shapes=dynamic, strict=False)
        except RuntimeError as error:
            if "NotImplemented" not in str(error):  # torch's for a tensor of the device among the CPU's
                raise
            got = "one that reads a tensor of the device which is neither an argument nor of a module that it names"
            raise UnsupportedInputError("a program to export", got, "a module that holds the tensor") from error
    return found, module.forward


@contextlib.contextmanager
def _tensors_in_memory(module: torch.nn.Module) -> Iterator[None]:
    """A context in which the module's parameters and buffers of the device are copies of the CPU's; tied ones one."""
    copies: dict[int, torch.Tensor] = {}
    before: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    slots: Any
    for part in module.modules():
        for slots in (part._parameters, part._buffers):
            before += [(slots, name, t) for name, t in slots.items() if t is not None and t.device.type == "jax"]
    try:
        for slots, name, tensor in before:
            if id(tensor) not in copies:
                copy = tensor.detach().cpu()
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                copies[id(tensor)] = torch.nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
            slots[name] = copies[id(tensor)]
        yield
    finally:
        for slots, name, tensor in before:
            slots[name] = tensor


def _require_mesh(module: torch.nn.Module, held: Sequence[torch.Tensor], dynamic: Any) -> None:
    what = "a program over a mesh to export"
    if dynamic is not None:
        raise UnsupportedInputError(what, "dynamic_shapes", "known sizes")
    if any(t.device.type != "jax" for t in held):
        got = f"{type(module).__name__} with parameters or buffers of the CPU"
        raise UnsupportedInputError(what, got, "all on the device jax, by .to('jax')")


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.device.type == "jax" else tensor.detach().to("jax")


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu() if tensor.device.type == "jax" else tensor.detach()


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """The decompositions of operators that have no kernel."""
    table = torch.export.default_decompositions()
    return {op: rule for op, rule in table.items() if overload_of(op) not in registry.KERNELS}


def _composites(graph: torch.fx.GraphModule) -> dict[Any, Any]:
    """The parts of operators that torch composes of others and has no decomposition of, as `upsample_bilinear2d.vec`.

    torch.export keeps them in its graphs; AOTAutograd would not.
    """
    found = {
        n.target for g in (graph, *pipeline.graphs_inside(graph)) for n in g.graph.nodes if n.op == "call_function"
    }
    unknown = [op for op in found if isinstance(op, torch._ops.OpOverload) and overload_of(op) not in registry.KERNELS]
    return {
        op: op.py_kernels.get(_COMPOSITE, functools.partial(op._op_dk, _COMPOSITE))
        for op in unknown
        if op._can_decompose()
    }


def _require_known(graph: torch.fx.GraphModule) -> None:
    for node in filter(is_unknown, graph.graph.nodes):
        got = f"a call of {node.target}{source_line(node)}, which has no kernel"
        raise UnsupportedInputError("a program to export", got, "a kernel for it, by `jaten_ops.kernel`")


def _refuse_other_writes(signature: torch.export.ExportGraphSignature) -> None:
    for spec in signature.output_specs:
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            got = f"one that writes to {spec.target} ({spec.kind.name.lower().replace('_', ' ')})"
            raise UnsupportedInputError("a program to export", got, "one that returns the new value")


def _is_input(spec: Any) -> bool:
    return spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)


def _tensor_of(exported: torch.export.ExportedProgram, name: str) -> torch.Tensor:
    found = exported.state_dict.get(name)
    tensor = exported.constants[name] if found is None else found
    return tensor.detach()


def _named_symbols(given: Sequence[torch.fx.Node], names: Sequence[str | None]) -> dict[Any, str]:
    sizes = [size for node in given for size in node.meta["val"].shape]
    if len(sizes) != len(names):
        return {}
    pairs = zip(sizes, names, strict=True)
    return {s.node.expr: n for s, n in pairs if n is not None and isinstance(s, torch.SymInt) and s.node.expr.is_symbol}


def _input_tree(exported: torch.export.ExportedProgram) -> Any:
    numbers = iter(range(len(exported.graph_signature.input_specs)))
    specs = [s for s in exported.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    leaves = [Place(next(numbers)) if _is_input(s) else s.arg.value for s in specs]
    args, kwargs = pytree.tree_unflatten(leaves, exported.call_spec.in_spec)
    return tree_of([list(args), kwargs])


def _result_tree(exported: torch.export.ExportedProgram, returned: Sequence[Any]) -> Any:
    numbers = iter(range(len(returned)))
    leaves = [Place(next(numbers)) if isinstance(s.arg, TensorArgument) else _constant(s) for s, _ in returned]
    return tree_of(pytree.tree_unflatten(leaves, exported.call_spec.out_spec))


def _constant(spec: Any) -> Any:
    if not hasattr(spec.arg, "value"):
        got = f"a size that is open ({spec.arg.name})"
        raise UnsupportedInputError("a result of an exported program", got, "tensors and constants")
    return spec.arg.value
