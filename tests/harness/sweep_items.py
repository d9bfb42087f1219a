"""The items of the sweep, one for each check of an OpInfo (or overload) in a dtype, and their records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from typing import Any

import torch

from jaten_ops import registry
from jaten_ops.arrays import bridge

from . import checks, exceptions, on_cuda, on_device
from .recorded import REACHING, all_reached_overloads
from .replay import OP_INFOS, supported

# prefixes of names that are left out, with the reason
LEFT_OUT = {
    "jiterator": "compiles CUDA code, and runs on CUDA only",
    "sparse.": "takes sparse tensors, which have no counterpart in JAX",
}
_SHOWN = 5  # the most failures of an item that the report keeps
_LONGEST = 500  # characters of one of them


@dataclass(frozen=True)
class Item:
    """One check of one subject: an OpInfo, or an overload that it reaches."""

    check: str
    name: str
    dtype: str
    opinfo: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.check, self.name, self.dtype


@dataclass
class Record:
    """The result of an item.

    Attributes:
        most: samples that it was to take; None for all.
        status: passed, failed, xfail or skipped, with the `reason` for xfail and skipped.
        seconds: how long it took.
        compared: calls that were compared, of which `failed` differ, and `failures` are the first.
        overloads: those that differ.
        missing: functional overloads that were reached and have no kernel.
    """

    check: str
    name: str
    dtype: str
    opinfo: str
    most: int | None
    status: str
    reason: str = ""
    seconds: float = 0.0
    compared: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    overloads: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.check, self.name, self.dtype

    def to_json(self) -> dict[str, Any]:
        """Its fields, less those that are empty."""
        return {k: v for k, v in asdict(self).items() if v not in ("", [], 0) or k == "seconds"}


def record(item: Item, most: int | None, status: str, **more: Any) -> Record:
    return Record(**asdict(item), most=most, status=status, **more)


def short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


HELD = frozenset(short_name(d) for d in bridge.DTYPES)
"""The dtypes that JAX can hold."""


def _dtypes(check: str, name: str) -> Iterator[torch.dtype]:
    op = OP_INFOS[name]
    if check in ("values", "device", "cuda"):
        yield from sorted((d for d in op.supported_dtypes("cpu") if short_name(d) in HELD), key=str)
    elif check == "compiled":
        taken = [d for d in (*REACHING, torch.float64, torch.complex128) if supported(name, d)]
        yield from dict.fromkeys([*taken[:1], *(d for d in taken if d in checks.WITH_BACKWARD)])
    elif check in ("gradients", "dynamic") or (check == "jvp" and op.supports_forward_ad):
        yield from (d for d in (torch.float64, torch.complex128) if supported(name, d))
    elif check == "second" and op.supports_gradgrad:
        yield from (d for d in (torch.float64,) if supported(name, d))


def groups(
    wanted: Collection[str], patterns: Iterable[str], dtypes: Collection[str], most: int | None, shard: tuple[int, int]
) -> list[list[Item]]:
    """The items of each OpInfo that matches, in the given dtypes (all if empty); shard (i, n) has each nth OpInfo.

    An item of `opcheck` is an overload, and goes with the first OpInfo that reaches it.
    """
    named = [n for n in OP_INFOS if any(fnmatch(n, p) for p in patterns)]
    runnable = [n for n in named if not n.startswith(tuple(LEFT_OUT))]
    found: dict[str, list[Item]] = {name: [] for name in named}
    for name in named:
        for check in wanted:
            kept = [d for d in map(short_name, _dtypes(check, name)) if not dtypes or d in dtypes]
            found[name] += [Item(check, name, d, name) for d in kept]
    if "opcheck" in wanted:
        for overload, (name, dtype) in all_reached_overloads(runnable, limit(most)).items():
            if not dtypes or short_name(dtype) in dtypes:
                found[name].append(Item("opcheck", overload, short_name(dtype), name))
    index, count = shard
    return [found[name] for name in named[index - 1 :: count] if found[name]]


def limit(most: int | None) -> int:
    return 1_000_000 if most is None else most


def _find(item: Item, most: int | None) -> checks.Found:
    dtype = getattr(torch, item.dtype)
    if item.check == "opcheck":
        return checks.opcheck(item.name, item.opinfo, dtype, limit(most), backward=True)
    check = {
        "values": checks.values,
        "gradients": checks.gradients,
        "second": checks.second,
        "jvp": checks.jvp,
        "compiled": checks.compiled,
        "device": on_device.device,
        "dynamic": on_device.dynamic,
        "cuda": on_cuda.cuda,
    }
    return check[item.check](item.name, dtype, limit(most))


def run(item: Item, most: int | None) -> Record:
    """Runs an item, and says what became of it."""
    for prefix, reason in LEFT_OUT.items():
        if item.opinfo.startswith(prefix):
            return record(item, most, "skipped", reason=reason)
    try:
        found = _find(item, most)
    except Exception as error:  # of PyTorch's own sample, or of ATen
        found = checks.Found(failures=[f"outside jaten's op: {type(error).__name__}: {error}"])
    row = exceptions.expected_failure(item.check, item.name, getattr(torch, item.dtype))
    if found.skipped:
        return record(item, most, "skipped", reason=found.skipped, missing=found.missing)
    status, reason = "failed" if found.failures else "passed", ""
    failures = [" ".join(f.split())[:_LONGEST] for f in found.failures]
    if row is not None and failures:
        status, reason = "xfail", row.reason
    elif row is not None:
        status, failures = (
            "failed",
            [f"passes, though tests/harness/exceptions.py expects a failure: {row.reason}"],
        )
    by_overload = {} if item.check in ("compiled", "device") else {f.partition("(")[0]: f for f in reversed(failures)}
    return record(
        item,
        most,
        status,
        reason=reason,
        compared=found.compared,
        failed=len(failures),
        failures=list(dict.fromkeys([*failures[:1], *by_overload.values(), *failures]))[:_SHOWN],
        overloads=sorted(o for o in by_overload if o in registry.SPECS),
        missing=found.missing,
    )
