"""Fixtures of the concurrency tests: processes to kill, and a crowd of writers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from concurrency.crowd import Crowd
from nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where child processes come from."""
    with Nursery(tmp_path_factory.mktemp("nursery") / "log", jobs="concurrency.jobs") as nursery:
        yield nursery


@pytest.fixture
def crowd(nursery: Nursery, tmp_path: Path) -> Iterator[Crowd]:
    """Writers and readers on one catalog; none outlives the test."""
    with Crowd(nursery, tmp_path) as crowd:
        yield crowd
