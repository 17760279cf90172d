"""Which engines read beside us here; one that is missing is told with its reason."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from interop.readers import NAMES, Peers, Refused


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_is_there_and_reads(
    name: str, peers: Peers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if name in peers.missing:
        pytest.skip(f"{name}: {peers.missing[name]}")
    reader = peers.there[name]
    folder = tmp_path_factory.mktemp("table")
    for number in range(3):
        write_deltalake(str(folder), pa.table({"n": [number]}), mode="append")
    assert sorted(reader.read(folder)["n"].to_pylist()) == [0, 1, 2]
    assert sorted(reader.read(folder, version=1)["n"].to_pylist()) == [0, 1]
    with pytest.raises(Refused):
        reader.read(folder / "nothing")
    # A refusal does not spoil what comes after it.
    assert reader.read(folder, version=0)["n"].to_pylist() == [0]
