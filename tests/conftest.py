"""Keeps a test process small, since thousands of executables would stay in memory, and the disk as it was."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import pytest
import torch._dynamo
import torch._dynamo.utils

import jaten_ops
from jaten_ops.arrays import partitioned
from jaten_ops.interpreter import first_calls
from jaten_ops.registry import active_overrides

from .harness import garbage
from .harness.crossings import fraction, sample

# What is compiled is kept, as it is for users, but in a folder of the tests'; workers have it from their parent.
_FOLDER = None if "JATEN_CACHE_DIR" in os.environ else tempfile.TemporaryDirectory(prefix="jaten-tests-")
if _FOLDER is not None:
    os.environ["JATEN_CACHE_DIR"] = _FOLDER.name
# Likewise byte code: the processes that tests start would compile some 300 modules each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores

first_calls.SECONDS = 3600.0  # what can be interpreted is, however often another test has called it

_OURS = os.path.dirname(os.path.realpath(jaten_ops.__file__)) + os.sep
_STEP = 1 << 20  # KiB: 1 GiB
_largest = 2 * _STEP
_MANY = 100_000  # objects since the last garbage collection, which takes as long as a small test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-of", type=int, default=1, metavar="N", help="run one of N tests: a fixed sample")


@pytest.hookimpl(tryfirst=True)  # pytest takes the exhaustive ones out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sample(items)
    items[:], others = fraction(items, config.getoption("--one-of"))
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    garbage.keep()
    _leave_out()


def _leave_out() -> None:
    """Leaves all that is there out of later garbage collections, which would take a tenth of the time."""
    garbage.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _leave_out_of_collections() -> Iterator[None]:
    yield
    _leave_out()


def _meshes_are_left() -> Iterator[None]:
    """Forgets the meshes that a test has met: a process that knows one rounds no sizes and fuses no operators."""
    before = list(partitioned.MET)
    yield
    partitioned.MET[:] = before


_after_a_module = pytest.fixture(scope="module", autouse=True)(_meshes_are_left)
_after_a_test = pytest.fixture(autouse=True)(_meshes_are_left)


@pytest.fixture(autouse=True)
def _modes_are_left() -> Iterator[None]:
    """A test leaves torch's modes as they were."""
    before = garbage.modes()
    yield
    assert garbage.modes() == before, "the test has changed them"
    if gc.get_count()[0] > _MANY:
        garbage.collect()


@pytest.fixture(autouse=True)
def _forget_executables() -> Iterator[None]:
    """Drops what has been compiled each time that the process has grown by another GiB."""
    global _largest
    yield
    if (size := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > _largest:
        torch._dynamo.reset()
        jax.clear_caches()
        gc.unfreeze()
        _leave_out()
        _largest = size + _STEP


@pytest.fixture(autouse=True)
def _unseen_by_dynamo() -> Iterator[None]:
    """No test has Dynamo compile a frame of jaten, as it would between the graphs of a program."""
    torch._dynamo.utils.clear_compilation_metrics()
    yield
    frames = {(m.co_filename, m.co_name) for m in torch._dynamo.utils.get_compilation_metrics()}
    assert not [(f, name) for f, name in frames if f and f.startswith(_OURS)]


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing compiled, a seed, and no warning that what is tested is a prototype of torch's."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def no_override_left() -> Iterator[None]:
    """No override is active after the test."""
    yield
    left: Any = active_overrides.active()
    for override in left:
        override.remove()
    assert left == ()
