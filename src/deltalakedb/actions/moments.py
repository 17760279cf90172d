"""Dates and times as the Delta log spells them; the forms that other engines wrote too."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Final

_DATE: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_MOMENT: Final = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(Z|z|UTC|[+-]\d{1,2}(?::?\d{2})?(?::\d{2})?)?",
    re.ASCII,
)


def parse_date(text: str) -> date:
    """Parse `yyyy-MM-dd`; raises ValueError."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        message = "it is not of the form yyyy-MM-dd"
        raise ValueError(message)
    return date(int(match[1]), int(match[2]), int(match[3]))


def parse_moment(text: str) -> tuple[datetime, tzinfo | None]:
    """Parse an ISO or a legacy timestamp to its wall-clock time and its zone, if it has one.

    Digits beyond microseconds are dropped. Raises ValueError.
    """
    match = _MOMENT.fullmatch(text.strip())
    if match is None:
        message = "it is not of the form yyyy-MM-ddTHH:mm:ss.SSSSSSZ or yyyy-MM-dd HH:mm:ss.SSSSSS"
        raise ValueError(message)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    parts = (int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
    # Wall-clock time on purpose; the zone goes with it.
    moment = datetime(*parts, micros)  # noqa: DTZ001
    return moment, None if zone is None else _zone(zone)


def to_utc(moment: datetime, zone: tzinfo) -> datetime:
    """The instant of a wall-clock time in a zone; raises ValueError outside years 1 to 9999."""
    try:
        return moment.replace(tzinfo=zone).astimezone(UTC)
    except OverflowError as error:
        message = "it lies outside the years 1 to 9999"
        raise ValueError(message) from error


def _zone(text: str) -> tzinfo:
    if text in ("Z", "z", "UTC"):
        return UTC
    digits = text[1:].replace(":", "")
    digits = digits.zfill(2) if len(digits) < 3 else digits.zfill(4) if len(digits) < 5 else digits
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4] or 0), int(digits[4:6] or 0)
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-offset if text[0] == "-" else offset)
