"""`deltalakedb serve`: the operations page."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated

import typer

from deltalakedb.cli.options import Catalog, Panel, StorageOptions, examples, open_lake


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(rich_help_panel=Panel.OPERATIONS, epilog=examples("serve --port 8765"))(serve)


def serve(
    catalog: Catalog,
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port; 0 for any.")
    ] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DELTALAKEDB_TOKEN",
            metavar="TOKEN",
            help="The secret that a request must carry to change anything; without it the page is "
            "read-only. Set it in the environment: other users can see a command's arguments.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="The metrics of a worker or writer to show; may be repeated."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A host name to answer to, e.g. that of a proxy; may be repeated."
        ),
    ] = None,
    storage_option: StorageOptions = None,
) -> None:
    """Serve the operations page: tables, versions, files and the mirror, in a browser.

    It runs until Ctrl-C (SIGINT) or SIGTERM.
    """
    from deltalakedb.service import OperationsPage

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with (
        open_lake(catalog, storage_option, mirror="worker", new=True) as lake,
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
