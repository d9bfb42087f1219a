"""Dynamo's guards on tensors of the device `jax`: one for each, in C++, as for a plain tensor.

For a tensor of a subclass Dynamo guards what is inside, too, by calls of Python. All of that follows from the tensor:
the carrier is contiguous and has its sizes, and what `__tensor_flatten__` tells is the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..tensor.tensor import Tensor
from .ledger import Patch

_INNER = "_carrier"


def without_inner(build: Callable[..., Any]) -> Callable[..., Any]:
    """`CheckFunctionManager.build_guards`, without guards on what is inside tensors of the device.

    They are taken off the list itself, which Dynamo reads again later.
    """

    @functools.wraps(build)
    def build_guards(self: Any, sorted_guards: list[Any], *args: Any, **kwargs: Any) -> Any:
        output_graph = args[2] if len(args) > 2 else kwargs["output_graph"]
        fakes = getattr(output_graph, "tracked_fakes", None) or ()
        sources = {fake.source for fake in fakes if type(fake.fake) is Tensor}
        sorted_guards[:] = [guard for guard in sorted_guards if not _is_inner(guard, sources)]
        return build(self, sorted_guards, *args, **kwargs)

    return build_guards


def _is_inner(guard: Any, sources: set[Any]) -> bool:
    """True for a guard on what is inside a tensor from one of some sources."""
    source = guard.originating_source
    if guard.create_fn_name() == "TENSOR_SUBCLASS_METADATA_MATCH":
        return source in sources
    is_inside = type(source).__name__ == "SubclassAttrListSource" or getattr(source, "member", None) == _INNER
    return is_inside and source.base in sources


ROW = Patch(
    "torch._dynamo.guards:CheckFunctionManager.build_guards",
    without_inner,
    "a tensor of the device is guarded by one check in C++, without those in Python of what is inside",
    "hooks/test_tensor_guards",
    takes="self sorted_guards existing_diff_guard_sources f_code output_graph save_guards guard_filter_fn",
    when="Dynamo",
    optional=True,
    loss="calls of compiled functions take longer, by two microseconds for each tensor of the device",
)
