"""From Dynamo's graph to graphs of `jaten::` ops: AOTAutograd, the partitioner, and the renaming of ATen's ops."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.utils.checkpoint import CheckpointPolicy

from jaten_ops import hooks, registry
from jaten_ops.errors import JatenError, UnsupportedInputError

from . import aliased_inputs, device_interface, graph_cache, wrapped_results
from .buckets.bucketed_graph import Buckets, bucketed
from .data_dependent_splits import make_executable
from .executable import Executable
from .output_aliases import with_offsets
from .output_views import Known, Views, taken_out, with_views
from .passes import input_writes, keep_whole
from .passes.concat_gradients import assemble
from .passes.expanded_index_scatters import by_rows
from .passes.recompute_norms import take_apart
from .subgraphs import refuse_unknown
from .targets import overload_of, read_own_memory, retarget
from .view_relations import relations_in, with_relations

_log = logging.getLogger(__name__)
hooks.install_in_dynamo()
device_interface.register()


class _Decompositions(Mapping[torch._ops.OperatorBase, Callable[..., Any]]):
    """torch's own decompositions of the ops that have no kernel here; looked up when a graph is captured."""

    @functools.cached_property
    def _table(self) -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
        table = core_aten_decompositions()
        return {op: fn for op, fn in table.items() if overload_of(op) not in registry.KERNELS}

    def __getitem__(self, op: torch._ops.OperatorBase) -> Callable[..., Any]:
        return self._table[op]

    def __iter__(self) -> Iterator[torch._ops.OperatorBase]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


_DECOMPOSITIONS = _Decompositions()


def _donates_nothing() -> None:
    """Tells torch that a backward graph takes no buffer for its results, so that it may be called twice."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None and context.fw_metadata.bw_donated_idxs:
        context.fw_metadata.bw_donated_idxs.clear()  # the list is in both accounts that torch has of a subclass


def _partition(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> tuple[torch.fx.GraphModule, ...]:
    """The min-cut partitioner, told that a random op drawn again in the backward would draw something else.

    What reads memory first becomes an operator on the tensor that owns it, of which saved views are no part.
    """
    read_own_memory(joint.graph)
    take_apart(joint.graph)
    for node in joint.graph.nodes:
        spec = registry.SPECS.get(overload_of(node.target) or "")
        if spec is not None and spec.random:
            node.meta.pop("recompute", None)  # activation checkpointing asks to
            for result in [node] if len(spec.returns) == 1 else node.users:  # of several, each is saved by itself
                result.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    # The partitioner's merging of equal nodes knows ATen's random ops by a list, and no others; XLA merges them anyway.
    settings = {"cse": False}
    if _has_images(joint.graph):  # whose activations are large, and cheap to compute again between two convolutions
        settings["ban_recompute_materialized_backward"] = False
    with functorch_config.patch(settings):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def _has_images(graph: torch.fx.Graph) -> bool:
    """Whether there are convolutions over two dimensions or more."""
    nodes = graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    return any(node.args[1].meta["val"].dim() >= 4 for node in nodes)


def _static_inputs(graph: torch.fx.Graph, *, backward: bool) -> frozenset[int]:
    """Which inputs are parameters and buffers, which keep their memory from call to call.

    The backward graph names what it got from the forward as the forward does, so they are found there by name. A token,
    by which AOTAutograd orders effects, counts as an input of a graph for inference, but is none any more.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return frozenset()
    static = metadata.static_input_indices
    names = [str(n.target) for n in graph.find_nodes(op="placeholder")]
    if backward:
        known = getattr(metadata, _STATIC, {f"primals_{i + 1}" for i in static})
    elif names and names[0].startswith("arg"):
        known = {f"arg{i}_1" for i in static}
    else:
        known = {names[i] for i in static if i < len(names)}
    setattr(metadata, _STATIC, known)
    return frozenset(i for i, name in enumerate(names) if name in known)


_STATIC = "_jaten_static"  # the names of such inputs, in torch's account of the forward graph


def _written_inputs(values: Sequence[Any]) -> frozenset[int] | None:
    """Which of the inputs that are tensors the program writes to; None if torch does not say."""
    context = TracingContext.try_get()
    infos = [] if context is None or context.fw_metadata is None else context.fw_metadata.input_info
    if len(infos) != len(values):
        return None
    of_tensors = [info for info, v in zip(infos, values, strict=True) if isinstance(v, torch.Tensor)]
    return frozenset(n for n, info in enumerate(of_tensors) if info.mutates_data)


