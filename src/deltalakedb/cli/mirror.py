"""`deltalakedb mirror …`: publish to `_delta_log`, and see how far it is."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from deltalakedb.cli.log_lines import (
    Format,
    Level,
    LogFormat,
    logs_to_stderr,
    with_commands,
)
from deltalakedb.cli.notices import collected_warnings, no_catalog_is_empty, print_warning
from deltalakedb.cli.options import AsJson, Catalog, StorageOptions, open_lake
from deltalakedb.cli.output import (
    as_commands,
    duration,
    moment,
    say,
    show_json,
    show_rows,
    size,
)
from deltalakedb.cli.progress import countdown
from deltalakedb.mirror.publish import Outcome, Published
from deltalakedb.store.mirror import drift_way_out
from deltalakedb.telemetry import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalakedb.lake import Lake
    from deltalakedb.mirror.mirror import TableStatus
    from deltalakedb.mirror.worker import Worker

app = typer.Typer(
    help="Publish commits to _delta_log, and see how far behind it is.",
    no_args_is_help=True,
)

Concurrency = Annotated[
    int, typer.Option(metavar="N", min=1, help="How many tables to publish at once.")
]


@app.command()
def run(
    catalog: Catalog,
    *,
    storage_option: StorageOptions = None,
    concurrency: Concurrency = 8,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve metrics for Prometheus on this port; 0 for any.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to serve them on.")
    ] = "127.0.0.1",
    log_format: Format = LogFormat.TEXT,
    log_level: Level = "info",
) -> None:
    """Publish every commit as it comes, until Ctrl-C (SIGINT) or SIGTERM.

    It then finishes what it has begun. Any number of workers may run on one catalog. On Postgres a
    commit wakes them up at once.
    """
    with ExitStack() as stack:
        stack.enter_context(logs_to_stderr(log_format, log_level))
        lake = stack.enter_context(open_lake(catalog, storage_option, mirror="worker"))
        if metrics_port is not None:
            endpoint = lake.serve_metrics(port=metrics_port, host=metrics_host)
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
    """Publish everything that waits now, then end.

    The exit code is 3 if any version could not be published.
    """
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        with (
            collected_warnings() as notices,
            countdown("Publishing versions", lambda: _backlog(lake), quiet=as_json),
        ):
            done = lake.mirror.run_once(concurrency=concurrency)
        left = [status for status in lake.mirror.status() if status.backlog]
    _show_published(done, left, notices, as_json=as_json)
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
    """Show backlog, lag and failures of every table.

    The exit code is 3 if a table is failing, blocked or drifted.
    """
    statuses: list[TableStatus] = []
    with (
        no_catalog_is_empty(),
        open_lake(catalog, storage_option, mirror="worker") as lake,
    ):
        statuses = lake.mirror.status()
    listed = [one for one in statuses if one.state != "published"] if behind else statuses
    if as_json:
        show_json([with_commands(one.to_dict()) for one in listed])
    else:
        _show_status(
            listed, empty="All tables are published." if statuses else "There are no tables yet."
        )
    _exit(statuses)


@app.command()
def retry(
    catalog: Catalog,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE", help="The table, by name or by location; all of them, if left out."
        ),
    ] = None,
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Try again at once to publish tables that failed. Drifted tables are compared again.

    Leases are broken: a table that a worker has, dead or alive, is taken over.

    The exit code is 3 if any version could not be published.
    """
    with open_lake(catalog, storage_option, mirror="worker") as lake:
        name = None if table is None else lake.table(table).name
        with (
            collected_warnings() as notices,
            countdown("Publishing versions", lambda: _backlog(lake), quiet=as_json),
        ):
            done = lake.mirror.retry(name)
        left = [one for one in lake.mirror.status() if one.backlog and name in (None, one.table)]
    _show_published(done, left, notices, as_json=as_json)
    _exit(left)


def _backlog(lake: Lake) -> int:
    """How many versions are not published yet."""
    return sum(one.backlog for one in lake.mirror.status())


def _exit(statuses: list[TableStatus]) -> None:
    """Exit with 3 if a table needs attention."""
    if any(map(_is_wrong, statuses)):
        raise typer.Exit(3)


def _is_wrong(one: TableStatus) -> bool:
    """Whether it could not be published; one that waits may have got its commits meanwhile."""
    return one.state in ("failing", "blocked", "drifted")


def _show_published(
    done: list[Published], left: list[TableStatus], notices: list[str], *, as_json: bool
) -> None:
    reported = {str(one.error) for one in done}
    for text in notices:
        if text not in reported:
            print_warning(text)
    if as_json:
        show_json(
            [
                {
                    "table": one.table,
                    "published": one.count,
                    "last_version": one.last_version,
                    "outcome": one.outcome.name.lower(),
                    "error": None if one.error is None else as_commands(str(one.error)),
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
                one.outcome.value,
            )
            for one in done
        ],
        empty="Nothing could be published: see `deltalakedb mirror status`."
        if any(map(_is_wrong, left))
        else "Nothing was waiting to be published.",
    )
    waiting = sum(one.backlog for one in left if not _is_wrong(one))
    if waiting:
        say(
            f"{waiting} more versions wait: they were committed meanwhile, or another worker has "
            "their tables."
        )
    _explain((one.table, as_commands(str(one.error))) for one in done if one.error is not None)
    for one in done:
        if one.outcome is Outcome.LEASED and one.next_attempt_at is not None:
            say(
                f"{one.table}: worker {one.lease_owner} has it, until "
                f"{moment(one.next_attempt_at)} unless it renews its lease; "
                f"`deltalakedb mirror retry {one.table}` takes it over."
            )
    if any(one.outcome is Outcome.DRIFTED for one in done):
        say("Another writer has written to the _delta_log of a drifted table: see `verify`.")


def _show_status(statuses: list[TableStatus], *, empty: str) -> None:
    show_rows(
        ("table", "state", "head", "published", "backlog", "lag", "checkpoint"),
        [
            (
                one.table,
                one.state,
                one.head,
                one.published_version,
                f"{one.backlog} ({size(one.backlog_bytes)})" if one.backlog else "",
                duration(one.lag_ms) if one.backlog else "",
                one.checkpoint_version,
            )
            for one in statuses
        ],
        empty=empty,
    )
    _explain((one.table, _wrong(one)) for one in statuses)


def _explain(wrong: Iterable[tuple[str, str]]) -> None:
    """The error of each table, below the list: it may be long."""
    for table, text in wrong:
        if text:
            say(f"\n{table}: {text}")


def _wrong(one: TableStatus) -> str:
    parts = []
    if one.last_error:
        parts.append(as_commands(one.last_error))
    elif one.drift is not None:
        key = one.drift.get("object_key", "a commit of its log")
        parts.append(f"{key} is not from this catalog.")
        parts.append(as_commands(f"{drift_way_out(one.table)}."))
    if one.last_error and one.next_attempt_at:
        parts.append(f"(attempt {one.attempts}; next {moment(one.next_attempt_at)})")
    if one.checkpoint_error:
        parts.append(as_commands(one.checkpoint_error))
    return " ".join(parts)


# --- running ------------------------------------------------------------------------------


def _stop_on_signals(worker: Worker) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: worker.stop())
