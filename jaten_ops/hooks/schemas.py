"""Look-ups of schemas in C++ that also find operators of jaten that Python has not used yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ops.namespace import define
from ..tracing import opaque


def found_by_name(find: Callable[..., Any]) -> Callable[..., Any]:
    """torch's look-up of a schema in C++, which bypasses the namespace; it defines the packet if needed."""

    @opaque
    def call(name: str, overload: str) -> Any:
        try:
            return find(name, overload)
        except RuntimeError:
            namespace, _, packet = name.partition("::")
            if namespace != "jaten" or not define(packet):
                raise
            return find(name, overload)

    return call
