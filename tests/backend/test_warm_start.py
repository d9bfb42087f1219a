"""A new process finds what another one has compiled, and nobody but its user can put anything there."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import jaten_ops
from jaten_ops import registry
from jaten_ops.backend import graph_cache
from jaten_ops.hooks import ledger
from jaten_ops.interpreter import first_calls
from jaten_ops.xla import disk_store, executables, fingerprint, kernel_cache

PROGRAM = """
import json, logging, sys
import jax, torch
from torch._dynamo.utils import counters
import jaten_ops
from jaten_ops.xla import fingerprint

fingerprint._sources = lambda: "as they are"  # somebody may be writing to them
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
settings = dict(jax.config.values)

def compiles(run):
    compiled.clear()
    result = run()
    return result, compiled.count("/jax/core/compile/backend_compile_duration")

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Flatten())
image = torch.randn(2, 2, 5, 5)
trained = torch.compile(net, backend="jaten")

def train():
    loss = trained(image).square().sum()
    loss.backward()
    return [loss.item(), *(p.grad.sum().item() for p in net.parameters())]

@torch.compile(backend="jaten")
def laid_out(x):
    return x.to(memory_format=torch.channels_last) + 1, x.mT * 2, x[0], torch.linalg.inv(x @ x.mT + torch.eye(5))

def lay_out():
    return [(list(t.stride()), t.sum().item()) for t in laid_out(image)]

@torch.compile(backend="jaten")
def with_constants(x):
    return torch.where(x > 0, x * torch.tensor([1.0, 2.0, 3.0]), torch.tensor(-1.0))

def constants():
    return with_constants(torch.tensor([1.0, -1.0, 2.0])).tolist()

@torch.compile(backend="jaten")
def looked_up(table, rows):
    return table[rows]

@torch.compile(backend="jaten")
def branching(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x - 1, (x,))

def branch():
    return [branching(torch.full((3,), v)).tolist() for v in (1.0, -1.0)]

def look_up():
    try:
        looked_up(torch.arange(3.0), torch.tensor([0, 5]))
    except IndexError as error:
        return str(error)

weight = torch.ones(3).to("jax")
step = jaten_ops.compile_step(lambda: weight.add_(weight.sin()), weight)
step()
found = {f.__name__: compiles(f) for f in (train, lay_out, constants, branch, look_up)}
found["train again"] = compiles(train)
found["step"] = compiles(lambda: step().cpu().tolist())
found["hits"] = counters["aot_autograd"]["autograd_cache_hit"]
found["settings"] = settings == jax.config.values
print(json.dumps(found))
"""


class Runs:
    """Runs of the program in processes that share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.script = folder / "cache", folder / "program.py"
        self.first: frozenset[str] = frozenset()  # the files of the first process
        self.compiling: set[str] = set()  # and what it compiled
        self.script.write_text(PROGRAM)

    def start(self, **settings: str) -> subprocess.Popen:
        settings = {"JATEN_CACHE": "1", "JATEN_CACHE_DIR": str(self.folder)} | settings
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | settings
        return subprocess.Popen([sys.executable, str(self.script)], env=environment, stdout=subprocess.PIPE, text=True)

    def result(self, process: subprocess.Popen) -> dict[str, Any]:
        output, _ = process.communicate()
        assert process.returncode == 0
        return json.loads(output.splitlines()[-1])

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("warm"))


@pytest.fixture(scope="module")
def cold(runs: Runs) -> dict[str, Any]:
    """The findings of a first process."""
    first = runs.result(runs.start())
    runs.first = frozenset(runs.files())
    runs.compiling = {name for name, count in _compiles(first).items() if count}
    return first


def _values(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value[0] for name, value in found.items() if isinstance(value, list)}


def _compiles(found: dict[str, Any]) -> dict[str, int]:
    return {name: value[1] for name, value in found.items() if isinstance(value, list)}


def test_a_second_process_compiles_nothing_and_finds_the_same(runs: Runs, cold: dict[str, Any]) -> None:
    before = runs.files()
    warm = runs.result(runs.start())
    assert _values(warm) == _values(cold)
    assert runs.compiling == {"train", "lay_out", "constants", "branch", "look_up", "step"}
    assert {name: n for name, n in _compiles(warm).items() if n} == {}
    assert warm["hits"] == 4  # torch keeps no graph with branches
    assert runs.files() == before


