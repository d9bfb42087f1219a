"""Bytes that outlive the process: a folder of files by their keys, which nobody else can write to.

What stands there is loaded as code, so it is this user's alone: a folder that belongs to another, or lies where others
could put one in its place, is not used. Nothing here raises: a folder that cannot be used, a full disk or a spoilt
file mean that there is no entry, and the log of `jaten_ops.xla.disk_store` says why.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

LIMIT = 2 << 30
"""The largest total size of the files, in bytes; those that were not read for longest are removed first."""

_LEAVES = 0.8  # of the limit, when it was passed
_SHARE = 0.01  # of the limit, that is written without a look at the sum
_DIGEST = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)


@functools.cache
def _prepared(name: str) -> Path | None:
    """The folder, made if it is not there; None if it is not ours alone."""
    try:
        folder = Path(name).expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        problem = _problem(folder)
    except (OSError, RuntimeError) as error:  # a RuntimeError for a home that nobody knows
        problem = str(error)
    if problem:
        _log.info("nothing is kept for the next process: %s", problem)
        return None
    return folder


def _problem(folder: Path) -> str | None:
    """A description of who else could write to the folder or replace it; None if nobody could."""
    if not hasattr(os, "getuid"):  # Windows, where a user's profile is private
        return None
    status = folder.stat()
    if status.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {folder}"
    for parent in folder.parents:
        status = parent.stat()
        if status.st_uid not in (0, os.getuid()):
            return f"{parent} belongs to another user"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
            return f"others can write to {parent}"
    return None


def folder() -> Path | None:
    """The folder of the files: `JATEN_CACHE_DIR`, or `jaten` in the user's cache folder. None if `JATEN_CACHE` is 0."""
    if os.environ.get("JATEN_CACHE", "1") == "0":
        return None
    others = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _prepared(os.environ.get("JATEN_CACHE_DIR") or f"{others}/jaten")


def key_of(*parts: str | bytes) -> str:
    """A name for what is made of these parts alone."""
    found = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        found.update(len(content).to_bytes(8, "little") + content)
    return found.hexdigest()


def read(key: str) -> bytes | None:
    """The bytes stored under a key; None if there are none. A damaged file is removed."""
    path = _path(key)
    if path is None:
        return None
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
            with contextlib.suppress(OSError):  # of a folder that can only be read
                os.utime(path)  # it is in use
            return content[_DIGEST:]
        _log.info("%s is spoilt", path)
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.info("%s", error)
    return None


def write(key: str, content: bytes) -> None:
    """Keeps bytes under a key: all of them or none, whoever else writes there at the same time."""
    path = _path(key)
    if path is None:
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")  # readable and writable by the user alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _shrink(path.parent, len(content))
    except OSError as error:
        _log.info("%s", error)


def forget(key: str) -> None:
    """Removes what is kept under a key, since it turned out to be of no use."""
    path = _path(key)
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def _path(key: str) -> Path | None:
    found = folder()
    return None if found is None else found / key


def _files(folder: Path) -> Iterator[tuple[float, int, str]]:
    """The time of last use, the size and the path of each file."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another process may remove some
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield status.st_mtime, status.st_size, entry.path


_unseen: dict[Path, int] = {}  # how many bytes this process has written since it looked


def _shrink(folder: Path, written: int) -> None:
    """Removes files if there are too many bytes; looks at a process's first file, and then now and again."""
    _unseen[folder] = unseen = _unseen.get(folder, LIMIT) + written
    if unseen < LIMIT * _SHARE:
        return
    _unseen[folder] = 0
    files = sorted(_files(folder))
    total = sum(size for _, size, _ in files)
    if total <= LIMIT:
        return
    for _, size, path in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
        if total <= LIMIT * _LEAVES:
            return
