"""The engines that read beside us, started once."""

from collections.abc import Iterator

import pytest

from interop.readers import Peers


@pytest.fixture(scope="session")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """Every reader that can be had; `test_readers.py` tells which cannot, and why."""
    found = Peers.start(tmp_path_factory.mktemp("peers"))
    yield found
    found.close()
