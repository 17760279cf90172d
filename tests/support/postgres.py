"""Fixtures that give a test a real Postgres: one server a session, a fresh database a test."""

from collections.abc import Iterator

import pytest

from support.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start the server of this test session; nothing in it is worth an fsync."""
    with PostgresServer(fsync=False) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of a fresh, empty database."""
    return postgres_server.url(postgres_server.create_database())
