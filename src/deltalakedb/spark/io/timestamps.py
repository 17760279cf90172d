"""Timestamps and the time zone of a session: text without a zone is in that zone.

Outside of Spark such text is in UTC (`Table.snapshot`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import SparkSession

from deltalakedb.snapshot.resolve import EPOCH, to_milliseconds


def moment(timestamp: datetime | str, zone: tzinfo | None) -> datetime:
    """The instant of a timestamp, in UTC.

    Text without a zone is in `zone`, by default in that of the machine, as in Spark. A datetime
    without a zone is in that of the machine, as everywhere in PySpark.
    """
    if isinstance(timestamp, datetime):
        return timestamp.astimezone(UTC)
    naive = _without_zone(timestamp)
    if naive is None:
        # It has a zone, or is no timestamp.
        return EPOCH + timedelta(milliseconds=to_milliseconds(timestamp))
    return (naive if zone is None else naive.replace(tzinfo=zone)).astimezone(UTC)


def _without_zone(text: str) -> datetime | None:
    try:
        read = datetime.fromisoformat(text.strip())
    except (ValueError, AttributeError):
        return None
    return read if read.tzinfo is None else None


def session_zone(spark: SparkSession) -> tzinfo | None:
    """The time zone of a session; None for one that Python does not know."""
    return zone_of(str(spark.conf.get("spark.sql.session.timeZone")))


def zone_of(name: str) -> tzinfo | None:
    """A zone by Spark's name, which may be an offset; None for one that is unknown."""
    offset = re.fullmatch(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        size = timedelta(hours=int(hours), minutes=int(minutes or 0))
        return timezone(size if sign == "+" else -size)
    try:
        return ZoneInfo("UTC" if name == "Z" else name)
    except (ZoneInfoNotFoundError, ValueError):
        return None