@pytest.mark.exhaustive
def test_two_processes_at_once_find_the_same(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    first, second = map(runs.result, [runs.start(), runs.start()])
    warm = runs.result(runs.start())
    assert _values(first) == _values(second) == _values(warm)
    assert {name: n for name, n in _compiles(warm).items() if n} == {} and warm["hits"] == 4


def test_no_setting_of_jax_is_touched(cold: dict[str, Any]) -> None:
    assert cold["settings"]


@pytest.mark.exhaustive
def test_messages_name_the_line_where_it_is_now(runs: Runs, cold: dict[str, Any]) -> None:
    runs.script.write_text(PROGRAM.replace("def looked_up", "\ndef looked_up"))
    moved = runs.result(runs.start())
    runs.script.write_text(PROGRAM)
    line = PROGRAM.splitlines().index("    return table[rows]") + 1
    assert f"program.py:{line}: " in cold["look_up"][0] and f"program.py:{line + 1}: " in moved["look_up"][0]
    assert _compiles(moved)["look_up"] == 0  # it is the same program for XLA


@pytest.mark.exhaustive
def test_spoilt_files_are_compiled_anew(runs: Runs, cold: dict[str, Any]) -> None:
    spoilt = {name: content[:-1] if at % 2 else b"" for at, (name, content) in enumerate(runs.files().items())}
    for name, content in spoilt.items():
        (runs.folder / name).write_bytes(content)
    again = runs.result(runs.start())
    assert _values(again) == _values(cold) and again["hits"] == 0
    files = runs.files()
    assert files.keys() == spoilt.keys()
    assert all(files[name] != spoilt[name] for name in runs.first)


def test_this_torch_has_the_cache_that_is_known() -> None:
    assert graph_cache.is_known()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JATEN_CACHE", "1")
    monkeypatch.setenv("JATEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprint, "_sources", lambda: "as they are")
    disk_store._prepared.cache_clear()
    fingerprint._has_others.cache_clear()
    return tmp_path / "cache"


def test_what_was_written_is_read(folder: Path) -> None:
    assert disk_store.read("a") is None
    disk_store.write("a", b"some bytes")
    assert disk_store.read("a") == b"some bytes"
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "a").stat().st_mode & 0o777 == 0o600
    disk_store.forget("a")
    assert disk_store.read("a") is None


def test_it_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JATEN_CACHE", "0")
    disk_store.write("a", b"some bytes")
    assert disk_store.folder() is None and disk_store.read("a") is None and not folder.exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows keeps a user's profile private by other means")
@pytest.mark.parametrize("which", ["cache", "parent", "owner"])
def test_a_folder_that_others_can_write_to_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(mode=0o700)
    if which == "owner":
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
    else:
        (folder if which == "cache" else folder.parent).chmod(0o777)
    with caplog.at_level(logging.INFO, "jaten_ops.xla.disk_store"):
        disk_store.write("a", b"some bytes")
    assert disk_store.folder() is None and list(folder.iterdir()) == []
    assert "nothing is cached" in caplog.text


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "replace", full)
    disk_store.write("a", b"some bytes")
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_done_without(folder: Path) -> None:
    folder.write_text("a file")
    disk_store.write("a", b"some bytes")
    assert disk_store.read("a") is None


def test_the_oldest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "LIMIT", 1000)
    for at in range(9):
        disk_store.write(str(at), bytes(68))  # and as many of their checksum: 100
        os.utime(folder / str(at), (at, at))
    assert disk_store.read("0") is not None  # it is in use now
    disk_store.write("large", bytes(168))
    assert sorted(path.name for path in folder.iterdir()) == ["0", "4", "5", "6", "7", "8", "large"]


def test_threads_write_and_read_whole_files(folder: Path) -> None:
    contents = [bytes([at]) * 100_000 for at in range(4)]
    disk_store.write("a", contents[0])
    found: list[bytes | None] = []

    def work(content: bytes) -> None:
        for _ in range(20):
            disk_store.write("a", content)
            found.append(disk_store.read("a"))

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) <= set(contents) and len(list(folder.iterdir())) == 1


