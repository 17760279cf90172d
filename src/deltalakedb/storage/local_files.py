"""Objects as files of this machine: complete or absent, whatever happens to their writer.

Guarantees:

- A file has its name only when all of it is on the disk. Where the system can make files without a
  name, a writer that is killed leaves nothing behind; elsewhere it may leave a hidden temporary
  file, which `clear_leftovers` finds.
- A name is on the disk when its folder is (`sync_folder`), new folders included.
- No threads and no runtime: a forked child can go on with any of it.
- `update_file` lets nobody overwrite what he has not seen. Whoever hangs there holds others up for
  seconds, not for ever.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import IO, Final, Self

_TEMPORARY: Final = re.compile(r"\..+\.(?:[0-9a-f]{32}|update)\.tmp")
_LOCK_SECONDS: Final = 10.0
_READ_AT_ONCE: Final = 1024 * 1024
# Where a file without a name can be got at to give it one.
_HANDLES: Final = "/proc/self/fd"


class NewFile:
    """A file that is written before it gets the name `path`; nothing stays unless it does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary: Path | None = None
        self._handle = self._open()

    def _open(self) -> int:
        flag = getattr(os, "O_TMPFILE", None)
        if flag is not None and Path(_HANDLES).is_dir():
            try:
                return os.open(self._path.parent, flag | os.O_WRONLY, 0o666)
            except OSError as error:
                # Not every file system can do it.
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise
        self._temporary = _temporary_name(self._path)
        return os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Be done with it; it stays where it has its name."""
        try:
            os.close(self._handle)
        finally:
            # Network file systems tell at the end what went wrong before.
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Write all of it to the disk."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]
        os.fsync(self._handle)

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """A file object; what was written to it is on the disk when the block ends."""
        with os.fdopen(self._handle, "wb", closefd=False) as file:
            yield file
            file.flush()
            os.fsync(self._handle)

    def create(self) -> bool:
        """Give it its name; False where there is a file of that name."""
        try:
            self._link(self._path)
        except FileExistsError:
            return False
        return True

    def replace(self, by_way_of: Path | None = None) -> None:
        """Give it its name, in the place of whatever has it.

        A name that is taken can only be had from another one, for a moment.
        """
        drop_checksum(self._path)
        if self.create():
            return
        if self._temporary is None:
            self._temporary = by_way_of or _temporary_name(self._path)
            self._link(self._temporary)
        self._temporary.replace(self._path)

    def _link(self, path: Path) -> None:
        if self._temporary is not None and path != self._temporary:
            os.link(self._temporary, path)
        else:
            # With a folder's handle Python follows the link of /proc instead of naming it.
            handle = self._handle
            os.link(f"{_HANDLES}/{handle}", path, src_dir_fd=handle, follow_symlinks=True)


def read_file(path: Path) -> bytes:
    """The whole content of a file."""
    return read_range(path, 0)


def read_range(path: Path, start: int, length: int | None = None) -> bytes:
    """A part of a file, shorter where the file ends before it does."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        if start:
            os.lseek(handle, start, os.SEEK_SET)
        parts = []
        left = _READ_AT_ONCE if length is None else length
        while left and (part := os.read(handle, min(left, _READ_AT_ONCE))):
            parts.append(part)
            left -= 0 if length is None else len(part)
    finally:
        os.close(handle)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def list_files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every file below a folder, at any depth: its path from there, size and time.

    Links are followed. A folder that contains itself by one is refused, as is a name that is no
    text. What vanishes meanwhile is left out.
    """
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        name, above = waiting.pop()
        try:
            status = (folder / name).stat()
            inode = (status.st_dev, status.st_ino)
            if inode in above:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder / name))
            entries = os.scandir(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        folders = []
        with entries:
            # By name: a file system lists in an order of its own.
            for entry in sorted(entries, key=lambda one: one.name):
                key = f"{name}/{entry.name}" if name else entry.name
                if entry.is_dir():
                    folders.append((key, above | {inode}))
                    continue
                with suppress(FileNotFoundError):
                    if entry.is_file():
                        _refuse_bytes(entry.path)
                        yield key, entry.stat()
        waiting.extend(reversed(folders))


def _refuse_bytes(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "its name is not UTF-8", os.fsencode(path)) from None


def delete_file(path: Path) -> None:
    """Delete a file, and what Hadoop keeps beside it; there being none is as good."""
    drop_checksum(path)
    path.unlink(missing_ok=True)


def create_file(path: Path, data: bytes, *, settle: bool, staged: NewFile | None = None) -> bool:
    """Create a file with its content, at once; False where there is one.

    What was `staged` has the content already.
    """
    with staged or stage_file(path, data) as file:
        created = file.create()
    if created and settle:
        sync_folder(path.parent)
    return created


def stage_file(path: Path, data: bytes) -> NewFile:
    """A file that has its content on the disk, and no name yet."""
    try:
        file = NewFile(path)
    except FileNotFoundError:
        make_folder(path.parent)
        file = NewFile(path)
    try:
        file.write(data)
    except BaseException:
        file.close()
        raise
    return file


def replace_file(path: Path, data: bytes, *, by_way_of: Path | None = None) -> None:
    """Write a file over whatever was there; readers see the old or the new one."""
    make_folder(path.parent)
    with NewFile(path) as file:
        file.write(data)
        file.replace(by_way_of)
    sync_folder(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which takes the name `path` when the block ends without an error."""
    make_folder(path.parent)
    with NewFile(path) as file:
        with file.writing() as sink:
            yield sink
        file.replace()
    sync_folder(path.parent)


