"""XLA's executables, cached on disk for the next process.

The key is the text of the program that `jax.jit` lowered. JAX has such a cache, too, but it is global and the user's;
this one is jaten's own and changes no setting.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
from jax.experimental import serialize_executable

from . import compiler_options, cpu_client, library_choice, onednn
from .disk_cache import DiskCache

CACHE = DiskCache("executable")

# JAX's data of a lowered program besides its text: private, so nothing is cached if one of these is missing.
_BESIDE = (
    "global_in_avals", "global_out_avals", "in_shardings", "out_shardings", "in_layouts", "out_layouts",
    "kept_var_idx", "committed", "tuple_args",
)  # fmt: skip
_ABSENT = ("host_callbacks", "keepalive", "ordered_effects", "unordered_effects", "mut", "pgle_profiler")


def compiled(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, str | None]:
    """The executable of a lowered program, from the disk or from XLA, and the key by which `load_kept` finds it again.

    The key is None if the executable is not cached: for several devices, if it calls Python, or oneDNN.
    """
    text = lowered.as_text()
    key = None if onednn.is_in(text) else _key(lowered, text)
    if key is None:
        return _compile(lowered, text), None
    found = load_kept(key, lowered.in_tree, lowered.out_tree)
    if found is None:
        found = _compile(lowered, text)
        if not CACHE.store(key, functools.partial(_dumped, found)):
            return found, None
    return found, key


def devices_of_program(lowered: jax.stages.Lowered) -> tuple[Any, ...]:
    """The JAX devices for which a program was lowered, which its text does not say; empty if they are not known."""
    return tuple(getattr(lowered._lowering, "_device_list", ()))  # private: without it no options and no cache


def compiled_for_absent(lowered: jax.stages.Lowered, text: str, devices: tuple[Any, ...]) -> jax.stages.Compiled:
    """The executable of a program over a mesh that is not there, for devices of `cpu_client.absent`."""
    told = compiler_options.of_absent(text)
    with compiler_options.compiling(told):
        return lowered.compile(told.options, device_assignment=devices)


def _compile(lowered: jax.stages.Lowered, text: str) -> jax.stages.Compiled:
    platforms = {device.platform for device in devices_of_program(lowered)}
    if len(platforms) != 1:
        return lowered.compile()
    told = library_choice.measured_options(platforms.pop(), text)
    with compiler_options.compiling(told):
        return lowered.compile(compiler_options=told.options)


def load_kept(key: str, in_tree: Any, out_tree: Any) -> jax.stages.Compiled | None:
    """The executable cached under a key, on the device that it was compiled for."""

    def loaded(content: bytes) -> jax.stages.Compiled:
        place, serialized = pickle.loads(content)
        device = cpu_client.find(*place)
        return serialize_executable.deserialize_and_load(
            serialized, in_tree, out_tree, backend=device.client, execution_devices=[device]
        )

    return CACHE.lookup(key, loaded)


def calls_out(lowered: jax.stages.Lowered) -> bool:
    """True if a program calls functions outside XLA, such as LAPACK's, which JAX prepares when it lowers the call."""
    return "custom_call" in lowered.as_text()


def _dumped(executable: jax.stages.Compiled) -> bytes:
    loaded: Any = executable._executable  # private: there is no public way to get the device
    (device,) = loaded.xla_executable.local_devices()
    serialized, _, _ = serialize_executable.serialize(executable)
    return pickle.dumps(((device.platform, device.id, cpu_client.is_own(device)), serialized))


def _key(lowered: jax.stages.Lowered, text: str) -> str | None:
    known = getattr(lowered._lowering, "compile_args", {})
    devices = devices_of_program(lowered)
    if any(name not in known for name in _BESIDE) or any(known.get(name) for name in _ABSENT) or len(devices) != 1:
        return None
    beside = repr([known[name] for name in _BESIDE]), repr((lowered.args_info, lowered.out_tree))
    return CACHE.fingerprint(*beside, text, device=devices[0])