def test_a_hash_is_of_every_file_that_was_not_written_since(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("def f(): return 1")
    (tmp_path / "__pycache__").mkdir()
    now = (tmp_path / "kernel.py").stat().st_ctime_ns
    first = fingerprint.hash_of((tmp_path,), before=now)
    assert first is not None and fingerprint.hash_of((tmp_path,), before=now - 1) is None
    (tmp_path / "__pycache__" / "kernel.pyc").write_text("as compiled")
    assert fingerprint.hash_of((tmp_path,), before=now) == first
    (tmp_path / "kernel.py").write_text("def f(): return 2")
    now = (tmp_path / "kernel.py").stat().st_ctime_ns
    assert fingerprint.hash_of((tmp_path,), before=now) not in (None, first)


def test_a_kernel_of_a_user_for_an_operator_of_aten_keeps_graphs_off_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint.of_package() is not None
    monkeypatch.setitem(registry.KERNELS, "somebodys", registry.Entry(jnp.sin, "/home/somebody/kernels.py:3"))
    assert fingerprint.of_package() is None


def test_programs_that_differ_have_different_executables(folder: Path) -> None:
    x = jnp.ones(3)

    def key(fn: Any, *operands: Any, **options: Any) -> str | None:
        return executables.compiled(jax.jit(fn, **options).lower(*operands))[1]

    keys = [
        key(lambda a, b: a * 2, x, x),
        key(lambda a, b: b * 2, x, x),  # its text is the same, as is that of the next ones
        key(lambda a: a * 2, x),
        key(lambda a: [a * 2], x),
        key(lambda a: a * 2, x, donate_argnums=0),
        key(lambda a: a * 3, x),
        key(lambda a: a * 2, jax.device_put(x, jax.devices()[0])),
    ]
    assert None not in keys and len(set(keys)) == len(keys)
    with jax.default_matmul_precision("highest"):
        assert key(lambda a: a * 2, x) not in keys


def test_kernels_are_kept_and_no_program_of_a_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "jax._src.compiler:backend_compile_and_load" not in ledger.OFF
    monkeypatch.setattr(first_calls, "is_used", lambda: False)  # the first calls are compiled
    found: list[Any] = []
    load = kernel_cache._load
    monkeypatch.setattr(kernel_cache, "_load", lambda *args: found.append(load(*args)) or found[-1])
    table, rows = torch.arange(77.0), torch.tensor([3, 5])

    jax.clear_caches()
    jax.jit(lambda a: a + 77)(jnp.ones(77))
    assert not folder.exists()
    first = torch.ops.jaten.take(table, rows)
    assert found == [None] and len(list(folder.iterdir())) == 1
    jax.clear_caches()
    assert torch.ops.jaten.take(table, rows).equal(first)
    assert len(found) == 2 and found[1] is not None
    with pytest.raises(IndexError):
        torch.ops.jaten.take(table, rows + 77)


def test_a_program_that_calls_python_is_not_kept(folder: Path) -> None:
    def called_back(a: jax.Array) -> Any:
        return jax.pure_callback(lambda v: v, a, a)

    run, key = executables.compiled(jax.jit(called_back).lower(jnp.ones(3)))
    assert key is None and run(jnp.ones(3)).tolist() == [1, 1, 1]


@jaten_ops.op("warm::twice(Tensor x) -> Tensor")
def _twice(x: jax.Array) -> jax.Array:
    return x * 2


def _prefix(fn: Any, *inputs: torch.Tensor) -> str | None:
    found: list[str | None] = []

    def backend(gm: torch.fx.GraphModule, given: Any) -> Any:
        found.append(graph_cache.prefix_of(gm, given, None))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=backend)(*inputs)
    return found[0]


def test_graphs_whose_key_would_not_say_all_are_captured_anew(folder: Path) -> None:
    x = torch.ones(4)
    assert _prefix(lambda a, b: a + b, x, x.clone()) is not None
    assert _prefix(lambda a, b: a + b, x, x.view(2, 2).view(4)) is None  # one may be written to
    assert _prefix(lambda a: torch.ops.warm.twice(a), x) is None  # a user's kernel has no text
    assert _prefix(lambda a: torch.utils.checkpoint.checkpoint(torch.sin, a, use_reentrant=False), x) is None
    changing = torch.ones(5)
    torch._dynamo.mark_dynamic(changing, 0)
    assert _prefix(lambda a: a + 1, changing) is None


def test_the_prefix_of_keys_has_what_decides_a_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prefix() -> str | None:
        return _prefix(lambda a: a + 1, torch.ones(3, dtype=torch.float64))

    keys = [prefix(), prefix()]
    assert keys[0] == keys[1]
    monkeypatch.setattr(fingerprint, "_sources", lambda: "otherwise")
    keys.append(prefix())
    torch.set_default_dtype(torch.float64)
    try:
        keys.append(prefix())
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        keys.append(prefix())
    assert None not in keys and len(set(keys)) == len(keys) - 1
