"""Compiler options for a program.

With JAX's own setting YNNPACK computes convolutions on a CPU, on one thread however many there are. Eigen, which jaten
uses instead, takes the same time on one thread and half of it on two. `matmul_library` chooses one for products.

A program's temporary memory is one buffer, which XLA allocates in a thread of its own. There glibc keeps no free memory
longer than 64 MiB: the kernel maps and clears the buffer at each call, a third of the time of a training step of
convolutions. So XLA is told to use several shorter buffers. It warns of each array that is longer than those: programs
that might have one keep XLA's default.

LLVM unrolls a loop of few steps before it vectorizes, and then cannot: gathering rows of 64 elements takes twice as
long. Unrolling pays for shorter rows, and for loops that test for padding. So a program with such rows and without
padding is compiled without unrolling. Before jaxlib 0.12 it is not, either, if it transposes more: there LLVM
vectorizes such a loop by gathering elements, which takes twice as long as one by one.

XLA's older emitters of loops write less code than those of today: a kernel compiles in half to two thirds of the time,
and for arrays of a few KiB it runs as fast. So kernels of such arrays are compiled with them; graphs, which are called
more often, are not. From jaxlib 0.11.1 on XLA has no older ones.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import math
import os
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import jax
import jaxlib.version

from . import compiler_bugs, cpu_features, matmul_library

_log = logging.getLogger(__name__)

Options = dict[str, str | bool]

_LIBRARY, _SUMS = "xla_cpu_experimental_ynn_fusion_type", "LIBRARY_FUSION_TYPE_REDUCE"
# ATen rounds each result of a short dtype; by default XLA leaves that out between operations of one kernel
_OF_GPU: Options = {"xla_allow_excess_precision": False}
_OF_CPU: Options = {_LIBRARY: f"LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,{_SUMS}"}
_BY_EIGEN: Options = {_LIBRARY: _SUMS}
# bytes; with malloc's own they fill one heap of glibc's
_BUFFER: Options = {"xla_multiheap_size_constraint_per_heap": str(60 * 2**20)}
_PLAIN_LOOPS: Options = {"xla_cpu_use_fusion_emitters": False}
_BARRIERS: Options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
_SMALL = 16 * 2**10  # bytes of an array
_MOST = 30 * 2**20  # bytes of an array; XLA may widen it twofold, since bfloat16 is computed in float32

_PADS = re.compile("stablehlo.(convolution|pad|reduce_window)")
_MIDDLE = 13, 72  # elements of a row: shorter rows gain from unrolling, longer ones are not unrolled
_LEAST_ELEMENTS = 2**12  # elements of an array, for its rows to count
_GATHERS = jaxlib.version.__version_info__ < (0, 12)  # in loops that transpose

_TRANSPOSED = re.compile(r"(%\w+) = stablehlo\.transpose %\w+, dims = \[([\d, ]*)\] : \(tensor<((?:\d+x)*)")
_FACTORS = re.compile(r"stablehlo\.dot_general (%\w+), (%\w+)")  # transposing them is part of a product

_Type = tuple[str, str, str]
_TYPE = re.compile(r"tensor<((?:\d+x)*)(complex<)?[a-z]+(\d+)")  # shape, and the bits of an element, in StableHLO


def wanted(platform: str) -> Options:
    """The compiler options for a platform, without those that the user has set in `XLA_FLAGS`."""
    return _not_set({"cpu": _OF_CPU, "gpu": _OF_GPU}.get(platform, {}))


def known(platform: str) -> Options:
    """The wanted options that this version of XLA knows."""
    return _known(wanted(platform))


def of_kernel(platform: str, text: str) -> Options:
    """The compiler options for the program of a single operator, from its text in StableHLO."""
    is_small = platform == "cpu" and _largest(set(_TYPE.findall(text))) <= _SMALL
    return known(platform) | (_known(_not_set(_PLAIN_LOOPS)) if is_small else {}) | around_bugs(platform, text)


def around_bugs(platform: str, text: str) -> Options:
    """The options that avoid the installed jaxlib's bugs; what the user has set stays."""
    return _known(_not_set(compiler_bugs.options_around(platform, text)))


def of_libraries() -> dict[str, Options]:
    """For each library that computes a program's products the options that ask for it, without what the user has set.

    They are what XLA is told beside all other options.
    """
    each = {"YNNPACK": _OF_CPU, "Eigen": _BY_EIGEN}
    return {name: found for name, options in each.items() if (found := _known(_not_set(options)))}


