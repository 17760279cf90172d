"""Where tables lie: locations as URIs, and the object stores behind them.

Guarantees:

- `put_if_absent` is atomic: of any number of callers one creates the object, and nobody ever sees
  half of it. On local disks the object is on the disk when the call returns, and a process that is
  killed in the middle leaves nothing behind where the system can make files without a name.
  A store without conditional writes is looked at, written to, and read back.
- Whatever a store says comes out as a StorageError; `transient` tells whether to try again.
- Credentials never appear in an error or a repr.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit

from deltalakedb.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
    StorageUnavailableError,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

# Schemes that name the same store: a table must not be registered under each of them.
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az"}
_SCHEMES = frozenset({"file", "s3", "gs", "az", "abfs", "abfss", *_SAME})

# Options of the HTTP client, which obstore takes apart from those of the store.
_CLIENT_OPTIONS: Final = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout"),
        *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"),
        *("proxy_excludes", "read_timeout", "user_agent", "http1_only", "http2_only"),
    }
)
_OWNERS: Final = ("aws_", "google_", "azure_")
_FLAGS: Final = frozenset({"allow_http", "allow_invalid_certificates", "http1_only", "http2_only"})
_SECRET: Final = re.compile("secret|token|key|password|sas|credential", re.IGNORECASE)
_URL_QUERY: Final = re.compile(r"\?[^\s\"')>]+")
# What obstore only tells in words. A missing bucket must not pass for a missing object.
_NO_BUCKET: Final = re.compile(
    "NoSuchBucket|ContainerNotFound|specified bucket does not exist", re.IGNORECASE
)
_CLIENT_FAULT: Final = re.compile(
    r"status code:? ?(?:40[0-79]|41\d)|\b(?:40[0-79]|41\d) [A-Z]|\(os error (?:20|21|36|40)\)"
)
_DENIED: Final = re.compile(r"\(os error (?:1|13|30)\)|AccessDenied|\b40[13]\b")
_RETRY: Final = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
# Whoever waits for a commit does not wait for a store that is ill: a worker will try again.
_BRIEF_RETRY: Final = {"max_retries": 1, "retry_timeout": timedelta(seconds=5)}
_BRIEF: Final = {"connect_timeout": "3s", "timeout": "10s"}
_DELETED_AT_ONCE: Final = 1000
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


def normalise_location(location: object) -> str:
    """One spelling for a table's location: an absolute URI without a slash at its end."""
    text = location.strip() if isinstance(location, str) else ""
    if not text:
        raise ConfigurationError(
            f"The location of the table is {'empty' if location == '' else repr(location)}",
            fix="Give a folder or an object store prefix, e.g. file:///data/orders or s3://b/orders",
        )
    parts = urlsplit(text)
    if "://" not in text and not text.startswith("file:"):
        return _file_uri(str(Path(text).expanduser()))
    scheme = parts.scheme.lower()
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"The location {text[:200]!r} has the scheme {scheme!r}, which is not supported",
            fix=f"Use one of {', '.join(sorted(_SCHEMES))}, or a plain path",
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"The location {text[:200]!r} names the host {parts.netloc!r}",
                fix="Write file:/// with three slashes before an absolute path",
            )
        return _file_uri("/" + unquote(parts.path))
    if not parts.netloc:
        raise ConfigurationError(
            f"The location {text[:200]!r} names no bucket", fix=f"Write {scheme}://bucket/prefix"
        )
    return f"{_SAME.get(scheme, scheme)}://{parts.netloc}{parts.path.rstrip('/')}"


def _file_uri(path: str) -> str:
    # abspath takes out '.', '..' and doubled slashes, but keeps two at the beginning.
    # Path.resolve would follow links, and the table would move with them.
    return "file://" + quote("/" + os.path.abspath(path).lstrip("/"))  # noqa: PTH100


def local_path(location: str) -> Path | None:
    """The folder of a normalised location on this machine; None for an object store."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object without reading it; the key is relative to the location."""

    key: str
    size: int
    modified_ms: int


