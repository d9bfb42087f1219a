"""Captured graphs, kept for the next process by AOTAutograd's own cache: its keys and entries, in jaten's folder.

All that jaten knows of that cache, which is private to torch, stands here; with a torch that it does not know, or if
the cache is switched off there, graphs are captured anew and only their executables are kept.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from jaten_ops import hooks
from jaten_ops.arrays import uninitialized_values
from jaten_ops.hooks.graph_cache import CACHE, in_folder, tell
from jaten_ops.tensor.tensor import Tensor
from jaten_ops.xla import disk_store

from .buckets.bucket_sizes import OFF, Buckets
from .graph_info import GraphInfo
from .nodes import module_path
from .passes.placed_gradients import gradient_layouts
from .serialized_graph import Plan, graph_of
from .split_graph import runnable
from .view_calls import with_views

with contextlib.suppress(ImportError):  # in a torch that has moved it `is_known` says so
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

_VERSIONS = ((2, 11), (2, 15))
_SETTINGS = ("bundled_autograd_cache", "enable_remote_autograd_cache", "force_non_lazy_backward_lowering")


class CachedGraph(OutputCode):
    """A compiled graph, as that cache takes one: what is pickled is its plan, and what is known of it.

    Args:
        run: a function of a list of its inputs, which it empties.
        info: what is known of it.
    """

    def __init__(self, run: Callable[[list[Any]], list[Any]], info: GraphInfo) -> None:
        super().__init__()
        self._boxed_call = True  # an attribute of the object, as Dynamo's wrappers copy those
        self._run = with_views(run, info.views)
        self._plan: Plan | None = getattr(run, "plan", None)
        self._info = info.kept()

    def __call__(self, inputs: Any) -> Any:
        return self._run(inputs)

    def prepare_for_serialization(self) -> None:
        """Refuses what has no plan."""
        if self._plan is None:
            raise BypassAOTAutogradCache("the graph has sizes that are not known, or operators of a user")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_run"}

    def post_compile(self, *_: Any) -> None:
        """Makes it run again, and has the capture know of it that is under way."""
        assert self._plan is not None
        run = runnable(graph_of(self._plan), self._info, Buckets(OFF))  # its sizes are fixed
        self._run = with_views(run, self._info.views)
        tell(self._info)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def is_known() -> bool:
    """True if this torch has the cache as it is known here."""
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = tuple(map(int, numbers.groups())) if numbers else (0, 0)
    has_settings = all(hasattr(functorch_config, name) for name in _SETTINGS)
    return has_settings and _VERSIONS[0] <= version <= _VERSIONS[1] and hooks.install_cache()


def compiler(compile_graph: Callable[..., CachedGraph]) -> Any:
    """A compiler whose results that cache takes."""
    return SerializableAOTDispatchCompiler(CachedGraph, compile_graph)


@contextlib.contextmanager
def used(prefix: str, found: Callable[[GraphInfo], None]) -> Iterator[None]:
    """For the length of a block the cache has its entries in jaten's folder, under a prefix of its keys.

    Args:
        prefix: that.
        found: is told what is known of each graph that the cache has.
    """
    settings = {
        "bundled_autograd_cache": True,  # entries hold the graphs themselves
        "enable_remote_autograd_cache": False,
        "force_non_lazy_backward_lowering": True,  # an entry has both graphs; XLA compiles at the first call anyway
    }
    with in_folder(prefix, found), functorch_config.patch(settings):
        yield


def prefix_of(gm: torch.fx.GraphModule, inputs: Sequence[Any], autotune: str | None) -> str | None:
    """The part of the key of Dynamo's graph that torch's own key lacks; None if the graph is not to be kept."""
    if disk_store.folder() is None or not is_known():
        return None
    if not all(map(_is_plain, inputs)) or _is_changed() or _share_memory(inputs):
        return None
    lines = [repr([x.storage_offset() for x in inputs if isinstance(x, torch.Tensor)])]  # in torch's key it is always 0
    lines.append(repr((gradient_layouts(gm), autotune)))
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if not _is_told(module, node):
                return None
            lines += [node.meta.get("stack_trace") or "", module_path(node)]  # messages and profiles name them
    return CACHE.fingerprint(_settings(), *lines, of_package=True)


def _settings() -> str:
    """The state of torch that decides which operators a program becomes, and is not in torch's own key."""
    sdp = torch.backends.cuda
    return repr((
        torch.get_default_dtype(), torch.get_default_device(), torch.is_inference_mode_enabled(),
        torch.get_float32_matmul_precision(), uninitialized_values.is_filled(),
        sdp.flash_sdp_enabled(), sdp.math_sdp_enabled(), sdp.mem_efficient_sdp_enabled(), sdp.cudnn_sdp_enabled(),
        torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.backends.cpu.get_cpu_capability(),
    ))  # fmt: skip


def _is_changed() -> bool:
    """True if code of a user's takes part in tracing: a mode, or a decomposition of an operator of ATen's."""
    if any(type(m).__module__.partition(".")[0] != "torch" for m in _get_current_dispatch_mode_stack()):
        return True
    return any(f.__module__.partition(".")[0] != "torch" for f in decomposition_table.values())


def _share_memory(inputs: Sequence[Any]) -> bool:
    """True if inputs lie in the same memory, which decides how their mutation is traced, and is in no key."""
    storages = [x.untyped_storage()._cdata for x in inputs if isinstance(x, torch.Tensor)]
    return len(set(storages)) < len(storages)


def _is_plain(value: Any) -> bool:
    """True if the key says all of an input: it is static, and no code of a user's runs when it is computed with."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, int | float | bool | None)
    is_known = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, Tensor)
    is_known |= type(value).__name__ == "FakeTensor"
    return is_known and all(type(n) is int for n in value.shape)


def _is_told(module: torch.nn.Module, node: torch.fx.Node) -> bool:
    """True if the key says all of a node. The key has a constant's shape, not its elements, and an operator's name."""
    if node.op == "get_attr":
        found: Any = module
        for name in str(node.target).split("."):
            found = getattr(found, name)
        return isinstance(found, torch.fx.GraphModule)
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), torch.fx.GraphModule)
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = target.name() if isinstance(target, torch._ops.OpOverload) else target._qualified_op_name
        return name.partition("::")[0] in ("aten", "prims", "jaten")
    return not isinstance(target, torch._ops.HigherOrderOperator)
