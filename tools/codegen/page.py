"""Coverage and the sweep as one self-contained HTML page: `page.html` filled in."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import torch

from jaten_ops.schema.exclusions import EXCLUSIONS

from . import sweeps
from .coverage import COLUMNS, MISSING, NONE, TITLES, Row, functional_rows, totals

_TEMPLATE = Path(__file__).with_suffix(".html")
_SIGNS = {"passed": "✓", "failed": "✗", "xfail": "x", "skipped": "·"}
_DTYPES = {  # the heads of narrow columns
    "bool": "b1",
    "bfloat16": "bf16",
    **{f"{kind}{size}": f"{short}{size}" for kind, short in (("int", "i"), ("uint", "u")) for size in (8, 16, 32, 64)},
    **{f"float{size}": f"f{size}" for size in (16, 32, 64)},
    **{f"complex{size}": f"c{size}" for size in (64, 128)},
}


def _cells(values: Iterable[str], tag: str = "td") -> str:
    return "".join(f"<{tag}>{escape(value)}</{tag}>" for value in values)


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th>{_cells(rest)}</tr>\n" for name, *rest in body)
    return f"<table><thead><tr>{_cells(head, 'th')}</tr></thead><tbody>\n{rows}</tbody></table>"


def _options(values: Iterable[str]) -> str:
    return "".join(f'<option value="{escape(v)}">{escape(v)}</option>' for v in values)


def _reasons() -> dict[str, str]:
    return {reason.partition(":")[0]: reason for reason in EXCLUSIONS}


class _Results:
    """The items of a report as cells; failures are numbered, for the page to show on a click."""

    def __init__(self, items: Sequence[sweeps.Item]) -> None:
        self.details: list[sweeps.Item] = []
        self.by_key = {sweeps.key_of(item): item for item in items}
        self.failing: dict[str, list[sweeps.Item]] = defaultdict(list)
        for item in items:
            for overload in item.get("overloads", ()) if item["status"] in ("failed", "xfail") else ():
                self.failing[overload].append(item)

    def cell(self, item: sweeps.Item | None) -> str:
        """A coloured sign; an empty cell where the check does not apply."""
        if item is None:
            return "<td></td>"
        status = item["status"]
        if status == "passed" and not item.get("missing"):
            return f'<td class="passed">{_SIGNS[status]}</td>'
        self.details.append(item)
        return f'<td class="{status}" data-item="{len(self.details) - 1}">{_SIGNS[status]}</td>'

    def count(self, overload: str) -> str:
        """A cell with the number of items in which calls of an overload differ."""
        items = self.failing.get(overload)
        if not items:
            return "<td></td>"
        self.details.append(
            {
                "check": "overload",
                "name": overload,
                "dtype": "",
                "status": "failed",
                "failures": [f"{i['check']} {i['name']} {i['dtype']}" for i in items],
            }
        )
        return f'<td class="failed" data-item="{len(self.details) - 1}">{len(items)}</td>'


def _overload_row(row: Row, results: _Results) -> str:
    excluded = "" if row.excluded == MISSING else row.excluded
    facets = {
        "core": row.core,
        "kernel": row.kernel,
        "fake": row.fake,
        "gradient": row.gradient,
        "excluded": row.excluded,
    }
    data = "".join(f' data-{name}="{escape(value)}"' for name, value in facets.items())
    derived = "" if row.variants in (NONE, MISSING) else row.variants
    checked = next((i for k, i in results.by_key.items() if k[:2] == ("opcheck", row.overload)), None)
    return (
        f"<tr{data}><th>{escape(row.overload)}</th>"
        + _cells([row.torch, row.core, row.kernel, row.fake, row.gradient, derived, row.tested])
        + f'<td title="{escape(_reasons().get(excluded, ""))}">{escape(excluded)}</td>'
        + results.cell(checked)
        + results.count(row.overload)
        + "</tr>\n"
    )


def overload_table(rows: Sequence[Row], results: _Results) -> str:
    head = _cells(["overload", *COLUMNS, "excluded", "opcheck", "differs in"], "th")
    body = "".join(_overload_row(row, results) for row in rows)
    return f'<table id="overloads"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'


def opinfo_table(results: _Results) -> str:
    """A row for each OpInfo, a column for each check and dtype; opcheck is in the other table."""
    keys = [key for key in results.by_key if key[0] != "opcheck"]
    columns = [(c, d) for c in sweeps.CHECKS for d in sorted({d for check, _, d in keys if check == c}, key=_rank)]
    spans = [(c, sum(check == c for check, _ in columns)) for c in sweeps.CHECKS]
    groups = "".join(f'<th colspan="{n}">{escape(c)}</th>' for c, n in spans if n)
    dtypes = "".join(f'<th title="{escape(f"{c} {d}")}">{escape(_DTYPES.get(d, d))}</th>' for c, d in columns)
    rows = []
    for name in sorted({name for _, name, _ in keys}):
        items = [results.by_key.get((c, name, d)) for c, d in columns]
        statuses = {item["status"] for item in items if item is not None}
        cells = "".join(map(results.cell, items))
        rows.append(f'<tr data-status="{" ".join(sorted(statuses))}"><th>{escape(name)}</th>{cells}</tr>\n')
    head = f'<tr><th rowspan="2">OpInfo</th>{groups}</tr><tr>{dtypes}</tr>'
    return f'<table id="opinfos"><thead>{head}</thead><tbody>\n{"".join(rows)}</tbody></table>'


def _rank(dtype: str) -> tuple[int, str]:
    """A sort key: float32 first, then the dtypes of narrow columns in their order."""
    order = ["float32", "float64", "bfloat16", "float16", "complex64", "complex128", *_DTYPES]
    return (order.index(dtype) if dtype in order else len(order), dtype)


def _sweep_totals(report: sweeps.Report) -> str:
    total = sweeps.totals(report.items)
    head = ["", *sweeps.STATUSES]

    def line(name: str, counted: dict[str, int]) -> list[str]:
        return [name, *(str(counted[s]) for s in sweeps.STATUSES)]

    by_check = _table(head, [*(line(c, n) for c, n in total["by_check"].items()), line("all", total["all"])])
    tables = "".join(
        f"<div><h3>{escape(check)}</h3>{_table(head, [line(d, dtypes[d]) for d in sorted(dtypes, key=_rank)])}</div>"
        for check, dtypes in total["by_dtype"].items()
        if len(dtypes) > 1
    )
    return f"<p>{escape(sweeps.provenance(report))}</p><div><h3>by check</h3>{by_check}</div>{tables}"


def to_html(rows: Sequence[Row], report: sweeps.Report | None) -> str:
    """The page.

    Args:
        rows: the overloads.
        report: the sweep's report; without one, the page says how to get it.
    """
    results = _Results(report.items if report is not None else [])
    nothing = "<p>No report: run <code>make sweep</code>, and name the report by <code>--report</code>.</p>"
    parts = {
        "torch": escape(torch.__version__),
        "totals": _table(["", *TITLES], [[name, *counts] for name, counts in totals(rows)]),
        "kernels": _options(sorted({row.kernel for row in rows})),
        "fakes": _options(sorted({row.fake for row in rows})),
        "gradients": _options(sorted({row.gradient for row in rows})),
        "reasons": _options([MISSING, *sorted(_reasons())]),
        "sweep": nothing if report is None else _sweep_totals(report),
        "overloads": overload_table(rows, results),
        "opinfos": "" if report is None else opinfo_table(results),
        "details": json.dumps(results.details, separators=(",", ":")).replace("</", "<\\/"),
    }
    page = _TEMPLATE.read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text)
    return page


def main(output: Path, reports: Sequence[Path], summary: Path) -> int:
    """Writes the page, and the summary of the reports if there are any."""
    report = sweeps.read(reports) if reports else None
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(to_html(functional_rows(), report), encoding="utf-8")
    print(f"written: {output}")
    if report is not None:
        summary.write_text(sweeps.to_markdown(report), encoding="utf-8")
        print(f"written: {summary}")
    return 0