def open_storage(
    location: str, storage_options: Mapping[str, str] | None = None, *, patient: bool = True
) -> Storage:
    """The object store at `location`; nothing is contacted yet.

    One that is not `patient` gives up after seconds instead of a minute. Options are those of the
    store (`aws_access_key_id`, `region`, `endpoint_url`, …) and of its HTTP client (`allow_http`,
    `timeout`, …); what is not given comes from the environment. `memory:///name` is a store in this
    process, for tests.
    """
    options = check_options(storage_options)
    if location.startswith("memory:"):
        return Storage(location, lambda: _memory(location), options)
    location = normalise_location(location)
    folder = local_path(location)
    if folder is not None:
        return Storage(location, lambda: _local(folder), options, folder=folder)
    if patient:
        store = open_object_store(location, options)
    else:
        store = open_object_store(location, {**_BRIEF, **options}, retry=_BRIEF_RETRY)
    return Storage(location, lambda: store, options)


class Storage:
    """The objects below one location. Keys are relative to it, `/` between their parts."""

    def __init__(
        self,
        location: str,
        store: Callable[[], ObjectStore | None],
        options: Mapping[str, str] | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        self.location = location
        self._open = store
        self._store: ObjectStore | None = None
        self._folder = folder
        self._conditional = True
        self._secrets = tuple(
            value for key, value in (options or {}).items() if value and _SECRET.search(key)
        )

    def __repr__(self) -> str:
        return f"Storage({self.location!r})"

    @property
    def is_local(self) -> bool:
        """Whether reading is as quick as a local file."""
        return self._folder is not None

    def get(self, key: str) -> bytes:
        """The whole object; ObjectNotFoundError where there is none."""
        return self._call(key, "read", lambda store: bytes(store.get(key).bytes()))

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """A part of an object, shorter where the object ends before it does."""
        return self._call(
            key, "read", lambda store: bytes(store.get_range(key, start=start, length=length))
        )

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of an object, or None where there is none."""
        try:
            return self._call(key, "look at", lambda store: _info(store.head(key)))
        except ObjectNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """Write an object, over whatever was there; readers see the old or the new one."""
        if self._folder is not None:
            self._locally(key, "write", lambda path: _replace_file(path, data))
        else:
            self._call(key, "write", lambda store: store.put(key, data, mode="overwrite"))

    def put_if_absent(self, key: str, data: bytes, *, settle: bool = True) -> bool:
        """Create an object; False, with nothing written, where there is one already.

        Without `settle` its name may be lost with the power until `settle(…)` is called.
        """
        if self._folder is not None:
            return self._locally(
                key, "create", lambda path: _create_file(path, data, settle=settle)
            )
        return self._call(key, "create", lambda store: self._create(store, key, data))

    def settle(self, prefix: str) -> None:
        """Make sure that the objects of a folder stay, whatever happens to the power."""
        if self._folder is not None:
            self._locally(prefix, "write", _sync_folder)

    def _create(self, store: ObjectStore, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        if self._conditional:
            try:
                store.put(key, data, mode="create")
            except (AlreadyExistsError, PreconditionError, FileExistsError):
                return False
            except (NotSupportedError, NotImplementedError):
                self._conditional = False
            else:
                return True
        if self.head(key) is not None:
            return False
        store.put(key, data, mode="overwrite")
        # Of two that came this far the later one has overwritten the other: this is who stays.
        return bytes(store.get(key).bytes()) == data

    @contextmanager
    def writing(self, key: str) -> Iterator[IO[bytes]]:
        """A file to write an object of any size into, over whatever was there.

        The object appears, complete, when the block ends; after an exception nothing is there.
        Memory stays bounded: what goes to an object store is put on a local disk first, and sent
        in parts.
        """
        if self._folder is not None:
            with self._writing_locally(key) as file:
                yield file
            return
        try:
            with TemporaryFile() as file:
                yield file
                file.seek(0)
                self._call(key, "write", lambda store: store.put(key, file, mode="overwrite"))
        except OSError as error:
            raise self._translate(error, key, "write") from None

    @contextmanager
    def _writing_locally(self, key: str) -> Iterator[IO[bytes]]:
        path = self._locally(key, "write", lambda path: path)
        temporary = _temporary_name(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("xb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                _drop_checksum(path)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync_folder(path.parent)
        except OSError as error:
            raise self._translate(error, key, "write") from None

    def update(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace a small object by what `change` makes of it; False where that is None.

        Of callers at the same time nobody overwrites what he has not seen, on local disks and on
        stores with conditional writes; elsewhere the last one wins. `change` may be called again.
        """
        if self._folder is not None:
            return self._locally(key, "write", lambda path: _update_file(path, change))
        return self._call(key, "write", lambda store: _update_object(store, key, change))

    def clear_leftovers(self, prefix: str, *, older_than_seconds: float) -> int:
        """Delete what killed processes left half written in a folder; how many files.

        Object stores have no such thing: what is not complete is not there.
        """
        folder = None if self._folder is None else self._folder / prefix
        if folder is None or not folder.is_dir():
            return 0
        limit = time.time() - older_than_seconds
        cleared = 0
        for entry in os.scandir(folder):
            if _TEMPORARY.fullmatch(entry.name) and entry.stat().st_mtime < limit:
                Path(entry.path).unlink(missing_ok=True)
                cleared += 1
        return cleared

    def delete(self, key: str) -> None:
        """Delete an object; there being none is as good."""
        if self._folder is not None:
            self._locally(key, "delete", _drop_checksum)
        try:
            self._call(key, "delete", lambda store: store.delete(key))
        except ObjectNotFoundError:
            return

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, those that come first before the others, in few requests."""
        if self._folder is not None:
            for key in keys:
                self.delete(key)
            return
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            try:
                self._call(some[0], "delete", lambda store, some=some: store.delete(some))  # type: ignore[misc]
            except ObjectNotFoundError:
                for key in some:
                    self.delete(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Every object below a folder `prefix`, at any depth, in no particular order.

        With `start_after` only keys that sort after it.
        """
        try:
            pages = iter(
                self._call(prefix, "list", lambda store: _pages(store, prefix, start_after))
            )
            while page := self._call(prefix, "list", lambda _: next(pages, None)):
                yield from map(_info, page)
        except ObjectNotFoundError:
            # A folder that does not exist has no objects; a missing bucket is another error.
            return

    # --- the store behind -----------------------------------------------------------------

    def _call(self, key: str, verb: str, act: Callable[[ObjectStore], T]) -> T:
        from obstore.exceptions import BaseError

        if self._store is None:
            self._store = self._open()
        if self._store is None:
            raise self._not_found(key, verb, f"the folder {self._folder} does not exist")
        try:
            return act(self._store)
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise self._translate(error, key, verb) from None
            raise self._not_found(key, verb, "") from None
        except (BaseError, OSError, ValueError) as error:
            raise self._translate(error, key, verb) from None

    def _not_found(self, key: str, verb: str, why: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(
            f"Cannot {verb} {self._shown(key)}: it does not exist",
            why=why,
            fix="Check the location, and that nobody has deleted the file",
        )

    def _translate(self, error: Exception, key: str, verb: str) -> StorageError:
        from obstore.exceptions import (
            InvalidPathError,
            NotSupportedError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        text = str(error)
        why = self._redact(text.strip().splitlines()[0] if text.strip() else type(error).__name__)
        what = f"Cannot {verb} {self._shown(key)}"
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError, PermissionError)) or (
            _DENIED.search(text)
        ):
            return StoragePermissionError(
                what,
                why=why,
                fix="Check the credentials in storage_options or the environment, and what they "
                "may do there",
            )
        if _NO_BUCKET.search(text):
            return StorageError(
                what, why=why, fix="Create the bucket, or correct its name in the location"
            )
        permanent = (InvalidPathError, NotSupportedError, OSError, ValueError)
        if isinstance(error, permanent) or _CLIENT_FAULT.search(text):
            return StorageError(what, why=why, fix="Check the location and storage_options")
        return StorageUnavailableError(
            what, why=why, fix="Check that the store can be reached from here, and try again"
        )

    def _shown(self, key: str) -> str:
        return f"{self.location}/{key}" if key else self.location

    def _redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        # Signatures and tokens travel in the query of a URL.
        return _URL_QUERY.sub("?…", text)

    def _locally(self, key: str, verb: str, act: Callable[[Path], T]) -> T:
        assert self._folder is not None  # noqa: S101 - only called where there is one
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise StorageError(
                f"Cannot {verb} {self._shown(key)}", why="A key has no empty parts, '.' or '..'"
            )
        try:
            return act(self._folder / key)
        except OSError as error:
            raise self._translate(error, key, verb) from None


# --- local files --------------------------------------------------------------------------


def _create_file(path: Path, data: bytes, *, settle: bool) -> bool:
    """Create a file with its content, at once; False where there is one."""
    try:
        made = _write_unnamed(path, data)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = _write_unnamed(path, data)
    if made and settle:
        _sync_folder(path.parent)
    return made


def _write_unnamed(path: Path, data: bytes) -> bool:
    # A file without a name is gone when its writer dies; the name comes when all is on the disk.
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        return _write_and_link(path, data)
    try:
        handle = os.open(path.parent, flag | os.O_WRONLY, 0o666)
    except (IsADirectoryError, OSError) as error:
        if isinstance(error, FileNotFoundError) or not path.parent.is_dir():
            raise
        return _write_and_link(path, data)  # not every file system can do it
    try:
        _write_all(handle, data)
        # With a folder's handle Python follows the link that /proc has instead of naming it.
        os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle, follow_symlinks=True)
    except FileExistsError:
        return False
    finally:
        os.close(handle)
    return True


