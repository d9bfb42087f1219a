"""A JAX client for the CPU of jaten's own, for compiled programs on torch's memory.

JAX's client runs all but the smallest programs in another thread and waits for it, which may take longer than the
program. With this client they run in the calling thread. Neither client accepts the other's arrays: those of this one
stay within `jaten_ops.backend`.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from ..errors import UnsupportedVersionError

# private: JAX's public setting is global. If this has moved, JAX's own client is used.
_make_client: Any = getattr(xla_client, "make_cpu_client", None)


@functools.cache
def device() -> Any:
    """The device; JAX's first CPU device if there can be no other. The first call starts JAX's backends."""
    default = jax.devices("cpu")[0]
    if _make_client is None or jax.process_count() > 1:
        return default
    try:
        return _make_client(asynchronous=False).local_devices()[0]
    except TypeError:  # pragma: no cover  # a JAX that creates clients in another way
        return default


MOST_ABSENT = 2048
"""The most devices that a client can have, since their numbers have eleven bits."""


@functools.lru_cache(maxsize=1)
def absent(count: int) -> tuple[Any, ...]:
    """Devices for which programs are compiled and never run, however many the machine has.

    JAX's caches of programs keep the devices, and so their idle threads, until `jax.clear_caches()`. The last ones are
    therefore taken again.

    Raises:
        UnsupportedVersionError: JAX does not make such a client.
    """
    try:
        return tuple(_make_client(asynchronous=False, num_devices=count).local_devices())
    except TypeError as error:  # a JAX that creates clients in another way
        raise UnsupportedVersionError(
            "a mesh that is not there", f"jax {jax.__version__}", "jaxlib.xla_client:make_cpu_client", "is another"
        ) from error


def out_of_mesh() -> contextlib.AbstractContextManager[Any]:
    """A context in which programs are lowered for one device, whatever mesh `jax.set_mesh` names."""
    return contextlib.nullcontext() if jax.sharding.get_abstract_mesh().empty else jax.set_mesh(_no_mesh())


@functools.cache
def _no_mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.empty((), object), ())


def is_own(other: Any) -> bool:
    """True if a device is the one that `device` has made."""
    return other.platform == "cpu" and other is not jax.devices("cpu")[0] and other is device()


def find(platform: str, number: int, own: bool) -> Any:
    """The device of a platform with this id, in this process.

    Raises:
        LookupError: there is none.
    """
    if own:
        return device()
    found = [d for d in jax.local_devices(backend=platform) if d.id == number]
    if not found:
        raise LookupError(f"no device {platform}:{number}")
    return found[0]