def update_file(path: Path, change: Callable[[bytes | None], bytes | None]) -> bool:
    """Replace a file by what `change` makes of it, one caller at a time; False for None."""
    make_folder(path.parent)
    # Whoever has the lock is the only one with this name: nothing is left behind for long.
    temporary = path.with_name(f".{path.name}.update.tmp")
    with _locked(path.parent):
        temporary.unlink(missing_ok=True)
        changed = change(path.read_bytes() if path.exists() else None)
        if changed is None:
            return False
        replace_file(path, changed, by_way_of=temporary)
        return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which nobody but `update_file` takes. It ends with its process."""
    try:
        import fcntl
    except ImportError:  # Windows: the last one wins
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Whoever has it may have been stopped: waiting for ever would be catching.
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        errno.ETIMEDOUT,
                        f"another process has held the lock of this folder for {_LOCK_SECONDS:g} s",
                        str(folder),
                    ) from None
                time.sleep(0.01)
        try:
            yield
        finally:
            # A child that was forked meanwhile has the handle too: closing it here unlocks nothing.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def drop_checksum(path: Path) -> None:
    """Delete what Hadoop keeps beside a local file: it refuses a file that it does not fit."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and have their names on the disk."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder == folder.parent:
            break
        folder = folder.parent
    for new in reversed(missing):
        with suppress(FileExistsError):
            new.mkdir()
        if not new.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(new))
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def look_at(path: Path) -> tuple[int, int] | None:
    """Size of a file, and its time in whole milliseconds; None where there is no file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_size, status.st_mtime_ns // 1_000_000) if S_ISREG(status.st_mode) else None


def clear_leftovers(folder: Path, *, older_than_seconds: float) -> int:
    """Delete what killed writers left half written; how many files.

    Their age counts to the newest change of the folder, if that is earlier than our clock: a clock
    that is ahead must not make the files of a live writer old.
    """
    if not folder.is_dir():
        return 0
    limit = min(time.time(), folder.stat().st_mtime) - older_than_seconds
    cleared = 0
    for entry in os.scandir(folder):
        if not _TEMPORARY.fullmatch(entry.name):
            continue
        with suppress(FileNotFoundError):
            if entry.stat().st_mtime < limit:
                Path(entry.path).unlink()
                cleared += 1
    return cleared
