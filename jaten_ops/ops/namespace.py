"""`torch.ops.jaten`, whose operators are defined when their name is first used, not when jaten is imported."""

from __future__ import annotations

import contextlib
import difflib
import threading
from collections.abc import Callable
from typing import Any

import torch

_DEFINITIONS: dict[str, dict[str, Callable[[], Any]]] = {}
LOCK = threading.RLock()  # a second thread that asks for a packet waits until it is whole


def _overload_order(packet: str) -> list[str]:
    """The names of ATen's overloads of a packet in the order in which a call tries them."""
    names: list[str] | None = torch._C._jit_get_operation(f"aten::{packet}")[1]
    return names or []  # None for a packet that ATen does not have


class _UnknownName(AttributeError):
    """An error that finds similar names when it is printed: torch looks up each name before it defines one."""

    def __init__(self, text: str, packet: str) -> None:
        super().__init__(text)
        self.packet = packet

    def __str__(self) -> str:
        close = difflib.get_close_matches(self.packet, dir(torch.ops.jaten), n=3)
        meant = ", ".join(f"torch.ops.jaten.{name}" for name in close)
        return f"{super().__str__()}. Did you mean {meant}?" if meant else super().__str__()


class _Namespace(torch._ops._OpNamespace):
    """Defines all overloads of a packet, in ATen's order, before torch looks for the packet."""

    __module__ = "torch._ops"  # the module of the operators, by which FX and pickle import them

    def __getattr__(self, packet: str) -> Any:
        with LOCK:
            if packet.endswith("_vjp") and packet not in _DEFINITIONS:
                with contextlib.suppress(AttributeError):
                    getattr(self, packet.removesuffix("_vjp"))  # its definition announces the companion
            waiting = _DEFINITIONS.pop(packet, None)
            if waiting:
                order = [o for o in _overload_order(packet) if o in waiting]
                for overload in dict.fromkeys([*order, *waiting]):
                    waiting[overload]()
            try:
                return super().__getattr__(packet)
            except AttributeError as error:
                raise _UnknownName(str(error), packet) from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_DEFINITIONS})


# in place: a program may have asked for the namespace before it imported jaten
torch.ops.jaten.__class__ = _Namespace


def define(packet: str) -> bool:
    """Defines the overloads of a packet on its first use; True if it did."""
    if packet not in _DEFINITIONS:
        return False
    getattr(torch.ops.jaten, packet)
    return True


def when_named(name: str, define: Callable[[], Any]) -> None:
    """Runs `define` when the packet of an overload, such as `torch.ops.jaten.add` of "add.Tensor", is first used."""
    packet, _, overload = name.partition(".")
    _DEFINITIONS.setdefault(packet, {})[overload] = define


def operator_of(overload: str, namespace: str = "jaten") -> torch._ops.OpOverload:
    """The torch operator of an overload, as `torch.ops.jaten.add.Tensor` of "add.Tensor"."""
    packet, _, suffix = overload.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), suffix or "default")
