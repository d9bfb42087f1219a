"""Publishes measurements: `python -m benchmarks.report [FILE ...] [--out docs]`.

Takes what `python -m benchmarks`, `benchmarks.first_call` and `benchmarks.profile` wrote, prints how it compares with
the last run that was published, and writes the tables to OUT/benchmarks.md, the plots to OUT/benchmarks/, and the
measurements to OUT/benchmarks.json, with which the next report compares. Cases that were not measured again stay as
they were published. Those of another machine or version are not put beside them: there all cases are measured anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .plots import draw_all
from .processes import write
from .table import (
    RATIOS,
    Result,
    compile_rows,
    first_call_header,
    first_call_row,
    header,
    means,
    profile_header,
    profile_rows,
    ratio_of,
    row,
    without_empty_columns,
)

DEFAULT = ("benchmarks-*.json", "first-calls-*.json", "profiles*.json")  # in build
ROOT = Path(__file__).resolve().parents[1]
NOTABLE = 1.1  # a ratio that is larger or smaller by this factor than the last time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help=f"default: {', '.join(DEFAULT)} in build")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="the folder that is written to")
    parser.add_argument("--dry", action="store_true", help="only compare")
    options = parser.parse_args()
    files = options.files or [file for pattern in DEFAULT for file in sorted(Path("build").glob(pattern))]
    if not files:
        parser.error("there are no measurements: run `python -m benchmarks` first")
    report = merged([json.loads(file.read_text(encoding="utf-8")) for file in files])
    saved = options.out / "benchmarks.json"
    if saved.exists():
        published = json.loads(saved.read_text(encoding="utf-8"))
        for line in compared(report["results"], published["results"]):
            print(line)
        report, left = added(report, published)
        if left:
            print(f"not written: {left}")
            return
    else:
        print(f"nothing to compare with: {saved} is not there")
    if not options.dry:
        options.out.mkdir(parents=True, exist_ok=True)
        plots = draw_all(report["results"], options.out / "benchmarks")
        text = page(report, plots, _command(options.out))
        (options.out / "benchmarks.md").write_text(text, encoding="utf-8")
        write(saved, report)
        print(f"written to {options.out}: benchmarks.md, benchmarks.json, {len(plots)} plots")


def added(report: dict[str, Any], published: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The published report with a new report's measurements, or the reason why they cannot be added."""
    different = sorted(_differences(report["environment"], published["environment"]))
    if not different:
        return merged([published, report]), ""
    missing = {_key(r) for r in published["results"]} - {_key(r) for r in report["results"]}
    if not missing:
        return report, ""
    values = ", ".join(f"{name} {report['environment'].get(name)}" for name in different)
    return published, (
        f"what is published was measured elsewhere (here: {values}), and {len(missing)} of its cases were not measured"
        " again; measure all, or give another folder with --out"
    )


