"""Durations as table properties write them: `interval 30 days`, `interval 1 week 2 hours`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from deltalakedb.errors import ConfigurationError

_MICROSECONDS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART: Final = re.compile(r"([+-]?\d{1,15})(?:\.(\d{1,6}))?\s+([a-z]+)\s*", re.ASCII)
_FIX: Final = "Write for example 'interval 30 days' or 'interval 1 week 12 hours'"


def parse_interval(text: str) -> timedelta:
    """Parse a fixed length of time; raises `ConfigurationError` for months, years and nonsense.

    The word `interval` and letter case do not matter. Only seconds may have a fraction.
    """
    body = text.strip().lower()
    body = body.removeprefix("interval").strip()
    total = 0
    position = 0
    while position < len(body):
        match = _PART.match(body, position)
        if match is None:
            raise _bad(text, "it is not a number and a unit, repeated")
        total += _microseconds(text, match[1], match[2], match[3])
        position = match.end()
    if position == 0:
        raise _bad(text, "it is empty")
    try:
        return timedelta(microseconds=total)
    except OverflowError as error:
        raise _bad(text, "it is longer than any calendar") from error


def format_interval(duration: timedelta) -> str:
    """Write a duration so that `parse_interval` gives it back; whole units where possible."""
    total = duration // timedelta(microseconds=1)
    parts = []
    rest = abs(total)
    for unit in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest = divmod(rest, _MICROSECONDS[unit])
        if count:
            sign = "-" if total < 0 else ""
            parts.append(f"{sign}{count} {unit}{'s' if count != 1 else ''}")
    return f"interval {' '.join(parts) or '0 seconds'}"


def _microseconds(text: str, whole: str, fraction: str | None, unit: str) -> int:
    singular = unit.removesuffix("s")
    if singular in ("month", "year", "quarter"):
        raise _bad(text, f"a {singular} has no fixed length")
    size = _MICROSECONDS.get(singular)
    if size is None:
        raise _bad(text, f"{unit!r} is not a unit of time")
    amount = int(whole) * size
    if fraction is None:
        return amount
    if singular != "second":
        raise _bad(text, "only seconds may have a fraction")
    part = int(fraction.ljust(6, "0"))
    return amount - part if whole.startswith("-") else amount + part


def _bad(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"Cannot read {text!r} as an interval", why=why, fix=_FIX)
