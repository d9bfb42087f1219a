"""Process groups of `torch.distributed` whose backend gloo serves tensors of the device `jax`, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def default_backend(init: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`BackendConfig.__init__`, which lets a group without a named backend use the CPU's backend for the device."""

    @functools.wraps(init)
    def call(self: Any, backend: Any) -> None:
        init(self, backend)
        if str(backend) == dist.Backend.UNDEFINED and self.device_backend_map.get("cpu") == dist.Backend.GLOO:
            self.device_backend_map["jax"] = dist.Backend.GLOO

    return call


def add_capability(backends: dict[str, list[str]]) -> None:
    """Adds the device to those of gloo."""
    backends[dist.Backend.GLOO] = [*backends[dist.Backend.GLOO], "jax"]


def add_default(backends: dict[str, str]) -> None:
    """Makes gloo the backend of the device."""
    backends["jax"] = dist.Backend.GLOO
