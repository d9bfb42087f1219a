"""Fingerprints of everything beside a program that decides how it compiles: versions, source files, flags, processor.

They are parts of the keys of the disk store. If a fingerprint is uncertain, nothing is cached.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jaxlib
import torch

from .. import registry
from . import autotune_mode, compiler_options, cpu_client, cpu_features, onednn

# The modules above were imported at most a few seconds before this one; in nanoseconds.
_IMPORTED = time.time_ns() - 5_000_000_000

# settings of JAX for its caches and logs, which do not affect programs
_ASIDE = re.compile(
    "jax_(persistent_cache|compilation_cache|enable_compilation_cache|log|dump|explain|raise_persistent)"
)
_FLAGS = re.compile("XLA_|JAX_|LIBTPU_|TF_|OMP_|MKL_|PJRT_|CUDA_|NVIDIA_|ROCM_|HIP_|DNNL_")


@functools.cache
def _folders() -> tuple[Path, ...]:
    package = __name__.partition(".")[0]
    packages = (package, f"{package}.meta", f"{package}.autograd")
    specs = [importlib.util.find_spec(package) for package in packages]
    return tuple(Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ())


@functools.cache
def _sources() -> str | None:
    """A hash of the files of this package, as this process has imported them.

    None if one was written at about that time or later: the process may be running another text.
    """
    return hash_of(_folders(), before=_IMPORTED)


def hash_of(folders: tuple[Path, ...], before: int) -> str | None:
    """A hash of the files in folders, all of them unchanged since a time in nanoseconds; None if they are not."""
    found = hashlib.sha256()
    try:
        for path in sorted(set(_files(folders))):
            if path.stat().st_ctime_ns > before:
                return None
            content = path.read_bytes()
            found.update(f"{path.name} {len(content)}\n".encode() + content)
    except OSError:
        return None
    return found.hexdigest()


def _files(folders: tuple[Path, ...]) -> Iterator[Path]:
    for top in folders:
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if name != "__pycache__"]
            yield from (Path(folder, file).resolve() for file in files)


def of_package() -> str | None:
    """The fingerprint of the package: it decides the JAX function for a graph of operators. None if unknown."""
    tables = (registry.KERNELS, registry.FAKES, registry.GRADIENTS)
    text = _sources()
    if text is None or _has_others(*map(len, tables)):
        return None
    return f"{text} {torch.__version__} {torch.version.git_version}"


@functools.cache
def _has_others(*_sizes: int) -> bool:
    """True if a kernel, fake or gradient of an ATen operator is a user's function, whose text is in no key."""
    own = tuple(f"{place}{os.sep}" for folder in _folders() for place in (folder, folder.resolve()))
    tables = (registry.KERNELS, registry.FAKES, registry.GRADIENTS)
    own += ("its kernel",)  # the operator of a gradient, made from a kernel that is checked itself
    return any("::" not in name and not e.where.startswith(own) for table in tables for name, e in table.items())


@functools.cache
def _processor() -> str:
    """The CPU model with its instruction sets, for which XLA generates code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    names = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return f"{platform.machine()} {sorted({line for line in lines if line.startswith(names)})}"


def of_device(device: jax.Device) -> str | None:
    """The fingerprint of a device: it decides how JAX and XLA compile a JAX function for it. None if unknown."""
    if jax.process_count() > 1:
        return None
    settings = {n: getattr(jax.config, n, v) for n, v in jax.config.values.items() if not _ASIDE.match(n)}
    flags = {n: v for n, v in os.environ.items() if _FLAGS.match(n) and not _ASIDE.match(n.lower())}
    versions = sys.version, platform.platform(), jax.__version__, jaxlib.__version__
    client: Any = device.client
    return repr((
        versions, sorted(settings.items()), sorted(flags.items()), _processor(), cpu_features.cores(),
        client.platform, client.platform_version, device.device_kind, device.id, len(client.devices()),
        cpu_client.is_own(device), compiler_options.options_key(client.platform), autotune_mode.asked_mode(),
        onednn.is_wanted(),
    ))  # fmt: skip
