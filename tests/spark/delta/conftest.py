"""One lake and one Spark that is its client, for all tests of this folder; others by place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.embedded import embedded_service
from interop.readers import Unavailable
from spark.delta.lake_spark import LakeSpark
from spark.delta.places import HOME, Cluster, OpenPlace, Place, open_place, running_cluster

from support.store import Catalogs


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


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster of two workers."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def here(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, catalogs: Catalogs
) -> Iterator[OpenPlace]:
    """One lake and one Spark for all tests of a place: see `at_places`."""
    place: Place = request.param
    if place == HOME:
        shared_lake, started = map(request.getfixturevalue, ("shared_lake", "started"))
        yield OpenPlace(place, shared_lake, started)
        return
    s3_server = request.getfixturevalue("s3_server") if place.storage == "s3" else None
    cluster = request.getfixturevalue("cluster") if place.master == "cluster" else None
    with ExitStack() as opened:
        folder = tmp_path_factory.mktemp(str(place))
        try:
            yield opened.enter_context(open_place(place, folder, catalogs, s3_server, cluster))
        except Unavailable as missing:
            pytest.skip(str(missing))
