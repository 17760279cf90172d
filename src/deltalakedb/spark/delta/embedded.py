"""The service of a lake in this process, for the Spark driver that runs beside it.

It listens on loopback only, with a new token, and ends with the lake.
"""

from __future__ import annotations

import secrets
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from deltalakedb.arguments import require_text
from deltalakedb.errors import ConfigurationError, InvalidArgumentError
from deltalakedb.extensions import extension
from deltalakedb.forking import ProcessLock

if TYPE_CHECKING:
    from deltalakedb.lake import Lake


@dataclass(frozen=True, slots=True)
class Service:
    """The address of a service, and a token for it."""

    uri: str
    token: str = field(repr=False)


_services: Final[weakref.WeakKeyDictionary[Lake, Service]] = weakref.WeakKeyDictionary()
_lock: Final = ProcessLock()


def embedded_service(lake: Lake) -> Service:
    """The service of a lake in this process; the first call starts it."""
    with _lock.lock:
        service = _services.get(lake)
        if service is None:
            token = secrets.token_urlsafe(32)
            pages: Any = extension("service")
            page = lake.until_closed(pages.OperationsPage(lake, token=token))
            service = _services[lake] = Service(page.address, token)
        return service


def running_service(uri: object, token: object) -> Service:
    """The service that arguments name, checked."""
    text = require_text("service", uri, fix="Pass the address of `deltalakedb serve`")
    try:
        parts = urlsplit(text)
        port_is_valid = parts.port is None or parts.port >= 0
    except ValueError:
        port_is_valid = False
        parts = urlsplit("")
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not (parts.hostname and plain and port_is_valid):
        # Not its value: it may have a password in it.
        raise InvalidArgumentError(
            "service is not the address of a service",
            fix="Pass https://host:port, and its token as token",
        )
    if token is None:
        raise ConfigurationError(
            "A service needs a token",
            fix="Pass token=...: one of those that `deltalakedb serve` was started with",
        )
    secret = require_text("token", token)
    if secret.startswith("@"):
        # In the settings of a session that would be the name of a file.
        raise InvalidArgumentError(
            "token begins with an @", fix="Pass the token itself, and not a file that has it"
        )
    return Service(text.rstrip("/"), secret)
