"""Times as users of Spark give them: text without a zone is in that of the session.

Outside of Spark such text is in UTC (`Table.snapshot`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from deltalakedb.snapshot.resolve import EPOCH, to_milliseconds


def moment(given: datetime | str, zone: tzinfo | None) -> datetime:
    """The instant that is meant, in UTC.

    Text without a zone is in `zone`. Without one it is in the zone of the machine, which is what
    Spark takes where no other is set; so is a datetime without a zone, as everywhere in PySpark.
    """
    if isinstance(given, datetime):
        return given.astimezone(UTC)
    naive = _without_zone(given)
    if naive is None:
        # It has a zone, or is no time at all.
        return EPOCH + timedelta(milliseconds=to_milliseconds(given))
    return (naive if zone is None else naive.replace(tzinfo=zone)).astimezone(UTC)


def _without_zone(text: str) -> datetime | None:
    try:
        read = datetime.fromisoformat(text.strip())
    except (ValueError, AttributeError):
        return None
    return read if read.tzinfo is None else None