class Told(NamedTuple):
    """The compiler settings of one program.

    Attributes:
        options: in the form that JAX takes.
        keeps_loops: whether LLVM unrolls no loop, which is not an option of JAX's.
    """

    options: Options
    keeps_loops: bool


def of_program(platform: str, text: str) -> Told:
    """The settings of a program, from its text in StableHLO."""
    if platform != "cpu":
        return Told(known(platform) | around_bugs(platform, text), keeps_loops=False)
    types = set(_TYPE.findall(text))
    more = _known(_not_set(_BUFFER)) if _largest(types) <= _MOST else {}
    if cpu_features.multiplies_fast() and matmul_library.suits_eigen(text):
        more |= _known(_not_set(_BY_EIGEN))
    more |= around_bugs(platform, text)
    keeps_loops = not _PADS.search(text) and _gain_from_loops(types) > (_transposed(text) if _GATHERS else 0)
    return Told(known(platform) | more, keeps_loops)


def of_absent(text: str) -> Told:
    """The settings of a program that is compiled for a CPU to learn what it needs on another platform.

    There what a checkpoint computes again stays apart, while the compiler for CPUs drops the barriers between.
    """
    told = of_program("cpu", text)
    return Told(told.options | _known(_not_set(_BARRIERS)), told.keeps_loops)


def options_key(platform: str) -> str:
    """A description of the options that a platform's programs may get, for keys of caches."""
    return repr((wanted(platform), _unrolls(platform)))


_keeps_loops: contextvars.ContextVar[bool] = contextvars.ContextVar("keeps_loops", default=False)


@contextlib.contextmanager
def compiling(told: Told) -> Iterator[None]:
    """A context in which a program is compiled with these settings."""
    token = _keeps_loops.set(told.keeps_loops)
    try:
        yield
    finally:
        _keeps_loops.reset(token)


def keeps_loops() -> bool:
    """True if LLVM is to unroll no loop in the programs that this thread compiles."""
    return _keeps_loops.get()


def _gain_from_loops(types: Collection[_Type]) -> int:
    """The elements of rows that are too short for LLVM to vectorize their loops, yet long enough for vectors.

    0 if many rows are shorter.
    """
    middle = short = 0
    for shape, _, _ in types:
        sizes = _sizes(shape)
        if sizes and math.prod(sizes) >= _LEAST_ELEMENTS:
            middle += math.prod(sizes) * (_MIDDLE[0] <= sizes[-1] <= _MIDDLE[1])
            short += math.prod(sizes) * (1 < sizes[-1] < _MIDDLE[0])
    return middle if middle > 4 * short else 0


def _transposed(text: str) -> int:
    """The elements that a program transposes so that others lie beside each other."""
    factors = {name for pair in _FACTORS.findall(text) for name in pair}
    found = 0
    for name, dims, shape in _TRANSPOSED.findall(text):
        sizes = _sizes(shape)
        order = [d for d in map(int, dims.split(",")) if sizes[d] > 1] if sizes else []
        if order and order[-1] != max(order) and name not in factors:
            found += math.prod(sizes)
    return found


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in shape.split("x")[:-1]]


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + _varint(value >> 7) if value > 127 else bytes([value])


_NO_UNROLLING = b"xla_cpu_disable_loop_unrolling"
# CompileOptionsProto.executable_build_options.debug_options.xla_backend_extra_options, a map from names to values
_MESSAGE = _field(3, _field(3, _field(500, _field(1, _NO_UNROLLING) + _field(2, b""))))


def _unrolls(platform: str) -> bool:
    return platform != "cpu" or _NO_UNROLLING.decode() in os.environ.get("XLA_FLAGS", "")


def without_unrolling(given: Any, platform: str) -> Any:
    """jaxlib's compile options for a CPU, changed so that LLVM unrolls no loop.

    JAX has no such option, but the options are passed as a protobuf message, which has one.
    """
    if _unrolls(platform):
        return given
    try:
        return type(given).ParseFromString(given.SerializeAsString() + _MESSAGE)
    except Exception as error:  # private: a jaxlib that has changed them compiles with its defaults
        _log.info("LLVM still unrolls loops: %s", error)
        return given


def _largest(types: Collection[_Type]) -> int:
    """The size of the longest array in bytes."""
    return max((_bytes(*found) for found in types), default=0)


def _bytes(shape: str, is_complex: str, bits: str) -> int:
    return math.prod(_sizes(shape)) * max(int(bits), 8) // 8 * (2 if is_complex else 1)


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
    except jax.errors.JaxRuntimeError:  # XLA does not know the option or its value
        return False
    return True
