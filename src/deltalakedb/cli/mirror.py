"""`deltalakedb mirror …`: publish to `_delta_log`, and see how far it is."""

from __future__ import annotations

import json
import logging
import signal
import sys
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from deltalakedb.cli.options import AsJson, Catalog, StorageOptions, TableName, open_lake
from deltalakedb.cli.output import duration, moment, say, show_json, show_rows, size
from deltalakedb.cli.progress import countdown
from deltalakedb.mirror.endpoint import MetricsEndpoint
from deltalakedb.mirror.publish import Outcome, Published
from deltalakedb.telemetry import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalakedb.lake import Lake
    from deltalakedb.mirror.service import TableStatus
    from deltalakedb.mirror.worker import Worker

app = typer.Typer(
    help="The copy of the log in _delta_log: publish it, watch it, repair what holds it up.",
    no_args_is_help=True,
)

Concurrency = Annotated[int, typer.Option(min=1, help="How many tables at once.")]


class LogFormat(StrEnum):
    """How log records are written."""

    TEXT = "text"
    JSON = "json"


@app.command()
def run(
    catalog: Catalog,
    *,
    storage_option: StorageOptions = None,
    concurrency: Concurrency = 8,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve metrics for Prometheus at this port (0: any).")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address to serve them at.")] = "127.0.0.1",
    log_format: Annotated[LogFormat, typer.Option(help="Of the log on standard error.")] = (
        LogFormat.TEXT
    ),
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Publish every commit as it comes, until SIGINT or SIGTERM.

    Versions under way are finished then, and leases given back. Any number of workers may run on
    one catalog. On Postgres a commit wakes them up at once.
    """
    with ExitStack() as stack:
        stack.enter_context(_logs_to_stderr(log_format, log_level))
        lake = stack.enter_context(open_lake(catalog, storage_option, mirror="worker"))
        if metrics_port is not None:
            endpoint = stack.enter_context(
                MetricsEndpoint(lake.metrics, port=metrics_port, host=metrics_host)
            )
            logger.info("metrics at %s", endpoint.address)
        worker = lake.mirror.worker(concurrency=concurrency)
        _stop_on_signals(worker)
        worker.run()


@app.command()
def once(
    catalog: Catalog,
    *,
    storage_option: StorageOptions = None,
    concurrency: Concurrency = 8,
    as_json: AsJson = False,
) -> None:
    """Publish whatever waits now, every table once."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        with countdown("Publishing versions", lambda: _backlog(lake), quiet=as_json):
            done = lake.mirror.run_once(concurrency=concurrency)
        left = [status for status in lake.mirror.status() if status.backlog]
    _show_published(done, as_json=as_json)
    _exit(left)


@app.command()
def status(
    catalog: Catalog,
    *,
    storage_option: StorageOptions = None,
    behind: Annotated[
        bool, typer.Option("--behind", help="Only tables that are not fully published.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Backlog, lag and failures of every table."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        found = lake.mirror.status()
    shown = [one for one in found if one.state != "published"] if behind else found
    if as_json:
        show_json([one.to_dict() for one in shown])
    else:
        _show_status(shown)
    _exit([one for one in found if one.state in ("failing", "blocked", "drifted")])


@app.command()
def retry(
    catalog: Catalog,
    table: Annotated[TableName | None, typer.Argument(help="Every table, unless named.")] = None,
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Try tables again at once, also those that have drifted: they are compared anew."""
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        with countdown("Publishing versions", lambda: _backlog(lake), quiet=as_json):
            done = lake.mirror.retry(table)
        left = [one for one in lake.mirror.status() if one.backlog and table in (None, one.table)]
    _show_published(done, as_json=as_json)
    _exit(left)


def _backlog(lake: Lake) -> int:
    """How many versions are not published yet."""
    return sum(one.backlog for one in lake.mirror.status())


def _exit(wrong: list[TableStatus]) -> None:
    """Tell programs that something is not as it should be."""
    if wrong:
        raise typer.Exit(3)


def _show_published(done: list[Published], *, as_json: bool) -> None:
    if as_json:
        show_json(
            [
                {
                    "table": one.table,
                    "published": one.count,
                    "last_version": one.last_version,
                    "outcome": one.outcome.name.lower(),
                    "error": None if one.error is None else str(one.error),
                }
                for one in done
            ]
        )
        return
    show_rows(
        ("table", "published", "up to", "outcome"),
        [
            (
                one.table,
                one.count,
                one.last_version,
                one.outcome.value if one.error is None else f"{one.outcome.value}: {one.error}",
            )
            for one in done
        ],
        empty="Nothing was waiting to be published.",
    )
    if any(one.outcome is Outcome.DRIFTED for one in done):
        say("A drifted table holds a commit that this catalog has not written: see verify.")


def _show_status(found: list[TableStatus]) -> None:
    show_rows(
        ("table", "state", "head", "published", "backlog", "lag", "checkpoint", "what is wrong"),
        [
            (
                one.table,
                one.state,
                one.head,
                one.published_version,
                f"{one.backlog} ({size(one.backlog_bytes)})" if one.backlog else "",
                duration(one.lag_ms) if one.backlog else "",
                one.checkpoint_version,
                _wrong(one),
            )
            for one in found
        ],
        empty="There is nothing to tell.",
    )


def _wrong(one: TableStatus) -> str:
    parts = []
    if one.last_error:
        parts.append(one.last_error)
    if one.last_error and one.next_attempt_at:
        parts.append(f"(attempt {one.attempts}; next {moment(one.next_attempt_at)})")
    if one.checkpoint_error:
        parts.append(one.checkpoint_error)
    return " ".join(parts)


# --- running ------------------------------------------------------------------------------


def _stop_on_signals(worker: Worker) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: worker.stop())


class _JsonLines(logging.Formatter):
    """One JSON object a line, with the fields of structured events."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": moment(round(record.created * 1000)),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", None) or record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return json.dumps(told, ensure_ascii=False, default=str)


@contextmanager
def _logs_to_stderr(form: LogFormat, level: str) -> Iterator[None]:
    """Show our log while the command runs; the logger is then as it was."""
    numbers = {"debug": 10, "info": 20, "warning": 30, "error": 40}
    if level.lower() not in numbers:
        raise typer.BadParameter(
            f"{level!r} is none of {', '.join(numbers)}", param_hint="--log-level"
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines()
        if form is LogFormat.JSON
        else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(numbers[level.lower()])
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
