"""Commits: ours against a bare loop of the same statements, and beside delta-rs and DuckLake.

The bare loop sends, through the driver and with rows prepared beforehand, the statements of such a
commit: it is what the database costs a plain program. On Postgres that takes five round trips, and
ours two; a bare loop in the same two round trips, by psycopg's pipeline, runs beside. Goals, for
small commits: at least 60 % of the rate of the bare loop; on Postgres 85 %, and 80 % with eight
writers on eight tables. At most three times a bulk load of the same rows for a commit of 100,000
adds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import deltalakedb
from benchmarks.bare import BareLoop, delta_rs_append, new_add, prepare
from benchmarks.harness import Contestant, Ratio, Report, compare, median_ratio, timed, timed_each
from benchmarks.writers import WriterPool
from deltalakedb.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.postgres_server import PostgresServer

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
    }
)
ENGINES = ("postgres", "sqlite", "duckdb")
_PIPELINED = "bare loop in two round trips"


def run(report: Report, *, quick: bool) -> None:
    """Every scenario of this file."""
    rounds, small, bulk = (2, 20, 2_000) if quick else (15, 200, 100_000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # As a user's server: commits reach the disk.
        server = stack.enter_context(PostgresServer(fsync=True))
        for engine in ENGINES:
            _small_commits(report, engine, server, folder, rounds=rounds, commits=small)
        _many_writers(report, server, rounds=min(rounds, 5), commits=max(10, small // 2))
        for engine in ENGINES:
            _bulk(report, engine, server, folder, rounds=min(rounds, 3), adds=bulk)
        _peers(report, server, folder, rounds=min(rounds, 3), commits=min(small, 100))


def _url(engine: str, server: PostgresServer, folder: Path) -> str:
    if engine == "postgres":
        return server.url(server.create_database())
    return f"{engine}:///{folder / uuid.uuid4().hex}.db"


def _table(lake: deltalakedb.lake.Lake, folder: Path) -> Table:
    return lake.create_table(
        uuid.uuid4().hex, location=str(folder / uuid.uuid4().hex), schema=SCHEMA
    )


# --- against the database alone -----------------------------------------------------------


def _small_commits(
    report: Report,
    engine: str,
    server: PostgresServer,
    folder: Path,
    *,
    rounds: int,
    commits: int,
) -> None:
    """One writer, one add a commit."""
    scenario = f"{commits} small commits, {engine}"
    url = _url(engine, server, folder)
    lake = deltalakedb.connect(url, mirror="worker")
    ours, bare_table = _table(lake, folder), _table(lake, folder)
    bare = BareLoop(url, bare_table.table_id)

    def our_loop() -> float:
        adds = [[new_add()] for _ in range(commits)]
        return timed_each(ours.commit, adds)

    def bare_loop() -> float:
        rows = [prepare(bare.table_id, bare.next_version(), [new_add()]) for _ in range(commits)]
        return timed_each(bare.send, rows)

    def pipelined_loop() -> float:
        rows = [prepare(bare.table_id, bare.next_version(), [new_add()]) for _ in range(commits)]
        return timed_each(bare.send_pipelined, rows)

    contestants = {"ours": our_loop, "bare loop": bare_loop}
    if engine == "postgres":
        contestants[_PIPELINED] = pipelined_loop
    for contestant in contestants.values():
        contestant()  # warm
    times = compare(scenario, contestants, rounds=rounds, report=report)
    _add_share(report, scenario, times, least=0.85 if engine == "postgres" else 0.6)
    if engine == "postgres":
        share = median_ratio(times[_PIPELINED], times["ours"])
        meaning = f"of the rate of the {_PIPELINED}"
        report.ratios.append(Ratio(scenario, "ours", _PIPELINED, share, meaning))
    bare.close()
    lake.close()


def _many_writers(report: Report, server: PostgresServer, *, rounds: int, commits: int) -> None:
    """Eight processes, each on a table of its own, on Postgres."""
    writers = 8
    scenario = f"{writers} writers on {writers} tables, {commits} commits each, postgres"
    url = server.url(server.create_database())
    with deltalakedb.connect(url, mirror="worker") as lake:
        tables = [_table(lake, Path("/tmp")) for _ in range(2 * writers)]  # noqa: S108
        pairs = [(t.name, t.table_id) for t in tables]
    with (
        WriterPool(url, pairs[:writers], "ours") as ours,
        WriterPool(url, pairs[writers:], "bare") as bare,
    ):
        ours.run(commits), bare.run(commits)  # warm
        times = compare(
            scenario,
            {"ours": lambda: ours.run(commits), "bare loop": lambda: bare.run(commits)},
            rounds=rounds,
            report=report,
        )
    _add_share(report, scenario, times, least=0.8)


def _add_share(
    report: Report, scenario: str, times: Mapping[str, Sequence[float]], *, least: float
) -> None:
    share = median_ratio(times["bare loop"], times["ours"])
    meaning, goal = "of the bare loop's rate", f"≥ {least:.2f}"
    report.ratios.append(Ratio(scenario, "ours", "bare loop", share, meaning, goal, share >= least))


def _bulk(
    report: Report, engine: str, server: PostgresServer, folder: Path, *, rounds: int, adds: int
) -> None:
    """One commit of many adds, against a bulk load of the same rows."""
    scenario = f"one commit of {adds} adds, {engine}"
    url = _url(engine, server, folder)
    lake = deltalakedb.connect(url, mirror="worker")

    def ours() -> float:
        table = _table(lake, folder)
        actions = [new_add() for _ in range(adds)]
        return timed(lambda: table.commit(actions))

    def bulk_load() -> float:
        bare = BareLoop(url, _table(lake, folder).table_id)
        load = bare.prepare_bulk(
            prepare(bare.table_id, bare.next_version(), [new_add() for _ in range(adds)])
        )
        seconds = timed(lambda: bare.send_bulk(load))
        bare.close()
        return seconds

    times = compare(scenario, {"ours": ours, "bulk load": bulk_load}, rounds=rounds, report=report)
    factor = median_ratio(times["ours"], times["bulk load"])
    report.ratios.append(
        Ratio(scenario, "ours", "bulk load", factor, "times the bulk load", "≤ 3.00", factor <= 3)
    )
    lake.close()


# --- beside the peers ---------------------------------------------------------------------


def _peers(
    report: Report, server: PostgresServer, folder: Path, *, rounds: int, commits: int
) -> None:
    """The same small appends of one existing file, committed by each."""
    scenario = f"{commits} small appends beside peers"
    report.notes.append(
        "beside peers: our commit is durable in the catalog but not yet published to _delta_log, "
        "which delta-rs writes (without fsync); DuckLake reads the footer of the file it registers"
    )
    contestants = {}
    with ExitStack() as stack:
        for engine in ENGINES:
            lake = stack.enter_context(
                deltalakedb.connect(_url(engine, server, folder), mirror="worker")
            )
            contestants[f"ours on {engine}"] = _our_appends(_table(lake, folder), commits)
        for name, build in (
            ("delta-rs", _delta_rs_appends),
            ("DuckLake", _ducklake_appends),
        ):
            try:
                contestants[name] = build(folder, commits)
            except ImportError as missing:
                report.notes.append(f"{name} left out: {missing}")
        times = compare(scenario, contestants, rounds=rounds, report=report)
    for peer in times:
        if peer.startswith("ours"):
            continue
        for engine in ENGINES:
            faster = median_ratio(times[peer], times[f"ours on {engine}"])
            report.ratios.append(
                Ratio(
                    f"small appends, {engine} beside {peer}",
                    f"ours on {engine}",
                    peer,
                    faster,
                    "times as fast",
                )
            )


def _our_appends(table: Table, commits: int) -> Contestant:
    return lambda: timed_each(lambda _: table.commit([new_add()]), range(commits))


def _delta_rs_appends(folder: Path, commits: int) -> Contestant:
    import pyarrow as pa
    from deltalake import DeltaTable

    path = str(folder / uuid.uuid4().hex)
    DeltaTable.create(path, schema=pa.schema([("id", pa.int64())]))
    append = delta_rs_append(path)
    return lambda: timed_each(lambda _: append(), range(commits))


def _ducklake_appends(folder: Path, commits: int) -> Contestant:
    """Commits of an existing file: `ducklake_add_data_files` registers it without writing data."""
    import duckdb
    import duckdb_extension_ducklake
    import pyarrow as pa
    import pyarrow.parquet as pq

    package = Path(duckdb_extension_ducklake.__file__).parent
    extension = next(package.rglob("ducklake.duckdb_extension"))
    data = folder / uuid.uuid4().hex
    data.mkdir()
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{extension}'")
    connection.execute(f"ATTACH 'ducklake:{data / 'meta.ducklake'}' AS lake (DATA_PATH '{data}/')")
    connection.execute("CREATE TABLE lake.t (id BIGINT)")
    pq.write_table(pa.table({"id": [1, 2, 3]}), data / "file.parquet")

    def append(_: int) -> None:
        connection.execute(f"CALL ducklake_add_data_files('lake', 't', '{data / 'file.parquet'}')")

    return lambda: timed_each(append, range(commits))
