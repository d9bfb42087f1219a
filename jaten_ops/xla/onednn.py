"""Convolutions by oneDNN, which jaxlib's XLA for CPUs is built with.

XLA hands convolutions to oneDNN if a program is compiled with an option that newer versions have: then all of them, and
all matrix products. Here the call that it would make is written into the program, for one convolution: a custom call,
whose configuration is a message of XLA's as JSON. XLA cannot serialize a program with such a call.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.ffi
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import cpu_client

_TARGET = "__onednn$convolution"  # private: XLA's name of the call. `is_there` tells whether it has it
_ORIGINAL = 1  # the version of the calling convention of XLA's own calls

_log = logging.getLogger(__name__)

_may_be_called: ContextVar[bool] = ContextVar("jaten_onednn", default=False)

convolution_p = Primitive("onednn_convolution")
"""Takes an image and a kernel, both of float32 or of bfloat16."""


def convolve(
    image: jax.Array,
    kernel: jax.Array,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
    numbers: lax.ConvDimensionNumbers,
    is_wide: bool = True,
) -> jax.Array:
    """The convolution of an image by a kernel, in a program for a CPU.

    Args:
        image, kernel: of float32, or of bfloat16.
        stride: elements from one window to the next, for each spatial dimension.
        padding: zeros before and behind each.
        dilation: elements from one under a window to the next.
        groups: of channels, each of which has a kernel.
        numbers: which dimensions are which. Images and outputs of different orders take hundreds of times as long.
        is_wide: whether the output is of float32, and else rounded to the image's dtype.
    """
    found: jax.Array = convolution_p.bind(
        image, kernel, stride=tuple(stride), padding=tuple(map(tuple, padding)), dilation=tuple(dilation),
        groups=groups, numbers=numbers, is_wide=is_wide,
    )  # fmt: skip
    return found


def _plain(image: Any, kernel: Any, **given: Any) -> jax.Array:
    """The same by XLA's convolution, computed in float32."""
    dtype = np.float32 if given["is_wide"] else image.dtype
    image, kernel = (lax.convert_element_type(x, np.float32) for x in (image, kernel))
    found = lax.conv_general_dilated(
        image, kernel, given["stride"], given["padding"], rhs_dilation=given["dilation"],
        dimension_numbers=given["numbers"], feature_group_count=given["groups"],
    )  # fmt: skip
    return lax.convert_element_type(found, dtype)


@functools.cache
def _jitted(**given: Any) -> Any:
    return jax.jit(functools.partial(convolution_p.bind, **given))


@convolution_p.def_impl
def _impl(image: Any, kernel: Any, **given: Any) -> jax.Array:
    found: jax.Array = _jitted(**given)(image, kernel)
    return found


@convolution_p.def_abstract_eval
def _abstract_eval(image: Any, kernel: Any, **given: Any) -> Any:
    return jax.make_jaxpr(functools.partial(_plain, **given))(image, kernel).out_avals[0]


def _lowered(ctx: Any, image: Any, kernel: Any, *, is_wide: bool, **given: Any) -> Any:
    if ctx.module_context.lowering_parameters.for_export:  # another machine's XLA may know no such call
        plain = functools.partial(_plain, is_wide=is_wide, **given)
        return mlir.lower_fun(plain, multiple_results=False)(ctx, image, kernel)
    config = _config(ctx.avals_in[1].shape, **given)
    return jax.ffi.ffi_lowering(_TARGET, backend_config=config, api_version=_ORIGINAL)(ctx, image, kernel)


def _config(
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
    numbers: lax.ConvDimensionNumbers,
) -> str:
    """XLA's configuration of the call, as text; its numbers are text, too."""
    outputs, terms, *spatial = numbers.rhs_spec
    dims = {"input_feature_dim": f"{terms}", "output_feature_dim": f"{outputs}"}
    filters = dims | {"shape": _texts(kernel), "spatial_dims": _texts(spatial)}
    low, high = zip(*padding, strict=True)
    window = {"pad_left": _texts(low), "pad_right": _texts(high), "size": []}
    window |= {"strides": _texts(stride), "window_dilations": _texts(dilation)}
    config: dict[str, Any] = {"dims": f"{len(kernel)}", "feature_groups": f"{groups}"}
    config |= {"input": _of_image(numbers.lhs_spec), "output": _of_image(numbers.out_spec)}
    config |= {"kernel": {"dims": "0", "filter": filters}, "window": window}
    return json.dumps({"onednn_conv_config": config})


def _of_image(order: Sequence[int]) -> dict[str, Any]:
    batch, channels, *spatial = order
    return {
        "data": {"batch_dim": f"{batch}", "feature_dim": f"{channels}", "spatial_dims": _texts(spatial)}, "dims": "0"
    }  # fmt: skip


def _texts(numbers: Any) -> list[str]:
    return [str(n) for n in numbers]


mlir.register_lowering(convolution_p, _lowered, platform="cpu")


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **given: Any) -> Any:
    return jax.jvp(functools.partial(_plain, **given), tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _batch(operands: Sequence[Any], dims: Sequence[int | None], **given: Any) -> tuple[jax.Array, int]:
    return jax.vmap(functools.partial(_plain, **given), tuple(dims))(*operands), 0


ad.primitive_jvps[convolution_p] = _jvp
batching.primitive_batchers[convolution_p] = _batch


@contextlib.contextmanager
def calling(is_allowed: bool) -> Iterator[None]:
    """A context in which rules may choose such calls: for programs that this process compiles for one CPU, and runs."""
    token = _may_be_called.set(is_allowed)
    try:
        yield
    finally:
        _may_be_called.reset(token)


def may_be_called() -> bool:
    """True if rules may choose such calls in a program that this thread traces."""
    return _may_be_called.get() and is_wanted()


def is_wanted() -> bool:
    """True if rules may choose such calls at all: `JATEN_ONEDNN` is not 0."""
    return os.environ.get("JATEN_ONEDNN") != "0"


def is_in(text: str) -> bool:
    """True if a program, given as StableHLO, has such a call."""
    return f"@{_TARGET}" in text


@functools.cache
def is_there(dtype: str = "float32") -> bool:
    """True if XLA has such calls of a dtype, and they compute what XLA's convolution does.

    Args:
        dtype: float32, or bfloat16 where the processor multiplies it: oneDNN may compute it nowhere else.
    """
    draw = np.random.default_rng(0).standard_normal
    image, kernel = (draw(shape, np.float32) for shape in ((1, 5, 5, 4), (3, 3, 2, 4)))
    given = {"stride": (2, 1), "padding": ((1, 0), (1, 1)), "dilation": (1, 1), "groups": 2, "is_wide": True}
    given["numbers"] = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    try:
        with jax.ensure_compile_time_eval(), jax.default_device(cpu_client.device()):
            operands = [jax.numpy.asarray(x, dtype) for x in (image, kernel)]
            wanted = jax.jit(functools.partial(_plain, **given))(*operands)
            found = jax.jit(functools.partial(convolution_p.bind, **given))(*operands)
            return bool(np.allclose(found, wanted, rtol=1e-5, atol=1e-5))
    except Exception as error:  # whatever XLA raises of an unknown call
        _log.info("XLA has no convolution of oneDNN's: %s", error)
        return False