def _new_values(gm: torch.fx.GraphModule, written: int) -> tuple[dict[int, int], int]:
    """For each output of a forward graph that is an input's new value the number of that input, and what comes next.

    Behind a tensor of the device stand those of its sizes and strides that are not known.
    """
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None:
        return {}, written
    infos, found, place = metadata.input_info, {}, written
    known = len(infos) == len(gm.graph.find_nodes(op="placeholder"))
    outputs: Any = gm.graph.output_node().args[0]
    for i in metadata.mutated_inp_runtime_indices:
        if known and infos[i].mutates_data and not infos[i].mutates_metadata:
            found[place] = i
        value = outputs[place].meta.get("val") if isinstance(outputs[place], torch.fx.Node) else None
        on_device = isinstance(value, torch.Tensor) and value.device.type == "jax"
        sizes = [*value.shape, *value.stride()] if on_device and isinstance(value, torch.Tensor) else []
        place += 1 + sum(isinstance(n, torch.SymInt) for n in sizes)
    return found, place


def _drop_tokens(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Takes out the tokens, by which AOTAutograd orders effects, that it has left of those of branches and loops.

    They come first, and nothing is done with them: it hands none over, and takes none back.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    count = len(placeholders) - len(inputs)
    if count <= 0 or any(node.users for node in placeholders[:count]):
        return
    (output,) = gm.graph.find_nodes(op="output")
    tokens = output.args[0][:count]
    output.args = (output.args[0][count:],)
    for node in {*placeholders[:count], *tokens}:
        if isinstance(node, torch.fx.Node) and not node.users:
            gm.graph.erase_node(node)


def _compile(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    backward: bool = False,
    inference: bool = False,
    buckets: Buckets | None = None,
) -> Callable[..., Any]:
    if not backward:
        aliased_inputs.tell(_written_inputs(inputs))
    _drop_tokens(gm, inputs)
    values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    outputs: Any = gm.graph.output_node().args[0]
    written = input_writes.taken_out(gm.graph)
    made = _made(gm, len(written), backward=backward, inference=inference)
    executable = made.run
    if buckets is not None:
        executable = bucketed(gm, executable, buckets, made.seen)
    executable = input_writes.with_writes(with_views(executable, made.views, values), written)
    if not backward:
        executable = with_offsets(executable, values, outputs)

    def run(args: list[Any]) -> list[Any]:  # a function, since Dynamo's wrappers copy the mark below from no object
        return executable(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd is told to hand over one list
    return run


def _compile_to_keep(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], *, backward: bool = False, inference: bool = False
) -> graph_cache.Kept:
    """As `_compile`, for the cache. There the backward is compiled early: what it lacks, it says when it is called."""
    try:
        _drop_tokens(gm, inputs)
        kept = graph_cache.Kept(_made(gm, backward=backward, inference=inference))
        if not backward:
            kept.tell(_written_inputs(inputs))
        return kept
    except JatenError as error:
        if not backward:
            raise
        return graph_cache.Kept(graph_cache.Made(functools.partial(_raise, error), frozenset(), None, {}, None))


def _raise(error: Exception, _args: list[Any]) -> NoReturn:
    raise error


def _made(gm: torch.fx.GraphModule, written: int = 0, *, backward: bool, inference: bool) -> graph_cache.Made:
    """The graph as a function of a list of inputs, and what is known of it.

    Args:
        gm: the graph.
        written: how many results come before its own, for inputs to be written to.
        backward: whether it is a backward graph.
        inference: whether nothing is kept for one.
    """
    _donates_nothing()
    refuse_unknown(gm)
    static = _static_inputs(gm.graph, backward=backward)
    rewritten, first = ({}, written) if backward else _new_values(gm, written)
    rewritten = {} if written else rewritten
    seen, made = (None, None) if backward else _views(gm, first, rewritten, inference=inference)
    retarget(gm)
    by_rows(gm, backward=backward)
    assemble(gm)
    rewritten = rewritten if inference else {}
    run = make_executable(gm, static, seen, rewritten)
    if isinstance(run, Executable) and backward:
        run.log.kind = "backward graph"
    return graph_cache.Made(run, static, seen, rewritten, made)


def _views(
    gm: torch.fx.GraphModule, first: int, rewritten: dict[int, int], *, inference: bool
) -> tuple[int | None, Views | None]:
    """How many outputs of a forward graph the user may see, None for all: the others are saved for the backward; and
    those that are to be views of others, which it returns no longer.
    """
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return None, None
    infos = context.fw_metadata.output_info
    last = first + len(infos) + context.fw_metadata.num_intermediate_bases
    made = taken_out(gm.graph, Known(first, last, infos, rewritten, inference))
    return last if made is None else made.seen, made


def _buckets(options: Mapping[str, Any] | None) -> Buckets | None:
    if unknown := set(options or ()) - {"buckets"}:
        raise UnsupportedInputError("options of torch.compile", ", ".join(sorted(unknown)), "buckets")
    return Buckets(options["buckets"]) if options else None


def jaten(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Callable[..., Any]:
    """The `torch.compile` backend.

    Forward, backward and inference graphs each become one XLA executable, compiled at their first call, and again for
    each new combination of sizes if the graph is dynamic. What has been compiled is kept for the next process.

    Args:
        gm: Dynamo's graph.
        example_inputs: its inputs.
        options: those of `torch.compile`: "buckets", to which dynamic sizes are rounded up (see `Buckets`).
        rest: what AOTAutograd takes.

    Raises:
        MissingKernelError: the graph has an op without kernel.
        UnsupportedInputError: an option that is not known.
    """
    buckets = _buckets(options)
    relations, is_plain = relations_in(gm), not wrapped_results.make_tensors(gm)
    prefix = graph_cache.prefix_of(gm, example_inputs) if is_plain and not input_writes.replaces_memory(gm) else None
    if prefix is not None:
        try:
            with graph_cache.used(prefix):
                captured = _capture(graph_cache.compiler, _compile_to_keep)(gm, example_inputs, **rest)
                return with_relations(captured, relations)
        except (JatenError, TorchDynamoException):
            raise
        except Exception as error:  # a graph that cannot be pickled, which torch tells in several ways
            _log.info("a graph is not kept: %s", error)
    compile_graph = functools.partial(_compile, buckets=buckets)  # what is kept has no sizes that change
    return with_relations(_capture(functools.partial, compile_graph)(gm, example_inputs, **rest), relations)


_SETTINGS = {
    # the tokens that order effectful ops stay inside the graph: in an executable the order is that of the data
    "unlift_effect_tokens": True,
    # the gradient of a tensor of the device that is written to is one of the device, zeros as well
    "disable_guess_zero_tangent_for_mutated_input_subclass": True,
}


def _capture(compiler: Callable[..., Any], compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd with a compiler for each of the graphs that it makes."""
    options = {
        "fw_compiler": compiler(compile_graph),
        "inference_compiler": compiler(functools.partial(compile_graph, inference=True)),
        "partition_fn": _partition,
        "decompositions": _DECOMPOSITIONS,
    }
    backward = functools.partial(compile_graph, backward=True)

    @aliased_inputs.guarded
    def run(gm: torch.fx.GraphModule, inputs: Sequence[Any], **others: Any) -> Callable[..., Any]:
        given = options | {"keep_inference_input_mutations": input_writes.replaces_memory(gm)}
        with functorch_config.patch(_SETTINGS), keep_whole.whole(gm, inputs):
            if others or os.environ.get("TORCH_COMPILE_DEBUG") == "1" or not all(map(_is_flat, inputs)):
                return aot_autograd(bw_compiler=compiler(backward), **given)(gm, inputs, **others)
            # what that does, too, but after it has imported Inductor's scheduler
            undisturbed = functools.partial(_undisturbed, backward)
            captured = aot_module_simplified(gm, inputs, bw_compiler=compiler(undisturbed), **given)
            return torch._dynamo.disable(captured, reason="it is compiled")

    return run


def _is_flat(value: Any) -> bool:
    return not isinstance(value, list | tuple | dict)


def _undisturbed(compile_graph: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Compiles a graph, and lets Dynamo trace neither that nor the result: the backward runs where it may be on."""
    reason = "it compiles, or is compiled"
    return torch._dynamo.disable(torch._dynamo.disable(compile_graph, reason=reason)(*args), reason=reason)
