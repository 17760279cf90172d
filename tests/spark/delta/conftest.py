"""One lake and one Spark that is its client, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.embedded import embedded_service
from interop.readers import Unavailable
from spark.delta.lake_spark import LakeSpark


@pytest.fixture(scope="session")
def shared_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake with a warehouse."""
    folder = tmp_path_factory.mktemp("delta-lake")
    with deltalakedb.connect(
        f"sqlite:///{folder}/lake.db", warehouse=str(folder / "warehouse")
    ) as lake:
        yield lake


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory, shared_lake: Lake) -> Iterator[LakeSpark]:
    """Delta on Spark, a client of the shared lake."""
    folder = tmp_path_factory.mktemp("delta-spark")
    try:
        spark = LakeSpark(folder, embedded_service(shared_lake))
    except Unavailable as missing:
        pytest.skip(str(missing))
    yield spark
    spark.close()


@pytest.fixture
def lake_spark(started: LakeSpark, shared_lake: Lake) -> LakeSpark:
    """The same, pointed at the shared lake whatever the test before has done."""
    started.use(embedded_service(shared_lake))
    return started
