"""Programs, ways to run them and what surrounds them, crossed: a sample. `python -m tests.combinations` runs all."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from tests.combinations import table
from tests.combinations.__main__ import workers
from tests.combinations.programs import PROGRAMS, TRAITS
from tests.combinations.refusals import REFUSALS, Refusal
from tests.combinations.surroundings import SURROUNDINGS
from tests.combinations.table import Case, Record, cases, run
from tests.combinations.ways import WAYS


def _sample() -> list[Case]:
    """A draw in which each program, each way and each surrounding come once at least: first where all three are new."""
    left = cases()
    random.Random(0).shuffle(left)
    seen: set[tuple[str, str]] = set()
    taken = []
    for count in (3, 2, 1):
        for case in left:
            new = {("program", case.program), ("way", case.way), ("surrounding", case.surrounding)} - seen
            if len(new) >= count:
                taken.append(case)
                seen |= new
    return sorted(taken, key=lambda c: c.key)


@pytest.fixture(scope="module")
def records(request: pytest.FixtureRequest) -> dict[tuple[str, str, str], Record]:
    """The records of the cases that are to be run, from a process of theirs.

    Traces that Dynamo gives up, as those of some transforms in compiled programs, leave torch in a state that a later
    trace may see; here that is the same each time.
    """
    chosen = [item.callspec.params["case"] for item in request.session.items if _is_combination(item)]
    return {r.key: r for r in workers([chosen], 1, 300.0).records(600.0) if r is not None}


def _is_combination(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.originalname == test_combination.__name__


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", _sample(), ids=str)
def test_combination(case: Case, records: dict[tuple[str, str, str], Record]) -> None:
    record = records[case.key]
    assert record.status in ("passed", "refused", "not torch's"), record.reason


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_programs_of_torch(name: str) -> None:
    """Each runs by itself, of each size, or its combinations would compare an error with an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (3, 5):
            PROGRAMS[name].plain(*PROGRAMS[name].make_inputs(size=size))


def test_everything_is_met() -> None:
    met = {part for c in cases() for part in c.key}
    assert met >= {*WAYS, *SURROUNDINGS, *PROGRAMS, "as_jax", "compile_step"}
    assert all(p.traits <= TRAITS.keys() for p in PROGRAMS.values())
    assert len({c.key for c in cases()}) == len(cases())


def test_every_refusal_is_of_a_combination() -> None:
    for row in REFUSALS:
        assert any(table.refusal_of(c, PROGRAMS[c.program]) is row for c in cases()), row


def test_the_judge_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way whose results are off by a little, of another dtype, or somewhere else, fails."""
    case = Case("device", "a call", "polynomial")
    way = WAYS["device"]
    wrong = {
        "close": lambda r: r * (1 + 1e-6),
        "float32": lambda r: r.float(),
        "a tensor on cpu": lambda r: r.cpu(),
        "structure": lambda r: [r],
        "carrier": lambda r: r._carrier,
    }
    for words, change in wrong.items():
        changed = type(way)(way.name, way.device, lambda p, s, change=change: lambda *a: change(p.fn(*a)))
        monkeypatch.setitem(table.WAYS, "device", changed)
        record = run(case)
        assert record.status == "failed"
        assert words in record.reason or "inside" in record.reason, (words, record.reason)
    monkeypatch.setitem(table.WAYS, "device", way)
    assert run(case).status == "passed"
    row = Refusal("device", "a call", "poly*", "ValueError", "no", "of a test")
    monkeypatch.setattr("tests.combinations.refusals.REFUSALS", (row,))
    assert run(case).status == "failed"
    assert torch.get_default_dtype() is torch.float32
