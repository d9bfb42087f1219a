"""The tables of a run of combinations: what passed, what is refused and why, what failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from .table import Record

_LISTED = {"refused": "Refused", "not torch's": "What torch or its other backends fail at, too", "failed": "Failed"}
_STATUSES = ("passed", "refused", "not torch's", "failed")


def to_markdown(records: Iterable[Record]) -> str:
    """A report in Markdown."""
    records = sorted(records, key=lambda r: r.key)
    total = Counter(r.status for r in records)
    lines = ["# Combinations", "", ", ".join(f"{total[s]} {s}" for s in _STATUSES) + f", of {len(records)}.", ""]
    lines += _table("Ways", "way", records) + _table("What surrounds", "surrounding", records)
    lines += _table("Programs", "program", records)
    for status, title in (
        ("refused", "Refused"),
        ("not torch's", "What torch or its other backends fail at, too"),
        ("failed", "Failed"),
    ):
        lines += [f"## {title}", ""]
        lines += [f"- {reason} ({', '.join(names)})" for reason, names in _reasons(records, status).items()] or [
            "None."
        ]
        lines.append("")
    return "\n".join(lines)


def _table(title: str, attribute: str, records: list[Record]) -> list[str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[getattr(record, attribute)][record.status] += 1
    head = [f"## {title}", "", f"| {attribute} | " + " | ".join(_STATUSES) + " |", "|---|" + "---|" * len(_STATUSES)]
    return [*head, *(f"| {n} | " + " | ".join(str(c[s]) for s in _STATUSES) + " |" for n, c in counts.items()), ""]


def _reasons(records: list[Record], status: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record.status == status:
            found[record.reason].append(f"{record.way}: {record.surrounding}: {record.program}")
    return found
