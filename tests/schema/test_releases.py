"""The rows of each torch release: the differences of a release make its rows of those before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jaten_ops
from jaten_ops import registry
from jaten_ops.errors import UnknownOpError
from jaten_ops.schema import COMPOSITE, FIRST, FUNCTIONAL, VARIANTS, releases

OTHER_FIELDS = "\tfunctional\t-\t-\t-\t-"


def _row(schema: str) -> str:
    return schema + OTHER_FIELDS


def _tables(*functional: str) -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {table: {} for table in releases.TABLES}
    return tables | {"functional": releases.by_overload([_row(schema) for schema in functional])}


BEFORE = _tables("gone(Tensor self) -> Tensor", "kept(Tensor self) -> Tensor", "renamed.x(Tensor grad) -> Tensor")
AFTER = _tables("added(Tensor self) -> Tensor", "kept(Tensor self) -> Tensor", "renamed.x(Tensor grad_out) -> Tensor")
LINES = [
    f"functional\t{_row('added(Tensor self) -> Tensor')}",
    "functional\tgone",
    f"functional\t{_row('renamed.x(Tensor grad_out) -> Tensor')}",
]


def test_differences() -> None:
    assert releases.differences(BEFORE, AFTER) == LINES
    assert releases.changed(BEFORE, ["# a comment", *LINES]) == AFTER
    assert releases.differences(AFTER, AFTER) == []


def test_each_release_has_the_rows_of_the_last_file_up_to_it(tmp_path: Path) -> None:
    for table, rows in BEFORE.items():
        (tmp_path / f"{table}.ops").write_text("".join(f"{row}\n" for row in rows.values()), encoding="utf-8")
    assert releases.history(tmp_path) == {releases.OLDEST: BEFORE}
    for release, lines in (((2, 15), LINES), ((2, 101), ["functional\tkept"])):
        text = "# the header\n" + "".join(f"{line}\n" for line in lines)
        (tmp_path / releases.differences_name(release)).write_text(text, encoding="utf-8")
    found = releases.history(tmp_path)
    assert list(found) == [releases.OLDEST, (2, 15), (2, 101)]
    assert [releases.tables_of(r, found) for r in ((2, 12), (2, 14), (2, 15), (2, 100))] == [BEFORE] * 2 + [AFTER] * 2
    assert list(releases.tables_of((3, 0), found)["functional"]) == ["renamed.x", "added"]
    assert releases.history(tmp_path, before=(2, 15)) == {releases.OLDEST: BEFORE}


@pytest.mark.parametrize("version", ["2.14.0", "2.14.1+cpu", "2.14.0a0+git123", "2.14"])
def test_release_of_a_version(version: str) -> None:
    assert releases.release_of(version) == (2, 14)


def test_the_rows_are_the_operators_of_the_installed_torch() -> None:
    tables = {o for table in (FUNCTIONAL, VARIANTS, COMPOSITE) for o in table}
    assert [o for o in tables if not _exists(o)] == []
    assert [o for o in FIRST.keys() - FUNCTIONAL.keys() if _exists(o)] == []


def _exists(overload: str) -> bool:
    packet, _, suffix = overload.partition(".")
    return hasattr(getattr(torch.ops.aten, packet, None), suffix or "default")


def test_what_the_installed_torch_lacks_has_a_kernel_that_is_not_used() -> None:
    absent = FIRST.keys() - FUNCTIONAL.keys()
    assert absent and registry.ABSENT["kernel"].keys() == absent
    assert not absent & (registry.KERNELS.keys() | registry.SPECS.keys())
    name = min(absent)
    with pytest.raises(UnknownOpError, match=name):
        jaten_ops.kernel(name)(lambda *args: None)
