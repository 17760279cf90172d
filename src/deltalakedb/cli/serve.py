"""`deltalakedb serve`: the operations page."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated

import typer

from deltalakedb.cli.options import Catalog, StorageOptions, open_lake
from deltalakedb.web import OperationsPage


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(serve)


def serve(
    catalog: Catalog,
    *,
    host: Annotated[str, typer.Option(help="The address to serve at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DELTALAKEDB_TOKEN",
            help="What requests have to bring that change something; without one nothing can be "
            "changed. Better in the environment: others see the arguments of a command.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Metrics of a worker or writer to show; may be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name to answer by, e.g. that of a proxy."),
    ] = None,
    storage_option: StorageOptions = None,
) -> None:
    """Show tables, versions, files and the mirror in a browser, until SIGINT or SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with (
        open_lake(catalog, storage_option, mirror="worker") as lake,
        OperationsPage(
            lake,
            host=host,
            port=port,
            token=token or None,
            sources=metrics or (),
            names=allow_host or (),
        ) as page,
    ):
        sys.stdout.write(f"The operations page is at {page.address}\n")
        sys.stdout.flush()
        stop.wait()
