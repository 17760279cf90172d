"""A program with a multiprocessing.Pool whose workers use the lake that it has opened.

Arguments: the URL of the catalog, the location of the table, the number of tasks. It prints the
number of tasks by outcome as JSON. Workers are replaced while the pool runs, so that its own thread
forks too, and the parent commits meanwhile.
"""

import json
import multiprocessing
import sys
from collections import Counter

import pyarrow as pa

import deltalakedb
from deltalakedb.errors import CatalogBusyError, ForkedProcessError

SCHEMA = pa.schema([("id", pa.int64())])
WORKERS = 4
SECONDS = 120.0

url, location, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
lake = deltalakedb.connect(url)


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number]}, SCHEMA)


def work(number: int) -> str:
    """Append a row and read it back."""
    try:
        table = lake.table("a.t")
        table.append(rows(number))
        assert table.snapshot().to_arrow(where=f"id = {number}").num_rows == 1
        assert table.snapshot().files().num_rows
    except (ForkedProcessError, CatalogBusyError):
        return "refused"
    return "worked"


def main() -> None:
    table = lake.create_table(
        "a.t", location=location, schema=SCHEMA, properties={"delta.checkpointInterval": "2"}
    )
    own = []
    for number in range(-4, 0):
        table.append(rows(number))
        own.append(number)
    lake.mirror.drain()
    assert table.snapshot().to_arrow().num_rows == len(own)
    outcomes: Counter[str] = Counter()
    with multiprocessing.get_context("fork").Pool(WORKERS, maxtasksperchild=10) as pool:
        results = [pool.apply_async(work, (number,)) for number in range(count)]
        for number in range(-20, -4):
            table.append(rows(number))
            own.append(number)
        worked = []
        for number, result in enumerate(results):
            outcome = result.get(SECONDS)
            outcomes[outcome] += 1
            worked += [number] if outcome == "worked" else []
        pool.close()
        pool.join()
    ids = table.snapshot().to_arrow()["id"].to_pylist()
    assert sorted(ids) == sorted(own + worked), ids
    lake.mirror.drain()
    assert lake.verify("a.t").ok
    lake.close()
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main()