def _differences(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """The names of what both environments have, and differently; torchax may have been there for some.

    The build of the system's kernel, in `platform`, may be another: pages do not name it.
    """
    return {name for name in one.keys() & other.keys() if one[name] != other[name] and name != "platform"}


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several. Of one case, job and dtype the last counts."""
    results = {_key(r): r for report in reports for r in report.get("results", [])}
    first_calls = {_key(r): r for report in reports for r in report.get("first_calls", [])}
    profiles = {_key(r): r for report in reports for r in report.get("profiles", [])}
    environment: dict[str, Any] = {}
    for report in reports:
        environment |= report["environment"]
    if any(_differences(environment, report["environment"]) for report in reports):
        raise SystemExit("the files come from different environments, so they do not belong in one report")
    return {
        "commands": list(dict.fromkeys(c for r in reports for c in r.get("commands", [r.get("command")]))),
        "environment": environment,
        "results": list(results.values()),
        "first_calls": list(first_calls.values()),
        "profiles": list(profiles.values()),
    }


def _key(result: Result) -> tuple[str, str, str]:
    return result["case"], result["job"], result["dtype"]


def compared(results: list[Result], saved: list[Result]) -> Iterator[str]:
    """The ratios that differ from those of the last run. Times alone say little: the machine may be another."""
    before = {_key(r): r for r in saved}
    count = 0
    for result in results:
        last = before.get(_key(result))
        if last is None:
            continue
        for pair in RATIOS:
            now, then = ratio_of(result, *pair), ratio_of(last, *pair)
            if now is None or then is None:
                continue
            count += 1
            factor = now.median / then.median
            if factor > NOTABLE or factor < 1 / NOTABLE:
                word = "slower" if factor > 1 else "faster"
                yield f"{word}: {', '.join(_key(result))}: {' / '.join(pair)} is {now}, was {then}"
    yield f"{count} ratios compared with the last run; above are those that changed by more than {NOTABLE - 1:.0%}"


def _of_torchax(environment: dict[str, Any]) -> list[str]:
    if "torchax" not in environment:
        return []
    return [f"torchax: {environment['torchax']}, in a process of its own: `TORCHAX_PYTHON=PATH` before each command."]


_ABOUT_PROFILES = (
    "Milliseconds of a call, by JAX's and torch's profilers. Products are matrix products, convolutions, attention,",
    "with what is computed in the same kernel: a library's, on either side. Loops are what else is computed, by jaten",
    "also convolutions with a kernel for each channel; moves what computes nothing. The optimizer is torch's own,",
    "eager for both, and a part of the loops in a `jaten step`; around is what is left. `the least` is the ratio that",
    "there would be if jaten took time for nothing but its products and the optimizer.",
)


def _command(out: Path) -> str:
    """The command that writes the page, as one gives it in the repository's folder."""
    out = out.resolve()
    inside = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    return "python -m benchmarks.report" + ("" if inside == Path("docs") else f" --out {inside}")


def page(report: dict[str, Any], plots: list[Path], command: str) -> str:
    environment = report["environment"]
    are_drawn = all(":" in r["case"] for r in report["results"])  # a library's name, and its model's
    threads = f", {environment['threads']} threads" if environment["threads"] > 1 else ""
    lines = [
        f"# {'Drawn models' if are_drawn else 'Benchmarks'}: {environment['processor']}{threads}",
        "",
        "Made by " + ", ".join(f"`{c}`" for c in report["commands"]) + f" and `{command}`, on",
        f"{environment['processor']}, {environment['threads']} thread(s) for torch and XLA alike, torch "
        f"{environment['torch']}, jax {environment['jax']}, Python {environment['python']}.",
        *_of_torchax(environment),
        "",
        "Median seconds of a call, by turns in one process, and medians of the ratios within each round, with their",
        "quartiles: below 1, the first is faster. `jaten` runs on plain tensors, `jaten on jax` on tensors of the",
        "device `jax`; JAX is the same model written by hand, its training step, AdamW included, one jitted function.",
        "All compute the same, which is checked first. `capture alone` is Dynamo and AOTAutograd with a backend that",
        "computes nothing. `benchmarks/models/` has the cases.",
    ]
    for dtype in dict.fromkeys(r["dtype"] for r in report["results"]):
        results = [r for r in report["results"] if r["dtype"] == dtype]
        lines += ["", f"## {dtype}", "", *[f"- {line}" for line in means(results)], ""]
        lines += without_empty_columns([*header().splitlines(), *map(row, results)])
        failures = [(r, n, text) for r in results for n, text in r["errors"].items()]
        lines += [""] if failures else []
        lines += [f"- {r['case']}, {r['job']}: {n} failed: {text.splitlines()[0]}" for r, n, text in failures]
        lines += ["", "Seconds of the first call, which compiles, caches empty:", ""]
        lines += without_empty_columns([*compile_rows(results)])
    if report["first_calls"]:
        lines += ["", "## First calls in fresh processes", "", "Cold with empty caches, warm with those that it left."]
        lines += ["", first_call_header(), *[line for f in report["first_calls"] for line in first_call_row(f)]]
    if report["profiles"]:
        lines += ["", "## What a call's time goes to", "", *_ABOUT_PROFILES, "", profile_header()]
        lines += [line for found in report["profiles"] for line in profile_rows(found)]
    lines += ["", *[f"![{plot.stem}](benchmarks/{plot.name})" for plot in plots], ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
