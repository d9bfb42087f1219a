"""Processes beside the one that has the device: DataLoader's workers, forked ones, and pinned batches."""

from __future__ import annotations

import gc
import multiprocessing
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data._utils
from torch.utils.data import DataLoader, Dataset

import jaten_ops  # noqa: F401  # the device jax


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """JAX warns of each fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Numbers(Dataset):
    def __init__(self, device: str = "cpu", kept: Any = None) -> None:
        self.device, self.kept = device, kept

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((3,), float(i), device=self.device) if self.kept is None else self.kept[i]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [{}, {"pin_memory": True}, {"persistent_workers": True}], ids=str)
def test_batches_of_workers_are_moved(options: dict[str, Any]) -> None:
    torch.ones(2, device="jax").sum().item()  # JAX runs before the fork
    batches = DataLoader(_Numbers(), batch_size=3, num_workers=2, timeout=60, **options)
    for _ in range(2):
        assert [b.to("jax", non_blocking=True).sum().item() for b in batches] == [9, 36]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kept", [False, True], ids=["makes", "keeps"])
def test_forked_workers_refuse_the_device(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch waits so many seconds for each worker of an iterator that an error has ended, with any device
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    x = torch.ones(6, 3, device="jax")
    data = _Numbers(kept=x) if kept else _Numbers("jax")
    try:
        list(DataLoader(data, batch_size=3, num_workers=2, timeout=60, multiprocessing_context="fork"))
        said = ""
    except RuntimeError as error:  # which holds the workers, and pytest would keep it
        said = str(error)
    gc.collect()  # the iterator, while the wait is short
    assert "Cannot use JAX in a forked subprocess" in said
    assert x.sum() == 18  # this process goes on
    assert not torch.jax._is_in_bad_fork()


@pytest.mark.exhaustive
def test_tensors_of_the_device_come_from_spawned_workers() -> None:
    data = _Numbers(kept=torch.ones(6, 3, device="jax"))
    batches = list(DataLoader(data, batch_size=3, num_workers=1, timeout=120, multiprocessing_context="spawn"))
    assert [(b.device.type, b.sum().item()) for b in batches] == [("jax", 9)] * 2


_compiled = torch.compile(lambda x: (x @ x).sin().sum(), backend="jaten")
_matrix = torch.ones(256, 256)  # made here: torch's own threads are gone from a forked process, too

USES = {
    "operator": lambda x: x + 1,
    "view": lambda x: x[1].item(),
    "factory": lambda x: torch.zeros(2, device="jax"),
    "plain tensor": lambda x: torch.ops.jaten.sin(torch.ones(2)),
    "compiled": lambda x: _compiled(_matrix),
}


def _try(use: str, x: torch.Tensor, answers: Any) -> None:
    try:
        answers.put(f"did {USES[use](x)}")
    except RuntimeError as error:
        answers.put(str(error))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use", USES)
def test_forked_processes_refuse(use: str) -> None:
    x = torch.ones(2, device="jax") + 1
    _compiled(_matrix)  # before the fork
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_try, args=(use, x, answers))
    process.start()
    process.join(60)
    process.kill()  # one that waits for threads would do so forever
    assert not answers.empty(), "it gave no answer"
    assert "Cannot use JAX in a forked subprocess" in answers.get()
