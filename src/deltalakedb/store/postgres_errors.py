"""Postgres: what went wrong, by SQLSTATE, in our classes and words; for both of its drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalakedb.errors import (
    REPORT,
    CatalogBusyError,
    CatalogConnectionLostError,
    CatalogConstraintError,
    CatalogError,
    CatalogPermissionError,
    CatalogUnreachableError,
    DeltaLakeDbError,
    TransactionAbortedError,
)
from deltalakedb.store.roles import MAKE_ROLES, MIRROR, READER, WRITER

if TYPE_CHECKING:
    from deltalakedb.store.roles import Rights
    from deltalakedb.store.url import CatalogUrl

_ANY_ROLE = (
    f"Grant it what it lacks: {READER} to read, {WRITER} to commit, {MIRROR} to publish. "
    f"`{MAKE_ROLES}` makes these roles"
)
_BUSY = frozenset({"55P03", "57014", "53300"})
_ABORTED = frozenset({"40001", "40P01"})
_GONE = frozenset({"57P01", "57P02", "57P03", "57P05"})


def unreachable(url: CatalogUrl, reason: str, *, refused_options: bool) -> DeltaLakeDbError:
    """A connection could not be made."""
    if refused_options:
        return CatalogUnreachableError(
            f"{url.display} has options that Postgres refuses",
            why=_shown(reason, url),
            fix="Options after '?' are libpq parameters, e.g. sslmode=require",
        )
    return CatalogUnreachableError(
        f"{url.display} cannot be reached",
        why=_shown(reason, url),
        fix="Check that the server runs and listens there, and the user, password, database "
        "and TLS options of the catalog URL",
    )


def is_forbidden(state: str) -> bool:
    """Whether the role lacks a right."""
    # 3F000: no schema of the search path may be used.
    return state in ("42501", "3F000")


def translate(
    url: CatalogUrl,
    state: str,
    reason: str,
    *,
    broken: bool,
    lost: type[CatalogConnectionLostError] = CatalogConnectionLostError,
    rights: Rights | None = None,
) -> DeltaLakeDbError:
    """A statement failed with `state`, or with none and the connection `broken`.

    `rights` are those of the role, where it `is_forbidden` and they could be asked for.
    """
    reason = _shown(reason, url)
    if state in _ABORTED:
        return TransactionAbortedError(
            f"{url.display} ended a transaction that met another one", why=reason, fix="Try again"
        )
    if state in _BUSY:
        return CatalogBusyError(
            f"{url.display} stayed locked by another transaction for {url.timeout:g} s"
            if state == "55P03"
            else f"{url.display} is too busy",
            why=reason,
            fix="Try again, or raise timeout=… in the catalog URL",
        )
    if state.startswith("23"):
        return CatalogConstraintError(f"{url.display} refused a row", why=reason)
    if state == "54000":
        return CatalogConstraintError(
            f"{url.display} cannot index a text that is so long",
            why=reason,
            fix="Shorten the path, name, appId or domain: about 2600 bytes are always accepted",
        )
    if is_forbidden(state):
        return CatalogPermissionError(
            f"The database role of {url.display} may not do this",
            why=reason,
            fix=_ANY_ROLE if rights is None else rights.advice(),
        )
    if broken or state in _GONE or state.startswith("08"):
        return lost(
            f"The connection to {url.display} was lost",
            why=reason,
            fix="Try again when the server is back",
        )
    return CatalogError(
        f"{url.display} failed", why=f"{reason} (SQLSTATE {state or 'none'})", fix=REPORT
    )


def _shown(reason: str, url: CatalogUrl) -> str:
    return url.redact(" ".join(reason.split()))
