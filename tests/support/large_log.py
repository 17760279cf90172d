"""A log that has whatever an action can have, and what the catalog holds of it afterwards."""

import json
from pathlib import Path

from deltalakedb.lake import Lake
from deltalakedb.store.relations import FILE_PAGES, PAGE_COLUMNS, PAGE_TEXTS, RELATIONS
from deltalakedb.table import Table

from support.delta_log import PROTOCOL, metadata, write_commit
from support.lake import Json, add, remove

VECTOR: Json = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
COMMITS = 30


def write_history(folder: Path, commits: int = COMMITS) -> None:
    """A log with whatever an action can have."""
    planned = {"deltalakedb.planningColumns": "id"}
    for version in range(commits):
        actions: list[Json] = [{"commitInfo": {"operation": "WRITE", "n": version + 0.5}}]
        if version == 0:
            actions += [PROTOCOL, metadata(planned, partitionColumns=["day"])]
        if version == commits * 2 // 3:
            # The planned columns are others from here on.
            actions.append(metadata({"x": "y"}, partitionColumns=["day"]))
        stats = {"numRecords": 1, "minValues": {"id": version}, "maxValues": {"id": version}}
        plain = add(f"plain-{version}")
        plain["add"] |= {"stats": json.dumps(stats), "partitionValues": {"day": f"ä{version}"}}
        odd = add(f"odd/a%20b{version}\u2028é")
        odd["add"] |= {"tags": {"t": None}, "deletionVector": VECTOR, "newField": [1.50, None]}
        lines = add(f"line\n\\.\n\ue000{version}")
        lines["add"] |= {"partitionValues": {"day": "a\u0000b"}, "stats": "no\njson\r"}
        actions += [plain, odd, lines, {"txn": {"appId": f"a{version % 3}", "version": version}}]
        if version:
            actions += [
                remove(f"plain-{version - 1}"),
                # The same file, spelled differently.
                remove(f"line%0A\\.\n\ue000{version - 1}"),
                # Said twice: the last one counts.
                add(f"plain-{version}", size=7),
                {
                    "cdc": {
                        "path": f"c{version}",
                        "partitionValues": {},
                        "size": 1,
                        "dataChange": False,
                    }
                },
                {"unheard": {"of": version}},
            ]
        write_commit(folder, version, actions)


def content(lake: Lake, table: Table) -> dict[str, list[str]]:
    """Every row of a table in the catalog, without ids and times of the import."""
    found: dict[str, list[str]] = {}
    own = {"table_id", "name", "recorded_at", "created_at", "updated_at", "files", "removed"}
    with lake.store.read() as session:
        for relation in RELATIONS:
            # Pages are Arrow: files may come in another order.
            is_page = relation in (FILE_PAGES, PAGE_COLUMNS, PAGE_TEXTS)
            blobs = {"stats", "bounds", "paths"} if is_page else set()
            columns = [name for name in relation.columns if name not in own | blobs]
            rows = session.execute(
                lake.store.dialect.sql(
                    f"SELECT {', '.join(columns)} FROM {relation.name} WHERE table_id = :table_id"
                ),
                {"table_id": table.table_id},
            )
            found[relation.name] = sorted(map(repr, rows))
    return found
