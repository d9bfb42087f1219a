"""What XLA's compiler is told beside a program.

JAX's own setting has YNNPACK compute convolutions on a CPU, on one thread however many there are. Eigen, whose turn it
is then, takes the same time on one and half of it on two.

A program's temporary memory is one buffer, which XLA takes from malloc in a thread of its own. There glibc has nothing
longer than 64 MiB ready: it has the kernel map and clear all of it at each call, a third of the time of a training step
of convolutions. So XLA is told to take several shorter buffers. It warns of each array that is longer than those: a
program that might have one is left as it is.
"""

from __future__ import annotations

import functools
import math
import os
import re

import jax

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
