"""The benchmarks as pictures: speed beside Inductor's, the first call, and what a call costs for each parameter."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from .contenders import CAPTURE, CONTENDERS, REFERENCE
from .table import Result, ratio_of, timings

mpl.use("agg")

YARDSTICK = "Inductor"
PALETTE = "#999999", "#bcbd22", "#1f77b4", "#17becf", "#2ca02c", "#9467bd", "#ff7f0e", "#c7c7c7"
COLOURS = dict(zip(CONTENDERS, PALETTE, strict=True))
SERIES = "parameters-"


def draw_all(results: list[Result], folder: Path) -> list[Path]:
    """Draws what there are results for; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for dtype in dict.fromkeys(r["dtype"] for r in results):
        suffix = "" if dtype == "float32" else f"-{dtype}"
        mine = [r for r in results if r["dtype"] == dtype]
        for job in dict.fromkeys(r["job"] for r in mine):
            chosen = [r for r in mine if r["job"] == job]
            files.append(_save(_speeds, chosen, folder / f"{job}{suffix}.png", f"{job}, {dtype}"))
            files.append(_save(_first_calls, chosen, folder / f"first-call-{job}{suffix}.png", f"{job}, {dtype}"))
        series = [r for r in mine if r["case"].startswith(SERIES) and r["job"] == "inference"]
        if len(series) > 1:
            files.append(_save(_overhead, series, folder / f"overhead{suffix}.png", f"inference, {dtype}"))
    return [file for file in files if file is not None]


def _save(draw, results: list[Result], file: Path, title: str) -> Path | None:
    width = max(7.0, 0.62 * len(results) + 2) if draw is not _overhead else 6.4
    figure, axes = plt.subplots(figsize=(width, 4.6), layout="constrained")
    drawn = draw(axes, results)
    if drawn:
        axes.set_title(f"{axes.get_title()} ({title})", fontsize=11)
        if draw is _overhead:
            axes.legend(frameon=False, fontsize=9)
        else:  # below the names of the cases, which may be long
            figure.legend(frameon=False, ncols=5, loc="outside lower center", fontsize=9)
        figure.savefig(file, dpi=130)
    plt.close(figure)
    return file if drawn else None


def _speeds(axes: Axes, results: list[Result]) -> bool:
    """Inductor's time divided by each one's: how many times as fast it is."""
    results = [r for r in results if YARDSTICK in r["seconds"]]
    names = [n for n in CONTENDERS if n not in (CAPTURE, YARDSTICK)]

    def bar(result: Result, name: str) -> tuple[float, float, float] | None:
        found = ratio_of(result, YARDSTICK, name)
        return None if found is None else (found.median, found.low, found.high)

    _bars(axes, results, names, bar, base=1)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_ylabel("times as fast as Inductor")
    axes.set_title("Speed of a call beside Inductor's: higher is faster")
    return bool(results)


def _first_calls(axes: Axes, results: list[Result]) -> bool:
    def bar(result: Result, name: str) -> tuple[float, float, float] | None:
        found = result["seconds"].get(name)
        return None if found is None else (found["first call"],) * 3

    _bars(axes, results, [n for n in CONTENDERS if n not in (CAPTURE, REFERENCE)], bar)
    axes.set_ylabel("seconds")
    axes.set_title("The first call, which compiles: lower is better")
    return any(r["seconds"] for r in results)


def _bars(axes: Axes, results: list[Result], names: list[str], bar, base: float = 0) -> None:
    """A group of bars for each case, with quartiles, on a logarithmic scale."""
    width = 0.82 / len(names)
    for i, name in enumerate(names):
        there = [(at, bar(r, name)) for at, r in enumerate(results)]
        found = [(at, values) for at, values in there if values is not None]
        if not found:
            continue
        places = [at + (i - (len(names) - 1) / 2) * width for at, _ in found]
        heights = [middle for _, (middle, _, _) in found]
        lengths = [height - base for height in heights]
        spread = [[m - low for _, (m, low, _) in found], [high - m for _, (m, _, high) in found]]
        axes.bar(places, lengths, width, bottom=base, label=name, color=COLOURS[name])
        if any(map(any, spread)):
            axes.errorbar(places, heights, yerr=spread, fmt="none", ecolor="#444444", elinewidth=0.8)
    _logarithmic(axes)
    axes.set_xticks(range(len(results)), [r["case"] for r in results], rotation=40, ha="right")
    axes.set_xlim(-0.6, len(results) - 0.4)
    axes.grid(axis="y", linewidth=0.4)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _overhead(axes: Axes, results: list[Result]) -> bool:
    """A call's time against the number of small parameters."""
    results = sorted(results, key=lambda r: int(r["case"].removeprefix(SERIES)))
    counts = [int(r["case"].removeprefix(SERIES)) for r in results]
    for name in CONTENDERS:
        there = [(c, r) for c, r in zip(counts, results, strict=True) if name in r["seconds"]]
        times = [(c, timings(r)[name].median * 1e6) for c, r in there]
        if times:
            style = "--" if name == CAPTURE else "-"
            axes.plot(*zip(*times, strict=True), style, marker="o", label=name, color=COLOURS[name])
    axes.set_xscale("symlog", linthresh=10)
    _logarithmic(axes)
    axes.set_xticks(counts, map(str, counts))
    axes.set_xlabel("parameters of four numbers")
    axes.set_ylabel("microseconds a call")
    axes.set_title("What a call costs")
    axes.grid(linewidth=0.4)
    axes.spines[["top", "right"]].set_visible(False)
    return True


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter("{x:g}")
