"""A dialect of each engine on an empty catalog, without the store on top."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from deltalakedb.store.dialect import Dialect
from deltalakedb.store.duckdb import DuckdbDialect
from deltalakedb.store.postgres import PostgresDialect
from deltalakedb.store.sqlite import SqliteDialect
from deltalakedb.store.url import Engine, parse_url

from support.store import ENGINES, Catalogs

OpenDialect = Callable[[str], Dialect]
DIALECTS: dict[Engine, Callable[..., Dialect]] = {
    "postgres": PostgresDialect,
    "sqlite": SqliteDialect,
    "duckdb": DuckdbDialect,
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    name: Engine = request.param
    return name


@pytest.fixture
def catalog_url(engine: Engine, catalogs: Catalogs) -> Iterator[str]:
    """URL of an empty catalog of `engine`."""
    with catalogs.empty(engine) as url:
        yield url


@pytest.fixture
def open_dialect() -> Iterator[OpenDialect]:
    """Open a catalog URL; whatever was opened is closed after the test."""
    with ExitStack() as opened:

        def open_url(url: str) -> Dialect:
            parsed = parse_url(url)
            dialect = DIALECTS[parsed.engine](parsed)
            opened.callback(dialect.close)
            return dialect

        yield open_url


@pytest.fixture
def dialect(catalog_url: str, open_dialect: OpenDialect) -> Dialect:
    """An empty catalog, once for each engine."""
    return open_dialect(catalog_url)
