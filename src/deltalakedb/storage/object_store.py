"""Opens object stores: checks their options and creates the clients."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.errors import ConfigurationError, InvalidArgumentError
from deltalakedb.forking import Process, ProcessLock

if TYPE_CHECKING:
    from obstore.store import ObjectStore

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
