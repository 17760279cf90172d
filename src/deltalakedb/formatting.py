"""Formats times, sizes and durations for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, overload

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def format_time(milliseconds: int) -> str:
    """Format a time in ISO 8601, in UTC; times beyond the year 9999 are milliseconds."""
    try:
        text = (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{milliseconds} ms"
    return text.replace("+00:00", "Z")


@overload
def moment(milliseconds: int) -> str: ...
@overload
def moment(milliseconds: None) -> None: ...
def moment(milliseconds: int | None) -> str | None:
    """Format a time that may be missing."""
    return None if milliseconds is None else format_time(milliseconds)


def size(count: int) -> str:
    """Format a number of bytes."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError


def duration(milliseconds: int) -> str:
    """Format a time span."""
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
