"""From Dynamo's graph to executables: AOTAutograd and its partitioner, and the passes of `pipeline` between."""

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
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from jaten_ops import hooks, registry
from jaten_ops.errors import JatenError, UnsupportedInputError
from jaten_ops.ops.override_rules import OverrideRule
from jaten_ops.registry import active_overrides
from jaten_ops.xla import autotune_mode

from . import (
    captured_overrides,
    device_interface,
    executable,
    gradients_without_meta,
    graph_cache,
    keep_whole,
    pipeline,
)
from .aliased_inputs import guarded
from .buckets.bucket_sizes import Buckets
from .captured_overrides import entered_in
from .empty_gradients import GRADIENTS
from .graph_info import GraphInfo, Kind
from .nodes import fake_value, overload_of
from .passes.counted_results import SizesAreFixedError
from .passes.input_writes import with_writes
from .passes.output_offsets import with_offsets
from .passes.placed_gradients import gradient_layouts
from .passes.view_relations import with_relations
from .pipeline import Stage
from .saved_tensors import hooked
from .saved_views import save_inputs
from .small_saved_tensors import join_saved
from .split_graph import runnable
from .view_calls import with_views
from .wrapped_inputs import refuse_functional, without_tangents

_log = logging.getLogger(__name__)
hooks.install_in_dynamo()
device_interface.register_interface()


class _Decompositions(Mapping[torch._ops.OperatorBase, Callable[..., Any]]):
    """torch's own decompositions of the ops that have no kernel here, and ours of calls that torch's meta functions
    refuse, or for which there is none; looked up when a graph is captured.
    """

    @functools.cached_property
    def _table(self) -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
        table = core_aten_decompositions()
        return (
            {op: fn for op, fn in table.items() if overload_of(op) not in registry.KERNELS}
            | GRADIENTS
            | gradients_without_meta.table()
        )

    def __getitem__(self, op: torch._ops.OperatorBase) -> Callable[..., Any]:
        return self._table[op]

    def __iter__(self) -> Iterator[torch._ops.OperatorBase]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


_DECOMPOSITIONS = _Decompositions()


def _partition(
    layouts: Sequence[str | None], joint: torch.fx.GraphModule, inputs: Any, **options: Any
) -> tuple[torch.fx.GraphModule, ...]:
    """The min-cut partitioner, behind the passes for a joint graph."""
    info = GraphInfo("joint", gradient_layouts=layouts, forward_results=options["num_fwd_outputs"])
    pipeline.run_passes(Stage.JOINT, joint, info)
    # When the partitioner merges equal nodes it only excludes ATen's random ops, by a list; XLA merges nodes anyway.
    settings = {"cse": False}
    if _has_images(joint.graph):  # their activations are large, and cheap to recompute between two convolutions
        settings["ban_recompute_materialized_backward"] = False
    with functorch_config.patch(settings):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    save_inputs(forward, backward, options["num_fwd_outputs"])
    join_saved(forward, backward, options["num_fwd_outputs"])
    return forward, backward


def _has_images(graph: torch.fx.Graph) -> bool:
    """True if there are convolutions over two or more dimensions."""
    nodes = graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    return any(node.args[1].meta["val"].dim() >= 4 for node in nodes)


_SETTINGS = {
    # the tokens that order effectful ops stay inside the graph: in an executable the data determines the order
    "unlift_effect_tokens": True,
    # the gradient of a tensor of the device that is written to is one of the device, zeros as well
    "disable_guess_zero_tangent_for_mutated_input_subclass": True,
}


