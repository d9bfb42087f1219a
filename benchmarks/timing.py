"""Times several functions by turns in one process, and says how their times compare.

A machine's speed drifts (other programs, clock frequency), by more than the differences of interest. So the functions
take short turns, round after round; two of them are compared within each round, where the drift is the same for both;
and what is reported is the median of these ratios, with their quartiles as the spread.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

TURN = 0.02  # seconds: long against the clock's resolution, short against the drift
WARM_UP = 0.3  # seconds
REST = 0.01  # seconds: after their last work OpenMP's threads spin for some milliseconds, on cores that the next needs
FEWEST = 5  # rounds


@dataclass(frozen=True)
class Ratio:
    median: float
    low: float  # quartiles
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: the mean of a turn's calls, for each round."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def by_turns(functions: Mapping[str, Callable[[], object]], rounds: int, seconds: float = 1e9) -> dict[str, Timing]:
    """Times each function for `rounds` turns, or fewer: as many as take about `seconds` for each, but `FEWEST`.

    A function returns when its work is done, not when it is queued.
    """
    calls, turn = {}, 0.0
    for name, function in functions.items():
        duration = _warm_up(function)
        calls[name] = max(1, round(TURN / duration))
        turn += calls[name] * duration / len(functions)
    rounds = min(rounds, max(FEWEST, round(seconds / turn))) if functions else 0
    turns: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    for _ in range(rounds):
        for name in order:
            time.sleep(REST)
            turns[name].append(_seconds(functions[name], calls[name]))
        order.append(order.pop(0))  # none always runs after the same one, in the caches that it left
    return {name: Timing(turns[name]) for name in functions}


def ratio(timing: Timing, other: Timing) -> Ratio:
    """The ratio of the times to those of `other`, compared within each round."""
    low, median, high = statistics.quantiles(
        [mine / theirs for mine, theirs in zip(timing.rounds, other.rounds, strict=True)], n=4
    )
    return Ratio(median, low, high)


@runtime_checkable
class KeepsTime(Protocol):
    """A function that runs elsewhere, and says itself how many seconds one of its calls takes."""

    def seconds(self, calls: int) -> float: ...


def _seconds(function: Callable[[], object], calls: int) -> float:
    if isinstance(function, KeepsTime):
        return function.seconds(calls)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def _warm_up(function: Callable[[], object]) -> float:
    """Calls the function for a while, and returns the seconds that a call takes."""
    durations: list[float] = []
    end = time.perf_counter() + WARM_UP
    while len(durations) < 3 or time.perf_counter() < end:
        durations.append(_seconds(function, 1))
    return statistics.median(durations)
