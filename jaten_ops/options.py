"""What XLA's compiler is told beside a program.

JAX's own setting has YNNPACK compute convolutions on a CPU, on one thread however many there are. Eigen, whose turn it
is then, takes the same time on one and half of it on two.

A program's temporary memory is one buffer, which XLA takes from malloc in a thread of its own. There glibc has nothing
longer than 64 MiB ready: it has the kernel map and clear all of it at each call, a third of the time of a training step
of convolutions. So XLA is told to take several shorter buffers. It warns of each array that is longer than those: a
program that might have one is left as it is.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import jax

_log = logging.getLogger(__name__)

Options = dict[str, str | bool]

_OF_CPU: Options = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE",
}
# bytes, that with malloc's own are one heap of glibc's
_BUFFER: Options = {"xla_multiheap_size_constraint_per_heap": str(60 * 2**20)}
_MOST = 30 * 2**20  # bytes of an array, of which XLA may make one of twice the width: bfloat16 is computed in float32

_TYPE = re.compile(r"tensor<((?:\d+x)*)(complex<)?[a-z]+(\d+)")  # shape, and the bits of an element, in StableHLO


def wanted(platform: str) -> Options:
    """The compiler options for a platform, less those that the user has set in `XLA_FLAGS`."""
    return _not_set(_OF_CPU) if platform == "cpu" else {}


def known(platform: str) -> Options:
    """Those of `wanted` that this version of XLA knows."""
    return _known(wanted(platform))


def of_program(platform: str, text: str) -> Options:
    """Those for a program, by its text in StableHLO."""
    shorter = platform == "cpu" and largest(text) <= _MOST
    return known(platform) | (_known(_not_set(_BUFFER)) if shorter else {})


def described(platform: str) -> str:
    """What decides, beside a program, which options it is compiled with."""
    return repr((wanted(platform), _unrolls(platform)))


_of_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("of_ours", default=False)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """What is compiled in this block is a program of jaten's."""
    token = _of_ours.set(True)
    try:
        yield
    finally:
        _of_ours.reset(token)


def is_compiling() -> bool:
    return _of_ours.get()


def _field(number: int, content: bytes) -> bytes:
    """A field of a message of protobuf's."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + _varint(value >> 7) if value > 127 else bytes([value])


_NO_UNROLLING = b"xla_cpu_disable_loop_unrolling"
# CompileOptionsProto.executable_build_options.debug_options.xla_backend_extra_options, a map from names to values
_MESSAGE = _field(3, _field(3, _field(500, _field(1, _NO_UNROLLING) + _field(2, b""))))


def _unrolls(platform: str) -> bool:
    return platform != "cpu" or _NO_UNROLLING.decode() in os.environ.get("XLA_FLAGS", "")


def without_unrolling(given: Any, platform: str) -> Any:
    """XLA's compile options, jaxlib's object, with which LLVM unrolls no loop, if they are a CPU's.

    No option of a program's can say it: they are handed over as a message, and that has it.
    """
    if _unrolls(platform):
        return given
    try:
        return type(given).ParseFromString(given.SerializeAsString() + _MESSAGE)
    except Exception as error:  # private: a jaxlib that has changed them compiles as it does by itself
        _log.info("loops are unrolled: %s", error)
        return given


def largest(text: str) -> int:
    """Bytes of the longest array of a program, by its text in StableHLO."""
    types = set(_TYPE.findall(text))
    return max((_bytes(*found) for found in types), default=0)


def _bytes(shape: str, is_complex: str, bits: str) -> int:
    return math.prod(map(int, shape.split("x")[:-1])) * max(int(bits), 8) // 8 * (2 if is_complex else 1)


def _not_set(options: Options) -> Options:
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in flags}


def _known(options: Options) -> Options:
    return options if options and _are_known(tuple(options.items())) else {}


@functools.cache
def _are_known(options: tuple[tuple[str, str | bool], ...]) -> bool:
    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    try:
        jax.jit(lambda: 0, out_shardings=place).lower().compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError:  # no such option, or no such value of it
        return False
    return True
