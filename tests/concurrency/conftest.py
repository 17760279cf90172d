"""Fixtures of the concurrency tests: processes to kill, and a crowd of writers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from concurrency.crowd import Crowd

from support.fork_server import ForkServer


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Where child processes come from."""
    with ForkServer(
        tmp_path_factory.mktemp("fork_server") / "log", jobs="concurrency.jobs"
    ) as server:
        yield server


@pytest.fixture
def crowd(fork_server: ForkServer, tmp_path: Path) -> Iterator[Crowd]:
    """Writers and readers on one catalog; none outlives the test."""
    with Crowd(fork_server, tmp_path) as crowd:
        yield crowd
