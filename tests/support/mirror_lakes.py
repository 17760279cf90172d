"""Tables that are published: a lake whose tables lie in a folder of the test."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deltalakedb.lake import Lake
from deltalakedb.table import Table

from support.lake import SCHEMA, OpenLake

NewTable = Callable[..., Table]


@pytest.fixture
def new_table(tmp_path: Path) -> NewTable:
    """Create a table of `id` and `day` in a folder of its own."""

    def create(lake: Lake, name: str = "sales.orders", **options: object) -> Table:
        given = {"location": str(tmp_path / name), "schema": SCHEMA, **options}
        return lake.create_table(name, **given)  # type: ignore[arg-type]

    return create


@pytest.fixture
def queued(open_lake: OpenLake) -> Lake:
    """A lake that leaves publishing to a worker."""
    return open_lake(mirror="worker")


@pytest.fixture
def inline(open_lake: OpenLake) -> Lake:
    """A lake that publishes right after each commit."""
    return open_lake(mirror="inline")
