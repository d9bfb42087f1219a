"""Worker processes for long runs of checks: a crash or a timeout fails one item, and the next gets a new worker."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_START = 300.0  # seconds that a worker may take to import everything


def _environment(cache: Path | None) -> dict[str, str]:
    """Environment of the workers: one thread each for torch and XLA, and a shared, persistent compilation cache.

    Most of an item's time is XLA's; loading from the cache takes a tenth of the time.
    """
    env = dict(os.environ, OMP_NUM_THREADS="1", NPROC="1")
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    if cache is not None:
        env["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        env["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    return env


class _Lost(Exception):
    """The worker is gone; the message says how."""


class _Worker:
    def __init__(self, command: Sequence[str], cache: Path | None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            cwd=ROOT,
            env=_environment(cache),
        )
        self._pending = b""
        self._answer(_START)

    def ask(self, request: Any, timeout: float) -> Any:
        """The answer to a request; raises _Lost if the worker dies, or takes longer than the timeout in seconds."""
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise _Lost(self._last_words()) from None
        return self._answer(timeout)

    def _answer(self, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._process.stdout], [], [], remaining)[0]:
                raise _Lost(f"no answer after {timeout:.0f} s")
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                raise _Lost(self._last_words())
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"the worker died of {how}: {' '.join(lines[-1:])[:300]}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):  # of a request that was never read
                stream.close()


class Pool:
    """Runs groups of items in worker processes; a group stays in one, which compiles what its items share once.

    Args:
        groups: lists of items, which are dataclasses.
        jobs: how many processes.
        timeout: seconds an item.
        cache: the directory of XLA's compilation cache, or None.
        command: starts a worker, which calls `tests.harness.serving.serve`.
        read: makes a record of a worker's answer.
        lost: makes the record of an item at which its worker was lost, of the item, its seconds, and how.
        options: what each request says beside the item.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Any]],
        jobs: int,
        timeout: float,
        cache: Path | None,
        command: Sequence[str],
        read: Callable[[Any], Any],
        lost: Callable[[Any, float, str], Any],
        options: Any = None,
    ) -> None:
        self._groups: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()
        for group in groups:
            self._groups.put(group)
        self._timeout, self._cache, self._command = timeout, cache, command
        self._read, self._lost, self._options = read, lost, options
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._workers: set[_Worker] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(jobs)]

    def records(self, wait: float) -> Iterator[Any]:
        """The records of the items as they are done; None after each `wait` seconds without one."""
        for thread in self._threads:
            thread.start()
        at_work = len(self._threads)
        try:
            while at_work:
                try:
                    done = self._done.get(timeout=wait)
                except queue.Empty:
                    yield None
                    continue
                if isinstance(done, Exception):
                    raise done
                at_work -= done is None
                if done is not None:
                    yield done
        finally:
            self._stopped.set()
            for worker in list(self._workers):
                worker.kill()
            for thread in self._threads:
                thread.join()

    def _serve(self) -> None:
        worker: _Worker | None = None
        try:
            while True:
                for item in self._groups.get_nowait():
                    if self._stopped.is_set():
                        return
                    worker = self._run(item, worker or self._start())
        except queue.Empty:
            self._done.put(None)
        except Exception as error:  # a worker that does not even start
            self._done.put(error)
        finally:
            if worker is not None:
                self._end(worker)

    def _start(self) -> _Worker:
        worker = _Worker(self._command, self._cache)
        self._workers.add(worker)
        return worker

    def _end(self, worker: _Worker) -> None:
        self._workers.discard(worker)
        worker.end()

    def _run(self, item: Any, worker: _Worker) -> _Worker | None:
        """Runs an item; returns its worker if that can continue."""
        start = time.monotonic()
        try:
            answer = worker.ask({"item": asdict(item), "options": self._options}, self._timeout)
        except _Lost as error:
            seconds = round(time.monotonic() - start, 2)
            self._done.put(self._lost(item, seconds, str(error)))
            self._end(worker)
            return None
        self._done.put(self._read(answer["record"]))
        if answer["tired"]:
            self._end(worker)
            return None
        return worker
