"""Warnings of the library for the command line, on standard error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from deltalakedb.cli.output import as_commands, console, printable
from deltalakedb.errors import CatalogNotFoundError
from deltalakedb.telemetry import logger


class _Notices(logging.Handler):
    """Prints the message of a warning, without its event name and fields."""

    def emit(self, record: logging.LogRecord) -> None:
        print_warning(notice_of(record))


class _Collector(logging.Handler):
    """Collects messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(notice_of(record))


def notice_of(record: logging.LogRecord) -> str:
    """What a record is about; of a structured one its error."""
    return str(getattr(record, "fields", {}).get("error") or record.getMessage())


def print_warning(text: str) -> None:
    """A warning, in one paragraph."""
    console(stderr=True).print(
        printable(f"Warning: {' '.join(as_commands(text).split())}"), markup=False, style="yellow"
    )


@contextmanager
def no_catalog_is_empty() -> Iterator[None]:
    """Inside, a catalog that is not there has nothing to list: a warning, and no error."""
    try:
        yield
    except CatalogNotFoundError as error:
        print_warning(str(error))


@contextmanager
def notices() -> Iterator[None]:
    """Inside, warnings are printed as they come; the logger is then as it was."""
    with only(_Notices(logging.WARNING)):
        yield


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Inside, warnings are collected instead, for a command that reports most of them itself."""
    collector = _Collector()
    with only(collector):
        yield collector.texts


@contextmanager
def only(handler: logging.Handler) -> Iterator[None]:
    """Inside, our log goes to one handler; the logger is then as it was."""
    before = logger.handlers[:]
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = before
