"""Durations as text of an interval, for tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_UNITS: Final = {
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": timedelta(microseconds=1),
}


def format_interval(duration: timedelta) -> str:
    """Write a duration so that `parse_interval` gives it back."""
    sign = "-" if duration < timedelta(0) else ""
    parts = []
    rest = abs(duration)
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{sign}{count} {unit}{'s' if count != 1 else ''}")
    return f"interval {' '.join(parts) or '0 seconds'}"
