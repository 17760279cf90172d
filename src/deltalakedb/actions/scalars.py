"""Scalar values: exact decimals, single-precision floats, dates and timestamps of the log."""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from typing import Final

from deltalakedb.actions.datatypes import DecimalType


def fit_decimal(value: Decimal, data_type: DecimalType) -> Decimal:
    """The same number at the scale of its type; raises ValueError where it does not fit exactly.

    Zero loses its sign: a negative zero is no value of its own in SQL.
    """
    if not value.is_finite():
        raise ValueError("it is not finite")
    # Far outside any type; quantize would need a context as large as the exponent.
    if value and not -100 < value.adjusted() < 100:
        raise ValueError(f"it does not fit {data_type}")
    with localcontext(prec=400):
        fitted = value.quantize(Decimal(1).scaleb(-data_type.scale))
        if fitted != value:
            raise ValueError(f"it has more than {data_type.scale} digits after the point")
        if not fitted:
            return abs(fitted)
    if fitted.adjusted() >= data_type.precision - data_type.scale:
        raise ValueError(f"it has more digits than {data_type} holds")
    return fitted


def to_float32(number: float) -> float:
    """The nearest single-precision number; raises OverflowError beyond their range."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def shortest_float32(number: float) -> float:
    """The double whose `repr` is the shortest text that reads back as this float32.

    `to_float32(0.1)` is 0.10000000149011612 in double precision; its shortest text is `0.1`.
    """
    single = to_float32(number)
    if not math.isfinite(single):
        return single
    for digits in range(6, 9):
        candidate = float(f"{single:.{digits}g}")
        try:
            if to_float32(candidate) == single:
                return candidate
        except OverflowError:
            # Rounding up the largest float32 leaves its range; more digits stay inside.
            continue
    return float(f"{single:.9g}")


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
