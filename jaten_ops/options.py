"""What XLA's compiler is told beside a program.

JAX's own setting has YNNPACK compute convolutions on a CPU, on one thread however many there are. Eigen, whose turn it
is then, takes the same time on one and half of it on two.
"""

from __future__ import annotations

import functools
import os

import jax

_OF_CPU: dict[str, str | bool] = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE",
}


def wanted(platform: str) -> dict[str, str | bool]:
    """The compiler options for a platform, less those that the user has set in `XLA_FLAGS`."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in _OF_CPU.items() if platform == "cpu" and name not in flags}


def known(platform: str) -> dict[str, str | bool]:
    """Those of `wanted` that this version of XLA knows."""
    options = wanted(platform)
    return options if options and _are_known(tuple(options.items())) else {}


@functools.cache
def _are_known(options: tuple[tuple[str, str | bool], ...]) -> bool:
    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    try:
        jax.jit(lambda: 0, out_shardings=place).lower().compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError:  # no such option, or no such value of it
        return False
    return True
