"""Patches of torch and JAX: the table of them, and the functions that are put in."""

from __future__ import annotations

from ..device import privateuse1, torch_jax
from . import ledger
from .patches import PATCHES

__all__ = ["install", "install_cache", "install_in_dynamo"]


def install() -> None:
    """Installs the patches, and takes the slot of the device `jax`, if it is free: all effects of an import on torch.

    The slot comes last: a thread that runs meanwhile has either no device, or the whole of it.
    """
    ledger.install_rows(PATCHES.values(), "import", "Dynamo", has_device=privateuse1.CLAIMED)
    torch_jax.ASKED["torch.distributed.tensor._random", "__init__"] = _install_draws
    if privateuse1.CLAIMED:
        privateuse1.take_slot()


def install_in_dynamo() -> None:
    """Installs the patches of Dynamo, which an import of jaten does not load."""
    ledger.install_rows(PATCHES.values(), "Dynamo", has_device=privateuse1.CLAIMED)


def _install_draws() -> None:
    """Installs the patch of random DTensors, of a module that an import of jaten does not load."""
    ledger.install_rows(PATCHES.values(), "first random DTensor", has_device=True)


def install_cache() -> bool:
    """Installs the patches of AOTAutograd's cache, when it is first used; returns whether all of them are."""
    ledger.install_rows(PATCHES.values(), "first compile", has_device=privateuse1.CLAIMED)
    return not any(row.what in ledger.OFF for row in PATCHES.values() if row.when == "first compile")
