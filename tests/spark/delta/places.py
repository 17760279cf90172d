"""Places where the statements run: a catalog, a storage and a master of Spark, in all combinations.

The cluster is Spark's own: a master and two workers on loopback. Its executors run a Python that
has no package of this project, and only the driver knows the catalog.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.embedded import embedded_service
from deltalakedb.spark.io.hadoop import hadoop_options
from interop.sql_servers import Shell, free_port, variables
from spark.delta.lake_spark import LakeSpark

from support.java_options import JAVA_OPTIONS
from support.s3 import S3Server
from support.store import Catalogs

Catalog = Literal["sqlite", "postgres"]
Storage = Literal["disk", "s3"]
Master = Literal["local", "cluster"]
_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """A combination; its name is that of a test's parameter."""

    catalog: Catalog
    storage: Storage
    master: Master

    def __str__(self) -> str:
        return f"{self.catalog}-{self.storage}-{self.master}"


PLACES = tuple(Place(*one) for one in product(*map(get_args, (Catalog, Storage, Master))))
HOME = Place("sqlite", "disk", "local")
# It has each of the other halves.
FAR = Place("postgres", "s3", "cluster")


def at_places(*short: Place) -> pytest.MarkDecorator:
    """Run a test at every place; `make test` runs it at these only."""
    # The same list for every test: those of a place run one after the other, with one Spark.
    places = [
        pytest.param(one, id=str(one), marks=() if one in short else pytest.mark.soak)
        for one in PLACES
    ]
    return pytest.mark.parametrize("here", places, indirect=True)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A standalone cluster of Spark."""

    master: str
    python: Path
    """What its executors run."""
    folders: tuple[Path, ...]
    """Where its workers keep their executors, each in a folder."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a driver that uses all workers, each with one core."""
        return {
            "spark.master": self.master,
            "spark.driver.host": "127.0.0.1",
            "spark.cores.max": str(_WORKERS),
            "spark.executor.cores": "1",
            "spark.executor.memory": "1g",
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            # No statement starts before both are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers, until the end of the block."""
    python = folder / "python"
    venv.create(python, symlinks=True)
    shell = Shell(
        folder,
        variables(PYTHONPATH="", SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=JAVA_OPTIONS),
    )
    start = "spark-class org.apache.spark.deploy"

    def at(port: int) -> str:
        return f"--host 127.0.0.1 --port {port} --webui-port {free_port()}"

    with ExitStack() as servers:
        port = free_port()
        master = f"spark://127.0.0.1:{port}"
        servers.enter_context(shell.serving(f"{start}.master.Master {at(port)}", "master", port))
        folders = tuple(folder / f"worker-{number}" for number in range(_WORKERS))
        for place in folders:
            port = free_port()
            options = f"--cores 1 --memory 1g --work-dir {place} {at(port)}"
            servers.enter_context(
                shell.serving(f"{start}.worker.Worker {options} {master}", place.name, port)
            )
        yield Cluster(master, python / "bin" / Path(sys.executable).name, folders)


@dataclass(frozen=True, slots=True)
class OpenPlace:
    """The lake of a place, and Delta on Spark as its client."""

    place: Place
    lake: Lake
    spark: LakeSpark
    cluster: Cluster | None = None


@contextmanager
def open_place(
    place: Place,
    folder: Path,
    catalogs: Catalogs,
    s3_server: S3Server | None,
    cluster: Cluster | None,
) -> Iterator[OpenPlace]:
    """A fresh lake at a place and a session of Spark; `Unavailable` where something is missing."""
    warehouse, storage_options = str(folder / "warehouse"), {}
    if s3_server is not None:
        warehouse = f"s3://{s3_server.new_bucket()}/lake"
        storage_options = s3_server.storage_options
    settings = {} if cluster is None else cluster.settings
    with ExitStack() as held:
        url = held.enter_context(catalogs.fresh(place.catalog))
        lake = held.enter_context(
            deltalakedb.connect(url, warehouse=warehouse, storage_options=storage_options)
        )
        spark = LakeSpark(
            folder,
            embedded_service(lake),
            storage=hadoop_options(warehouse, storage_options),
            python=None if cluster is None else cluster.python,
            **settings,
        )
        held.callback(spark.close)
        yield OpenPlace(place, lake, spark, cluster)