class _Capture:
    """A program of Dynamo's that is captured: what is known of its graphs, and what compiles each.

    Args:
        info: what is known of Dynamo's graph.
        buckets: to which sizes that change are rounded.
        prefix: of the keys of graphs that are kept; None if they are not kept.
        overrides: those of this program alone.

    Attributes:
        graphs: what is known of forward graphs, and of those for inference: there is one, as a rule.
    """

    def __init__(self, info: GraphInfo, buckets: Buckets, prefix: str | None, overrides: Sequence[Any] = ()) -> None:
        self._info, self._buckets, self._prefix, self._overrides = info, buckets, prefix, overrides
        self.graphs: list[GraphInfo] = []

    def found(self, info: GraphInfo) -> None:
        """Notes what is known of a graph."""
        if not info.is_backward:
            self.graphs.append(info)

    def run(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], others: Mapping[str, Any]) -> Callable[..., Any]:
        """AOTAutograd, with a compiler for each of the graphs that it makes."""
        options = {
            "fw_compiler": self._compiler("forward"),
            "inference_compiler": self._compiler("inference"),
            "partition_fn": functools.partial(_partition, gradient_layouts(gm)),
            "decompositions": _DECOMPOSITIONS,
            "keep_inference_input_mutations": self._info.replaces_memory,
        }
        with (
            functorch_config.patch(_SETTINGS),
            keep_whole.traced_whole(gm, inputs),
            captured_overrides.overridden(gm, self._overrides),
        ):
            if others or os.environ.get("TORCH_COMPILE_DEBUG") == "1" or not all(map(_is_flat, inputs)):
                captured = aot_autograd(bw_compiler=self._compiler("backward"), **options)(gm, inputs, **others)
            else:  # as torch's own function, which first imports Inductor's scheduler
                # DDP's graphs are parted at its buckets by what asks this whether AOTAutograd has captured a part
                counters["aot_autograd"]["total"] += 1
                captured = aot_module_simplified(
                    gm, inputs, bw_compiler=self._compiler("backward", _undisturbed), **options
                )
                captured = torch._dynamo.disable(captured, reason="it is compiled")
        captured = hooked(guarded(without_tangents(captured), gm, inputs, self.graphs), self.graphs)
        return with_relations(captured, self._info.relations)

    def _compiler(self, kind: Kind, as_it_is: Callable[..., Any] | None = None) -> Any:
        compile_graph: Callable[..., Any] = functools.partial(
            self._compile if self._prefix is None else self._compile_to_keep, kind
        )
        if as_it_is is not None:
            compile_graph = functools.partial(as_it_is, compile_graph)
        return compile_graph if self._prefix is None else graph_cache.compiler(compile_graph)

    def _compile(self, kind: Kind, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """One of the graphs as a function of its inputs."""
        executable, info = self._lower(kind, gm, inputs)
        values = [fake_value(node) for node in gm.graph.find_nodes(op="placeholder")]
        executable = with_writes(with_views(executable, info.views, values), info.writes)
        executable = with_offsets(executable, values, info.offsets)

        def run(args: list[Any]) -> list[Any]:  # Dynamo's wrappers copy the mark below only from a function
            return executable(args)

        run._boxed_call = True  # type: ignore[attr-defined]  # asks AOTAutograd to pass one list
        return run

    def _compile_to_keep(self, kind: Kind, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> graph_cache.CachedGraph:
        """As `_compile`, for the cache. The backward is compiled early; what it lacks is raised when it is called."""
        try:
            return graph_cache.CachedGraph(*self._lower(kind, gm, inputs))
        except JatenError as error:
            if kind != "backward":
                raise
            return graph_cache.CachedGraph(functools.partial(_raise, error), GraphInfo(kind))

    def _lower(
        self, kind: Kind, gm: torch.fx.GraphModule, inputs: Sequence[Any]
    ) -> tuple[Callable[[list[Any]], list[Any]], GraphInfo]:
        """The graph as a function of a list of inputs, and its `GraphInfo` after all passes."""
        context = TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        if metadata is not None and metadata.bw_donated_idxs:
            # a backward graph takes no buffer for its results, so that it may be called twice; in place, since the
            # list is in both accounts that torch has of a subclass
            metadata.bw_donated_idxs.clear()
        forward = self.graphs[-1] if kind == "backward" and self.graphs else None
        info = pipeline.run_passes(
            *(Stage.ATEN, gm),
            GraphInfo(
                *(kind, self._info.autotune),
                inputs=inputs,
                input_strides=_strides(self._info.inputs, inputs),
                metadata=metadata,
                asked=[v.requires_grad for v in self._info.inputs if isinstance(v, torch.Tensor)],
                forward=forward,
            ),
        )
        self.found(info)
        info = pipeline.run_passes(Stage.JATEN, gm, info)
        return runnable(gm, info, self._buckets), info


def _strides(given: Sequence[Any], inputs: Sequence[Any]) -> list[tuple[int, ...] | None]:
    """The strides of what a program is given, if AOTAutograd has left all of that inputs; none of those that change."""
    if len(given) != len(inputs):
        return []
    strides = [v.stride() if isinstance(v, torch.Tensor) else None for v in given]
    return [s if s is not None and all(type(n) is int for n in s) else None for s in strides]


def _raise(error: Exception, _args: list[Any]) -> NoReturn:
    raise error


_OPTIONS = ("autotune", "buckets", "overrides")


def _buckets(options: Mapping[str, Any] | None) -> Buckets:
    if unknown := set(options or ()) - set(_OPTIONS):
        raise UnsupportedInputError("options of torch.compile", ", ".join(sorted(unknown)), ", ".join(_OPTIONS))
    return Buckets((options or {}).get("buckets"))


def _autotune(options: Mapping[str, Any] | None) -> autotune_mode.AutotuneMode | None:
    given = (options or {}).get("autotune")
    return None if given is None else autotune_mode.checked(given, "the option autotune")


def _overrides(options: Mapping[str, Any] | None) -> tuple[OverrideRule, ...]:
    given = (options or {}).get("overrides", ())
    if not isinstance(given, list | tuple) or not all(isinstance(o, OverrideRule) for o in given):
        raise UnsupportedInputError("the option overrides", repr(given), "a list of what jaten_ops.override makes")
    captured_overrides.refuse_functions(given, "the option overrides")
    return tuple(given)


def jaten(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Callable[..., Any]:
    """The `torch.compile` backend.

    Forward, backward and inference graphs each become one XLA executable, compiled at their first call, and again for
    new sizes if the graph is dynamic. What has been compiled is kept for the next process.

    Args:
        gm: Dynamo's graph.
        example_inputs: its inputs, tensors of any shape and of a dtype that JAX has, and sizes.
        options: those of `torch.compile`: "buckets", to which dynamic sizes are rounded up, or "off" (see `Buckets`);
            "overrides", a list of `jaten_ops.Override` that hold in this program; and "autotune", which operations
            are measured in several forms when they are compiled for a CPU: "off", "expensive" or "all".
        rest: what AOTAutograd takes.

    Raises:
        MissingKernelError: the graph has an op without kernel.
        UnsupportedInputError: an option that is not known, or a tensor inside `torch.func.functionalize`.

    Example:
        >>> compiled = torch.compile(torch.sin, backend="jaten", dynamic=True, options={"buckets": "powers of two"})
        >>> [compiled(torch.zeros(size)).shape[0] for size in (3, 5, 6)]
        [3, 5, 6]
    """
    buckets, overrides = _buckets(options), _overrides(options)
    refuse_functional(example_inputs)
    captured_overrides.guard()
    info = pipeline.run_passes(Stage.CAPTURED, gm, GraphInfo("captured", _autotune(options), inputs=example_inputs))
    is_kept = not (info.is_wrapped or info.replaces_memory or overrides or active_overrides.active() or entered_in(gm))
    prefix = graph_cache.prefix_of(gm, example_inputs, info.autotune) if is_kept else None
    if prefix is not None:
        capture = _Capture(info, buckets, prefix)  # the cache has no graphs with dynamic sizes
        try:
            with graph_cache.used(prefix, capture.found):
                return capture.run(gm, example_inputs, rest)
        except (JatenError, TorchDynamoException):
            raise
        except Exception as error:  # a graph that cannot be pickled, for which torch raises several exceptions
            _log.info("a graph is not kept: %s", error)
    try:
        return _Capture(info, buckets, None, overrides).run(gm, example_inputs, rest)
    except SizesAreFixedError:  # now they are fixed from the start
        return _Capture(info, buckets, None, overrides).run(gm, example_inputs, rest)


def _is_flat(value: Any) -> bool:
    return not isinstance(value, list | tuple | dict)


def _undisturbed(compile_graph: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Compiles a graph. Dynamo traces neither this nor the result: the backward pass may run while it is on."""
    reason = "it compiles, or is compiled"
    return torch._dynamo.disable(torch._dynamo.disable(compile_graph, reason=reason)(*args), reason=reason)


# `torch._dynamo.reset` calls it: without it, torch keeps the programs that have a graph break
setattr(jaten, "reset", executable.forget_all)  # noqa: B010  # mypy allows no attributes of functions
