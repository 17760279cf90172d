"""The objects below one location."""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from deltalakedb.errors import (
    ConfigurationError,
    InvalidArgumentError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from deltalakedb.forking import Process, ProcessLock
from deltalakedb.storage import local_files
from deltalakedb.storage.failures import is_conflict, is_missing_bucket, message_of, translate
from deltalakedb.storage.locations import local_path, normalise_location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

_SECRET: Final = re.compile("secret|token|key|password|sas|credential", re.IGNORECASE)
_URL_QUERY: Final = re.compile(r"\?[^\s\"')>]+")
_DELETED_AT_ONCE: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Attempts to update an object that others change at the same time.
_UPDATES: Final = 20
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
_RETRY: Final = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
# A commit does not wait for a store with problems: a worker will retry.
_BRIEF_RETRY: Final = {"max_retries": 1, "retry_timeout": timedelta(seconds=5)}
_BRIEF: Final = {"connect_timeout": "3s", "timeout": "10s"}


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object of a listing; the key is relative to the location."""

    key: str
    size: int
    modified_ms: int


def open_storage(
    location: str, storage_options: Mapping[str, str] | None = None, *, patient: bool = True
) -> Storage:
    """Open the object store at `location`; no request is sent yet.

    One that is not `patient` gives up after seconds instead of a minute. Options are those of the
    store (`aws_access_key_id`, `region`, `endpoint_url`, …) and of its HTTP client (`allow_http`,
    `timeout`, …); missing ones come from the environment. `memory:///name` is a store in this
    process, for tests.
    """
    options = check_options(storage_options)
    if location.startswith("memory:"):
        return Storage(location, open_memory_store(location), options)
    location = normalise_location(location)
    folder = local_path(location)
    if folder is not None:
        return Storage(location, None, options, folder=folder)
    store = (open_object_store if patient else open_brief_store)(location, options)
    return Storage(location, store, options)


def delete_leftovers(
    location: str, keys: Iterable[str], storage_options: Mapping[str, str] | None = None
) -> None:
    """Delete files that no commit names; a file that cannot be deleted is left to vacuum."""
    storage = open_storage(location, storage_options)
    for key in keys:
        try:
            storage.delete(key)
        except StorageError:
            continue


class Storage:
    """The objects below one location. Keys are relative to it and separated by `/`."""

    def __init__(
        self,
        location: str,
        store: ObjectStore | None,
        options: Mapping[str, str] | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        self.location = location
        self._store = store
        self._folder = folder
        self._conditional = True
        self._secrets = tuple(
            value for key, value in (options or {}).items() if value and _SECRET.search(key)
        )

    def __repr__(self) -> str:
        return f"Storage({self.location!r})"

    @property
    def is_local(self) -> bool:
        """Whether objects are local files."""
        return self._folder is not None

    @property
    def is_conditional(self) -> bool:
        """Whether `put_if_absent` is atomic; False once the store has refused that."""
        return self._conditional

    def get(self, key: str) -> bytes:
        """Read a whole object; raises ObjectNotFoundError if it is missing."""
        if self._folder is not None:
            # With many small files, the runtime of obstore would cost more than the disk.
            return self._locally(key, "read", local_files.read_file)
        return self._call(key, "read", lambda store: bytes(store.get(key).bytes()))

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Read a part of an object; shorter if the object ends before it."""
        if self._folder is not None:
            return self._locally(
                key, "read", lambda path: local_files.read_range(path, start, length)
            )
        return self._call(
            key, "read", lambda store: bytes(store.get_range(key, start=start, length=length))
        )

    def head(self, key: str) -> ObjectInfo | None:
        """Return the size and time of an object, or None if it is missing."""
        if self._folder is not None:
            status = self._locally(key, "look at", local_files.look_at)
            return None if status is None else ObjectInfo(key, *status)
        try:
            return self._call(key, "look at", lambda store: _info(store.head(key)))
        except ObjectNotFoundError:
            return None

    def now_ms(self, folder: str) -> int:
        """Return the time of the store: the modification time of an object written now.

        The object has the name of a temporary file and is deleted again.
        """
        key = f"{folder}/.clock.{uuid.uuid4().hex}.tmp".lstrip("/")
        self.put(key, b"")
        try:
            written = self.head(key)
        finally:
            self.delete(key)
        if written is None:
            raise StorageUnavailableError(
                f"{self._url(key)} was written, and is not there",
                why="The store does not list it yet, or another process deleted it",
                fix="Try again",
            )
        return written.modified_ms

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite an object; readers see the old or the new one."""
        if self._folder is not None:
            self._locally(key, "write", lambda path: local_files.replace_file(path, data))
        else:
            self._call(key, "write", lambda store: store.put(key, data, mode="overwrite"))

    def put_if_absent(
        self,
        key: str,
        data: bytes,
        *,
        settle: bool = True,
        staged: local_files.NewFile | None = None,
    ) -> bool:
        """Create an object; False, with nothing written, if it exists.

        Without `settle` its name can be lost in a power failure until `settle(…)` is called.
        `staged` is the result of `stage(…)` with the same key and data.
        """
        if self._folder is not None:
            return self._locally(
                key,
                "create",
                lambda path: local_files.create_file(path, data, settle=settle, staged=staged),
            )
        return self._call(key, "create", lambda store: self._create(store, key, data))

    def stage(self, key: str, data: bytes) -> local_files.NewFile | None:
        """Write the content of an object to the disk before it gets its name; None elsewhere.

        Several at once cost a disk hardly more than one. An unused result must be closed.
        """
        if self._folder is None:
            return None
        return self._locally(key, "create", lambda path: local_files.stage_file(path, data))

    def settle(self, prefix: str) -> None:
        """Sync the names of the objects of a folder to the disk."""
        if self._folder is not None:
            self._locally(prefix, "write", local_files.sync_path)

    def _create(self, store: ObjectStore, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        if self._conditional:
            try:
                store.put(key, data, mode="create")
            except (AlreadyExistsError, PreconditionError, FileExistsError) as error:
                if is_conflict(error) and self.head(key) is None:
                    raise StorageUnavailableError(
                        f"{self._url(key)} was not created",
                        why="The store was busy with another request to create it",
                        fix="It will be tried again",
                    ) from None
                return False
            except (NotSupportedError, NotImplementedError):
                self._conditional = False
            else:
                return True
        if self.head(key) is not None:
            return False
        store.put(key, data, mode="overwrite")
        # Of two concurrent writers the later one has overwritten the other: read which one won.
        try:
            return bytes(store.get(key).bytes()) == data
        except FileNotFoundError:
            raise StorageUnavailableError(
                f"{self._url(key)} was written, and is not there",
                why="The store does not list it yet, or another process deleted it",
                fix="It will be looked at again",
            ) from None

    @contextmanager
    def writing(self, key: str) -> Iterator[IO[bytes]]:
        """Open a file to write an object of any size; an existing object is replaced.

        The complete object appears when the block ends; after an exception there is none. Memory is
        bounded: data for an object store goes to a local disk first and is sent in parts.
        """
        try:
            if self._folder is not None:
                path = self._locally(key, "write", lambda path: path)
                with local_files.writing(path) as file:
                    yield file
                return
            with TemporaryFile() as file:
                yield file
                file.seek(0)
                self._call(key, "write", lambda store: store.put(key, file, mode="overwrite"))
        except OSError as error:
            raise self._translate(error, key, "write") from None

    def update(self, key: str, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace a small object by the result of `change`; False if that is None.

        On local disks and stores with conditional writes no concurrent update is lost; elsewhere
        the last one wins. `change` can be called again.
        """
        if self._folder is not None:
            return self._locally(key, "write", lambda path: local_files.update_file(path, change))
        return self._call(key, "write", lambda store: _update_object(store, key, change))

    def clear_leftovers(self, prefix: str, *, older_than_seconds: float) -> int:
        """Delete temporary files of killed processes in a folder; return their number.

        Object stores have none: an incomplete object does not exist.
        """
        if self._folder is None:
            return 0
        return self._locally(
            prefix,
            "tidy",
            lambda folder: local_files.clear_leftovers(
                folder, older_than_seconds=older_than_seconds
            ),
        )

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""
        if self._folder is not None:
            self._locally(key, "delete", local_files.delete_file)
            return
        try:
            self._call(key, "delete", lambda store: store.delete(key))
        except ObjectNotFoundError:
            return

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects in order, in few requests."""
        if self._folder is not None:
            for key in keys:
                self.delete(key)
            return
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            chunk = keys[start : start + _DELETED_AT_ONCE]
            try:
                self._call(chunk[0], "delete", lambda store, chunk=chunk: store.delete(chunk))  # type: ignore[misc]
            except ObjectNotFoundError:
                for key in chunk:
                    self.delete(key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield every object below a folder `prefix`, at any depth, in no particular order.

        With `start_after` only keys that sort after it.
        """
        if self._folder is not None:
            yield from self._list_locally(self._folder, prefix.strip("/"), start_after or "")
            return
        try:
            pages = iter(
                self._call(prefix, "list", lambda store: _pages(store, prefix, start_after))
            )
            while page := self._call(prefix, "list", lambda _: next(pages, None)):
                yield from map(_info, page)
        except ObjectNotFoundError:
            # A folder that does not exist has no objects; a missing bucket is another error.
            return

    def _list_locally(self, folder: Path, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        try:
            for name, status in local_files.list_files(folder / prefix):
                key = f"{prefix}/{name}" if prefix else name
                if key > start_after:
                    yield _local_info(key, status)
        except OSError as error:
            raise self._translate(error, prefix, "list") from None

    # --- the store behind -----------------------------------------------------------------

    def _call(self, key: str, verb: str, act: Callable[[ObjectStore], T]) -> T:
        from obstore.exceptions import BaseError

        check_process(self.location)
        assert self._store is not None  # noqa: S101 - local files never come here
        try:
            return act(self._store)
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise self._translate(error, key, verb) from None
            raise self._not_found(key, verb, "") from None
        except (BaseError, OSError, ValueError) as error:
            raise self._translate(error, key, verb) from None

    def _not_found(self, key: str, verb: str, why: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(
            f"Cannot {verb} {self._url(key)}: it does not exist",
            why=why,
            fix="Check the location, and that the file was not deleted",
        )

    def _translate(self, error: Exception, key: str, verb: str) -> StorageError:
        why = self._redact(message_of(error))
        return translate(error, f"Cannot {verb} {self._url(key)}", why)

    def _url(self, key: str) -> str:
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
                f"Cannot {verb} {self._url(key)}", why="A key has no empty parts, '.' or '..'"
            )
        try:
            return act(self._folder / key)
        except FileNotFoundError as error:
            if verb != "read":
                raise self._translate(error, key, verb) from None
            why = "" if self._folder.is_dir() else f"the folder {self._folder} does not exist"
            raise self._not_found(key, verb, why) from None
        except OSError as error:
            raise self._translate(error, key, verb) from None


# --- clients of object stores -------------------------------------------------------------

_started_in: Process | None = None


def check_process(location: str) -> None:
    """Raise ForkedProcessError where no request to an object store could ever be answered.

    All requests of a process share one runtime, whose threads begin with the first one. A forked
    child has the runtime without the threads: it would wait for ever.
    """
    global _started_in  # noqa: PLW0603 - there is one runtime for each process
    if location.startswith("file:"):
        return
    if _started_in is None:
        _started_in = Process()
    _started_in.check(
        f"The object store of {location}",
        "Use it first in the child, not in its parent; or start processes with "
        "multiprocessing.get_context('spawn') or 'forkserver'",
    )


def check_options(options: object) -> dict[str, str]:
    """Storage options as text; ConfigurationError where they are no mapping of names."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise InvalidArgumentError(
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
    """Open the obstore client of a location."""
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
    factory: Any = from_url
    try:
        store: ObjectStore = factory(
            location, config=config, client_options=client, retry_config=retry
        )
    except (BaseError, ValueError, TypeError) as error:
        # The message may hold a value; its first words name the key.
        names = ", ".join(sorted(options)) or "none"
        wrong = next((key for key in config if f"'{key}'" in str(error)), None)
        lost = next((key for key in options if _names_no_file(key, options[key])), None)
        why = f"Its options do not fit together (options: {names})"
        if wrong:
            why = f"The option {wrong!r} is not known"
        elif lost:
            why = f"There is no file {options[lost]!r}, which the option {lost!r} names"
        raise ConfigurationError(
            f"Cannot open the object store of {location}",
            why=why,
            fix="See https://developmentseed.org/obstore for the options of each store",
        ) from None
    return store


def _names_no_file(key: str, value: str) -> bool:
    """Whether an option is the path of a key file that is not there."""
    bare = key.lower().removeprefix("google_")
    paths = ("service_account", "service_account_path", "application_credentials")
    return bare in paths and not value.lstrip().startswith("{") and not Path(value).is_file()


def open_brief_store(location: str, options: Mapping[str, str]) -> ObjectStore:
    """Like `open_object_store`, with a timeout of seconds instead of a minute."""
    return open_object_store(location, {**_BRIEF, **options}, retry=_BRIEF_RETRY)


_memories: dict[str, ObjectStore] = {}
_memories_lock = ProcessLock()


def open_memory_store(location: str) -> ObjectStore:
    """Return the in-memory store of a name in this process."""
    from obstore.store import MemoryStore

    with _memories_lock.lock:
        return _memories.setdefault(location.rstrip("/"), MemoryStore())


# --- objects in obstore -------------------------------------------------------------------


def _local_info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    # Whole milliseconds that have passed, as Delta's other readers count them.
    modified = (meta["last_modified"] - _EPOCH) // timedelta(milliseconds=1)
    return ObjectInfo(meta["path"], meta["size"], modified)


def _update_object(
    store: ObjectStore, key: str, change: Callable[[bytes | None], bytes | None]
) -> bool:
    from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

    conditional = True
    for turn in range(_UPDATES):
        mode: Any
        try:
            result = store.get(key)
            current: bytes | None = bytes(result.bytes())
            marks = {name: result.meta[name] for name in ("e_tag", "version")}
            mode = {name: mark for name, mark in marks.items() if mark is not None}
            conditional = conditional and bool(mode)
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise
            current, mode = None, "create"
        changed = change(current)
        if changed is None:
            return False
        try:
            store.put(key, changed, mode=mode if conditional else "overwrite")
        except (AlreadyExistsError, PreconditionError, FileExistsError):
            # Another writer was faster: read again.
            time.sleep(min(1.0, 0.01 * turn))
            continue
        except (NotSupportedError, NotImplementedError):
            conditional = False
            continue
        return True
    raise TimeoutError(errno.ETIMEDOUT, f"it was changed by others {_UPDATES} times in a row")


def _pages(store: ObjectStore, prefix: str, start_after: str | None) -> Any:
    return store.list(prefix or None, offset=start_after, chunk_size=1000)
