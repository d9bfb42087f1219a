"""The result of a run of a row, beside plain torch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .table import Row


def deviation(curve: Sequence[float], expected: Sequence[float]) -> float:
    """The largest difference of two curves, of the largest number in the expected one; infinite if they cannot be
    compared."""
    if len(curve) != len(expected) or [math.isfinite(x) for x in curve] != [math.isfinite(x) for x in expected]:
        return math.inf
    pairs = [(a, b) for a, b in zip(curve, expected, strict=True) if math.isfinite(b)]
    largest = max((abs(b) for _, b in pairs), default=0.0)
    return max((abs(a - b) for a, b in pairs), default=0.0) / (largest or 1.0)


def breaks_more(ways: dict[str, dict[str, Any]]) -> bool:
    """True if jaten broke the graph more often than `aot_eager`."""
    breaks, expected = (ways.get(way, {}).get("breaks") for way in ("jaten", "aot_eager"))
    return breaks is not None and expected is not None and breaks > expected


def judged(row: Row, way: str, result: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """A result without its curve, and its state.

    "same" is within the row's tolerance, "known" fails or differs for the row's reason; "differs", "failed" and
    "settled" (there is a reason, and it works) are what the table does not say.
    """
    kept = {key: round(value, 6) for key, value in result.items() if key in ("first", "step", "breaks", "graphs")}
    if "error" in result:
        first = result["error"].strip().partition("\n")[0][:300]
        return {"state": "known" if way in row.reasons else "failed", "error": first}
    if "curve" not in plain:
        return {"state": "failed", "error": "plain torch failed"}
    kept["deviation"] = float(f"{deviation(result['curve'], plain['curve']):.1e}")
    if not kept["deviation"] <= row.tolerance:
        return {"state": "known" if way in row.reasons else "differs"} | kept
    return {"state": "settled" if way in row.reasons else "same"} | kept