def _write_and_link(path: Path, data: bytes) -> bool:
    temporary = _write_temporary(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _replace_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _write_temporary(path, data)
    try:
        _drop_checksum(path)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _drop_checksum(path: Path) -> None:
    """Hadoop keeps one beside each local file, and refuses a file that it does not fit."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _update_file(path: Path, change: Callable[[bytes | None], bytes | None]) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        changed = change(path.read_bytes() if path.exists() else None)
        if changed is None:
            return False
        _replace_file(path, changed)
        return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which nobody but `update` takes."""
    try:
        import fcntl
    except ImportError:  # Windows: the last one wins
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_temporary(path: Path, data: bytes) -> Path:
    temporary = _temporary_name(path)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _write_all(handle, data)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    return temporary


def _write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
    os.fsync(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- obstore ------------------------------------------------------------------------------


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    modified = meta["last_modified"]
    return ObjectInfo(meta["path"], meta["size"], round(modified.timestamp() * 1000))


def _update_object(
    store: ObjectStore, key: str, change: Callable[[bytes | None], bytes | None]
) -> bool:
    from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

    conditional = True
    while True:
        mode: Any
        try:
            found = store.get(key)
            current: bytes | None = bytes(found.bytes())
            marks = {name: found.meta[name] for name in ("e_tag", "version")}
            mode = {name: mark for name, mark in marks.items() if mark is not None}
            conditional = conditional and bool(mode)
        except FileNotFoundError:
            current, mode = None, "create"
        changed = change(current)
        if changed is None:
            return False
        try:
            store.put(key, changed, mode=mode if conditional else "overwrite")
        except (AlreadyExistsError, PreconditionError, FileExistsError):
            # Somebody was faster, and progress was made: look again.
            continue
        except (NotSupportedError, NotImplementedError):
            conditional = False
            continue
        return True


def _pages(store: ObjectStore, prefix: str, start_after: str | None) -> Any:
    return store.list(prefix or None, offset=start_after, chunk_size=1000)


def check_options(options: object) -> dict[str, str]:
    """Storage options as text; ConfigurationError where they are no mapping of names."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ConfigurationError(
            "storage_options is not a mapping of names to values",
            fix="Pass e.g. {'region': 'eu-central-1', 'endpoint_url': 'http://localhost:9000'}",
        )
    return {
        key: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def open_object_store(
    location: str, options: Mapping[str, str], *, retry: Mapping[str, Any] = _RETRY
) -> ObjectStore:
    """The obstore behind a location of an object store, for libraries that read through one."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for key, value in options.items():
        bare = key.lower()
        for owner in _OWNERS:
            bare = bare.removeprefix(owner)
        if bare in _CLIENT_OPTIONS:
            client[bare] = value.lower() == "true" if bare in _FLAGS else value
        else:
            config[key.lower()] = value
    made: Any = from_url
    try:
        store: ObjectStore = made(
            location, config=config, client_options=client, retry_config=retry
        )
    except (BaseError, ValueError, TypeError) as error:
        # The message may hold a value; its first words name the key.
        known = ", ".join(sorted(options)) or "none"
        wrong = next((key for key in config if f"'{key}'" in str(error)), None)
        raise ConfigurationError(
            f"Cannot open the object store of {location}",
            why=f"The option {wrong!r} is not known"
            if wrong
            else f"Its options do not fit together (given: {known})",
            fix="See https://developmentseed.org/obstore for the options of each store",
        ) from None
    return store


def _local(folder: Path) -> ObjectStore | None:
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore

    if not folder.is_dir():
        return None
    try:
        return LocalStore(folder)
    except BaseError:
        # Somebody deleted it just now.
        return None


_memories: dict[str, ObjectStore] = {}
_memories_lock = threading.Lock()


def _memory(location: str) -> ObjectStore:
    from obstore.store import MemoryStore

    with _memories_lock:
        return _memories.setdefault(location.rstrip("/"), MemoryStore())
