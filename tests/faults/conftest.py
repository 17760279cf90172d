"""Fixtures of the fault tests: processes to kill."""

from collections.abc import Iterator

import pytest

from nursery import Nursery


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where mirror workers come from."""
    with Nursery(tmp_path_factory.mktemp("crew") / "log", jobs="faults.jobs") as nursery:
        yield nursery
