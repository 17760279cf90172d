"""Log records on standard error, as lines of text or JSON, while a command runs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer

from deltalakedb.cli.notices import only
from deltalakedb.cli.output import as_commands, moment
from deltalakedb.telemetry import logger


class LogFormat(StrEnum):
    """How log records are written."""

    TEXT = "text"
    JSON = "json"


Format = Annotated[LogFormat, typer.Option("--log-format", help="How to log to standard error.")]
Level = Annotated[
    str,
    typer.Option(
        "--log-level", metavar="LEVEL", help="How much to log: debug, info, warning or error."
    ),
]


class _Lines(logging.Formatter):
    """One line of text for each record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name
        fields = with_commands(getattr(record, "fields", {}))
        if fields:
            name = getattr(record, "event", "")
            record.message = " ".join([name, *(f"{key}={value}" for key, value in fields.items())])
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    """One JSON object a line, with the fields of structured events."""

    def format(self, record: logging.LogRecord) -> str:
        record_fields = {
            "time": moment(round(record.created * 1000)),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", None) or record.getMessage(),
            **with_commands(getattr(record, "fields", {})),
        }
        return json.dumps(record_fields, ensure_ascii=False, default=str)


@contextmanager
def logs_to_stderr(form: LogFormat, level: str) -> Iterator[None]:
    """Show our log while the command runs; the logger is then as it was."""
    numbers = {"debug": 10, "info": 20, "warning": 30, "error": 40}
    if level.lower() not in numbers:
        raise typer.BadParameter(
            f"{level!r} is none of {', '.join(numbers)}", param_hint="--log-level"
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if form is LogFormat.JSON else _Lines("%(asctime)s %(levelname)s %(message)s")
    )
    before = logger.level
    logger.setLevel(numbers[level.lower()])
    try:
        with only(handler):
            yield
    finally:
        logger.setLevel(before)


def with_commands(fields: dict[str, Any]) -> dict[str, Any]:
    """Render the fixes of stored errors as commands."""
    return {
        name: as_commands(value) if name.endswith("error") and isinstance(value, str) else value
        for name, value in fields.items()
    }
