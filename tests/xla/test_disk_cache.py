"""The face of all that is cached on disk: keys, what is found under them, and what cannot be stored or loaded."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import jax
import pytest

from jaten_ops.backend import executable_cache
from jaten_ops.hooks import graph_cache
from jaten_ops.xla import disk_cache, executables, fingerprint, kernel_cache
from jaten_ops.xla.disk_cache import DiskCache


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "1")
    monkeypatch.setenv("JATEN_CACHE_DIR", str(tmp_path / "cache"))


def test_each_cache_is_one_and_their_keys_differ() -> None:
    caches = [module.CACHE for module in (executable_cache, graph_cache, executables, kernel_cache)]
    assert all(isinstance(cache, DiskCache) for cache in caches)
    assert len({cache.fingerprint("a") for cache in caches}) == 4


def test_what_is_stored_is_found() -> None:
    cache = DiskCache("test")
    key = cache.fingerprint("a", b"b")
    assert cache.lookup(key, pickle.loads) is None
    assert cache.store(key, lambda: pickle.dumps([1, 2]))
    assert cache.lookup(key, pickle.loads) == [1, 2]
    assert cache.fingerprint("ab") != key != cache.fingerprint("a", b"b", device=jax.devices()[0])


def _fail(*_: Any) -> Any:
    raise ValueError("spoilt")


def test_what_cannot_be_loaded_is_forgotten_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache("test")
    key = cache.fingerprint("a")
    with caplog.at_level(logging.INFO, disk_cache.__name__):
        assert not cache.store(key, _fail) and cache.lookup(key, pickle.loads) is None
        cache.store(key, lambda: b"")
        assert cache.lookup(key, _fail) is None
    assert cache.lookup(key, bytes) is None
    assert "test is not cached: spoilt" in caplog.text and "cannot be loaded: spoilt" in caplog.text


def test_nothing_is_cached_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DiskCache("test")
    monkeypatch.setattr(fingerprint, "of_package", lambda: None)
    assert cache.fingerprint("a", of_package=True) is None
    monkeypatch.setenv("JATEN_CACHE", "0")
    assert cache.fingerprint("a") is None
    assert cache.lookup(None, bytes) is None and not cache.store(None, bytes)
