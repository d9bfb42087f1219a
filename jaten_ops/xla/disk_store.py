"""A persistent store: a folder of files by key, which nobody else can write to.

The files are loaded as code, so they must be this user's alone: a folder that belongs to another user, or that others
could replace, is not used. Nothing here raises: an unusable folder, a full disk or a damaged file count as a missing
entry, and the log of `jaten_ops.xla.disk_store` gives the reason.
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

_LEAVES = 0.8  # of the limit, which is kept when files are removed
_SHARE = 0.01  # of the limit, which may be written before the total is checked again
_DIGEST = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)


@functools.cache
def _prepared(name: str) -> Path | None:
    """The folder, created if needed; None if others can write to it."""
    try:
        folder = Path(name).expanduser().absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        problem = _problem(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError if the home folder is unknown
        problem = str(error)
    if problem:
        _log.info("nothing is cached for the next process: %s", problem)
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
    """A file name for contents that these parts determine."""
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
            with contextlib.suppress(OSError):  # in a read-only folder
                os.utime(path)  # marks the file as used
            return content[_DIGEST:]
        _log.info("%s is spoilt", path)
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.info("%s", error)
    return None


def write(key: str, content: bytes) -> None:
    """Stores bytes under a key, atomically."""
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
    """Removes the entry of a key that turned out to be unusable."""
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


_unseen: dict[Path, int] = {}  # bytes that this process has written since it last checked the total


def _shrink(folder: Path, written: int) -> None:
    """Removes files if the total is too large; checks it at a process's first write, and then from time to time."""
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
