"""Objects as local files: complete or absent, whatever happens to their writer.

Guarantees:

- A file gets its name when all of it is on the disk. If the system has files without a name
  (O_TMPFILE), a killed writer leaves nothing behind; otherwise it can leave a hidden temporary
  file, which `clear_leftovers` deletes.
- A name is on the disk when its folder is (`sync_path`), new folders included.
- There are no threads and no runtime: a forked child can continue.
- `update_file` loses no concurrent update. A process that hangs in it blocks others for seconds,
  not for ever.
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
# The folder of links to open files, to give a file without a name one.
_HANDLES: Final = "/proc/self/fd"


class NewFile:
    """A file that is written before it gets the name `path`; without a name it is deleted."""

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
                # Not every file system supports it.
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
        """Close the file; without a name it is deleted."""
        try:
            os.close(self._handle)
        finally:
            # Network file systems report earlier failures here.
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
        """Open a file object; its content is on the disk when the block ends."""
        with os.fdopen(self._handle, "wb", closefd=False) as file:
            yield file
            file.flush()
            os.fsync(self._handle)

    def create(self) -> bool:
        """Give the file its name; False if the name exists."""
        try:
            self._link(self._path)
        except FileExistsError:
            return False
        return True

    def replace(self, by_way_of: Path | None = None) -> None:
        """Give the file its name; an existing file is replaced.

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
    """Read a whole file."""
    return read_range(path, 0)


def read_range(path: Path, start: int, length: int | None = None) -> bytes:
    """Read a part of a file; shorter if the file ends before it."""
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
    """Yield every file below a folder, at any depth: its relative path, size and time.

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
    """Delete a file and its Hadoop checksum; a missing one is no error."""
    drop_checksum(path)
    path.unlink(missing_ok=True)


def create_file(path: Path, data: bytes, *, settle: bool, staged: NewFile | None = None) -> bool:
    """Create a file with its content atomically; False if it exists.

    What was `staged` has the content already.
    """
    with staged or stage_file(path, data) as file:
        created = file.create()
    if created and settle:
        sync_path(path.parent)
    return created


def stage_file(path: Path, data: bytes) -> NewFile:
    """Return a file with its content on the disk and no name yet."""
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
    """Write or replace a file; readers see the old or the new one."""
    make_folder(path.parent)
    with NewFile(path) as file:
        file.write(data)
        file.replace(by_way_of)
    sync_path(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets the name `path` when the block ends without an error."""
    make_folder(path.parent)
    with NewFile(path) as file:
        with file.writing() as sink:
            yield sink
        file.replace()
    sync_path(path.parent)


def update_file(path: Path, change: Callable[[bytes | None], bytes | None]) -> bool:
    """Replace a file by the result of `change`, one caller at a time; False if that is None."""
    make_folder(path.parent)
    # Only the holder of the lock uses this name, so a leftover is soon overwritten.
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
    """Hold the lock of a folder, which only `update_file` takes. It ends with its process."""
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
                # The holder may be stopped: do not wait for ever.
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
    """Delete the Hadoop checksum beside a file: Hadoop refuses a file that does not match it."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and sync their names to the disk."""
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
        sync_path(new.parent)


def sync_path(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def look_at(path: Path) -> tuple[int, int] | None:
    """Return the size of a file and its time in milliseconds; None if it is missing."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_size, status.st_mtime_ns // 1_000_000) if S_ISREG(status.st_mode) else None


def clear_leftovers(folder: Path, *, older_than_seconds: float) -> int:
    """Delete temporary files of killed writers; return their number.

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
