"""Fixtures of the fault tests: processes to kill."""

from collections.abc import Iterator

import pytest

from support.fork_server import ForkServer


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Where mirror workers come from."""
    with ForkServer(tmp_path_factory.mktemp("crew") / "log", jobs="faults.jobs") as server:
        yield server
