"""A story: random operations on one table, the same on rows in memory, and on Delta on Spark.

Predicates and assignments come in pairs, as SQL and as Python, with SQL's idea of null.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from deltalakedb.errors import UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.table import Table
from spark.delta_oracle import DeltaOracle, counted, literal, quoted

Row = tuple[Any, ...]
SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("part", pa.string()), ("v", pa.int64()), ("word", pa.string())),
        ("at", pa.timestamp("us", "UTC")),
        ("odd.n", pa.string()),
        ("box", pa.struct([("n", pa.int64()), ("tags", pa.list_(pa.string()))])),
    ]
)
BASE = tuple(SCHEMA.names)
TYPES = {
    "id": "bigint",
    "part": "string",
    "v": "bigint",
    "word": "string",
    "at": "timestamp",
    "odd.n": "string",
    "box": "struct<n: bigint, tags: array<string>>",
}
PARTS = ["a", "b/c", "ü %", None]
WORDS = ["x", "it's", "", None, "long" * 10]
VECTORS = "delta.enableDeletionVectors"
FEED = "delta.enableChangeDataFeed"
ZONES = ["UTC", "America/New_York", "Asia/Kathmandu"]
# Around the hour that New York leaves out.
BEGIN = datetime(2026, 3, 7, tzinfo=UTC)


class Condition(NamedTuple):
    """The same condition twice; Python's gives None where SQL's is unknown."""

    sql: str
    holds: Callable[[Row], bool | None]


def _compare(i: int, test: Callable[[Any], bool]) -> Callable[[Row], bool | None]:
    return lambda row: None if row[i] is None else test(row[i])


def condition(rng: random.Random, zone: ZoneInfo) -> Condition:
    n = rng.randrange(60)
    part = rng.choice(PARTS[:3])
    word = rng.choice(["x", "it's"])
    escaped = word.replace("'", "\\'")
    day = rng.randrange(6, 11)
    return rng.choice(
        [
            Condition(f"id = {n}", _compare(0, lambda x: x == n)),
            Condition(f"id > {n}", _compare(0, lambda x: x > n)),
            Condition(f"id % 7 = {n % 7}", _compare(0, lambda x: x % 7 == n % 7)),
            Condition(f"part = '{part}'", _compare(1, lambda x: x == part)),
            Condition("part IS NULL", lambda row: row[1] is None),
            Condition(f"v < {n} AND word = '{escaped}'", _both(n, word)),
            Condition("word IS NOT NULL", lambda row: row[3] is not None),
            Condition(
                f"id IN ({n}, {n + 1}, {n + 2})", _compare(0, lambda x: x in (n, n + 1, n + 2))
            ),
            since(day, zone),
            Condition(
                f"date(at) = DATE '2026-03-{day:02}'",
                _compare(4, lambda x: x.astimezone(zone).date() == date(2026, 3, day)),
            ),
            Condition("`odd.n` <> 'x'", _compare(5, lambda x: x != "x")),
            Condition("box IS NULL", lambda row: row[6] is None),
            Condition(
                f"box.n >= {n}", lambda row: None if row[6] is None else _at_least(row[6][0], n)
            ),
            Condition("array_contains(box.tags, 'x')", _tagged),
        ]
    )


def since(day: int, zone: ZoneInfo) -> Condition:
    """From an hour of a day on; which instant that is, the zone of the session says."""
    begin = datetime(2026, 3, day, 9, tzinfo=zone)
    return Condition(f"at >= '2026-03-{day:02} 09:00:00'", _compare(4, lambda x: x >= begin))


def _at_least(value: int | None, n: int) -> bool | None:
    return None if value is None else value >= n


def _tagged(row: Row) -> bool | None:
    tags = None if row[6] is None else row[6][1]
    if tags is None:
        return None
    return True if "x" in tags else None if None in tags else False


def _both(n: int, word: str) -> Callable[[Row], bool | None]:
    def test(row: Row) -> bool | None:
        parts = [
            None if row[2] is None else row[2] < n,
            None if row[3] is None else row[3] == word,
        ]
        return False if False in parts else None if None in parts else True

    return test


def new_rows(rng: random.Random, count: int) -> list[Row]:
    return [
        (
            rng.randrange(60) if rng.random() > 0.05 else None,
            rng.choice(PARTS),
            rng.choice([None, rng.randrange(100)]),
            rng.choice(WORDS),
            *rest(rng),
        )
        for _ in range(count)
    ]


def rest(rng: random.Random) -> Row:
    """An instant, a word, and a struct with a list: any of them may be missing."""
    at = BEGIN + timedelta(hours=rng.randrange(80), microseconds=rng.choice([0, 1, 999_999]))
    tags = rng.choice([None, (), ("x",), (None, "x"), ("it's", None)])
    box = (rng.choice([None, rng.randrange(60)]), tags)
    return rng.choice([None, at, at]), rng.choice([None, "x", "y"]), rng.choice([None, box, box])


def thawed(row: Row) -> dict[str, Any]:
    """A row as pyarrow wants it."""
    found = dict(zip(BASE, row, strict=True))
    box = found["box"]
    found["box"] = box and {"n": box[0], "tags": None if box[1] is None else list(box[1])}
    return found


class Story:
    """One table, its rows in memory, and what both were at every version.

    `url` lets the feed be read; `oracle` does the same to a table of its own.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        table: Table,
        rng: random.Random,
        *,
        url: str,
        oracle: DeltaOracle | None = None,
    ) -> None:
        self.spark = spark
        self.lake = lake
        self.table = table
        self.rng = rng
        self.url = url
        self.oracle = oracle
        self.columns = list(BASE)
        self.rows: list[Row] = []
        self.past: dict[int, tuple[list[str], list[Row]]] = {0: (self.columns, [])}
        self.theirs: dict[int, int] = {0: 0}
        """The version of Delta's table that is the same as one of ours."""
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.feeds = 0
        self.partitioned = bool(table.snapshot().partition_columns)
        self.zone = ZoneInfo(rng.choice(ZONES))
        spark.conf.set("spark.sql.session.timeZone", self.zone.key)
        self.ask(f"SET TIME ZONE '{self.zone.key}'")

    @property
    def target(self) -> DeltaTable:
        return DeltaTable.forName(self.spark, self.table.name, catalog=self.lake)

    @property
    def feed(self) -> bool:
        return self.table.snapshot().properties.get(FEED) == "true"

    def frame(self, rows: Sequence[Row], columns: Sequence[str] = BASE) -> DataFrame:
        schema = ", ".join(f"{quoted(name)} {TYPES.get(name, 'string')}" for name in columns)
        return self.spark.createDataFrame([*rows], schema)

    def wide(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of the first columns, with nothing in those that came later."""
        return [(*row, *([None] * (len(self.columns) - len(row)))) for row in rows]

    def ask(self, statement: str) -> None:
        if self.oracle is not None:
            self.oracle.run(statement)

    def insert(self, how: str, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
        if self.oracle is not None:
            self.oracle.insert(how, rows, columns or self.columns)

    # --- writing ----------------------------------------------------------------------------

    def append(self) -> None:
        rows = new_rows(self.rng, self.rng.randrange(1, 30))
        self.table.append(self.frame(rows))
        self.insert("INSERT INTO {t}", self.wide(rows))
        self.rows = self.rows + self.wide(rows)

    def append_plain(self) -> None:
        """Without Spark."""
        rows = new_rows(self.rng, 5)
        self.table.append(pa.Table.from_pylist([*map(thawed, rows)], SCHEMA))
        self.insert("INSERT INTO {t}", self.wide(rows))
        self.rows = self.rows + self.wide(rows)

    def overwrite(self) -> None:
        rows = new_rows(self.rng, 20)
        self.table.overwrite(self.frame(rows))
        self.ask("SET spark.sql.sources.partitionOverwriteMode = static")
        self.insert("INSERT OVERWRITE {t}", self.wide(rows))
        self.rows = self.wide(rows)

    def overwrite_dynamic(self) -> None:
        """The partitions that come; all, where there are none."""
        chosen = self.rng.sample(PARTS, 2)
        rows = [row for row in new_rows(self.rng, 15) if row[1] in chosen]
        if not rows:
            return
        self.table.overwrite(self.frame(rows), dynamic=True)
        self.ask("SET spark.sql.sources.partitionOverwriteMode = dynamic")
        self.insert("INSERT OVERWRITE {t}", self.wide(rows))
        self.ask("SET spark.sql.sources.partitionOverwriteMode = static")
        gone = {row[1] for row in rows} if self.partitioned else set()
        kept = [row for row in self.rows if self.partitioned and row[1] not in gone]
        self.rows = kept + self.wide(rows)

    def replace_where(self) -> None:
        if self.feed and self.partitioned:
            part = self.rng.choice(PARTS[:3])
            where = f"part = {literal(part)}"
            rows = [(*row[:1], part, *row[2:]) for row in new_rows(self.rng, 4)]
            kept = [row for row in self.rows if row[1] != part]
        else:
            n = self.rng.randrange(40)
            by_id = Condition(f"id > {n}", _compare(0, lambda x: x > n))
            where, holds = self.rng.choice([by_id, since(7 + n % 3, self.zone)])
            rows = [row for row in new_rows(self.rng, 10) if holds(row)]
            kept = [row for row in self.rows if not holds(row)]
        try:
            self.table.overwrite(self.frame(rows), where=where)
        except UnsupportedFeatureError:
            assert self.feed
            self.refused["replace_where"] += 1
            return
        self.insert(f"INSERT INTO {{t}} REPLACE WHERE {where}", self.wide(rows))
        self.rows = kept + self.wide(rows)

    # --- changing rows ----------------------------------------------------------------------

    def delete(self) -> None:
        where = condition(self.rng, self.zone)
        self.target.delete(where.sql)
        self.ask(f"DELETE FROM {{t}} WHERE {where.sql}")
        self.rows = [row for row in self.rows if where.holds(row) is not True]

    def update(self) -> None:
        where = condition(self.rng, self.zone)
        word = self.rng.choice(["new", "x"])
        changed = {
            "v": "v + 1",
            "word": f"'{word}'",
            "part": "word",
            "at": "at + INTERVAL 90 MINUTES",
            "`odd.n`": "concat(`odd.n`, '~')",
            "box.n": "coalesce(box.n, 0) + 1",
        }
        self.target.update(where.sql, changed)
        shown = ", ".join(f"{name} = {value}" for name, value in changed.items())
        self.ask(f"UPDATE {{t}} SET {shown} WHERE {where.sql}")
        self.rows = [
            (
                *(row[0], row[3], None if row[2] is None else row[2] + 1, word),
                row[4] and row[4] + timedelta(minutes=90),
                None if row[5] is None else f"{row[5]}~",
                (((row[6] and row[6][0]) or 0) + 1, row[6] and row[6][1]),
                *row[7:],
            )
            if where.holds(row) is True
            else row
            for row in self.rows
        ]

    def merge(self) -> None:
        source = self._source()
        by_id = {row[0]: row for row in source}
        (
            self.target.alias("t")
            .merge(self.frame(source).alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.v % 5 = 0")
            .whenMatchedUpdate(
                "t.part IS NOT NULL",
                {"v": "s.v", "word": "concat(t.word, '!')", "at": "s.at", "box": "s.box"},
            )
            .whenNotMatchedInsert("s.v > 10", _FROM_SOURCE)
            .whenNotMatchedBySourceUpdate("t.v = 4", {"word": "'four'"})
            .whenNotMatchedBySourceDelete("t.v = 3")
            .execute()
        )
        self._ask_merge(
            source,
            "WHEN MATCHED AND s.v % 5 = 0 THEN DELETE "
            "WHEN MATCHED AND t.part IS NOT NULL "
            "THEN UPDATE SET v = s.v, word = concat(t.word, '!'), at = s.at, box = s.box "
            f"WHEN NOT MATCHED AND s.v > 10 THEN {_INSERT} "
            "WHEN NOT MATCHED BY SOURCE AND t.v = 4 THEN UPDATE SET word = 'four' "
            "WHEN NOT MATCHED BY SOURCE AND t.v = 3 THEN DELETE",
        )
        after = []
        for row in self.rows:
            other = by_id.get(row[0])
            if other is None:
                if row[2] == 4:
                    after.append((*row[:3], "four", *row[4:]))
                elif row[2] != 3:
                    after.append(row)
            elif other[2] % 5 == 0:
                continue
            elif row[1] is not None:
                word = None if row[3] is None else row[3] + "!"
                after.append((*row[:2], other[2], word, other[4], row[5], other[6], *row[7:]))
            else:
                after.append(row)
        known = {row[0] for row in self.rows}
        after += self.wide([row for row in source if row[0] not in known and row[2] > 10])
        self.rows = after

    def upsert(self) -> None:
        """All columns, by the partition too."""
        source = self._source()
        by_key = {(row[0], row[1]): row for row in source}
        (
            self.target.alias("t")
            .merge(self.frame(source).alias("s"), "t.id = s.id AND t.part = s.part")
            .whenMatchedUpdate(set={"v": "s.v", "word": "s.word", "box.n": "s.v"})
            .whenNotMatchedInsert(values=_FROM_SOURCE)
            .execute()
        )
        self._ask_merge(
            source,
            "WHEN MATCHED THEN UPDATE SET v = s.v, word = s.word, box.n = s.v "
            f"WHEN NOT MATCHED THEN {_INSERT}",
            on="t.id = s.id AND t.part = s.part",
        )
        known = {(row[0], row[1]) for row in self.rows if row[1] is not None}
        after = []
        for row in self.rows:
            other = by_key.get((row[0], row[1])) if row[1] is not None else None
            if other is not None:
                box = (other[2], row[6] and row[6][1])
                row = (*row[:2], *other[2:4], *row[4:6], box, *row[7:])  # noqa: PLW2901
            after.append(row)
        after += self.wide([row for row in source if (row[0], row[1]) not in known])
        self.rows = after

    def _source(self) -> list[Row]:
        ids = self.rng.sample(range(70), 12)
        parts, words = self.rng.choices(PARTS, k=12), self.rng.choices(WORDS, k=12)
        found = zip(ids, parts, words, strict=True)
        return [(i, part, i, word, *rest(self.rng)) for i, part, word in found]

    def _ask_merge(self, source: list[Row], clauses: str, *, on: str = "t.id = s.id") -> None:
        values = ", ".join(f"({', '.join(map(literal, row))})" for row in source)
        using = f"(SELECT * FROM VALUES {values} AS x({', '.join(map(quoted, BASE))})) s"
        self.ask(f"MERGE INTO {{t}} t USING {using} ON {on} {clauses}")

    # --- the table --------------------------------------------------------------------------

    def optimize(self) -> None:
        if self.rng.random() < 0.5:
            self.target.optimize().executeCompaction()
            self.ask("OPTIMIZE {t}")
        else:
            self.target.optimize().executeZOrderBy("id", "at")
            self.ask("OPTIMIZE {t} ZORDER BY (id, at)")

    def restore(self) -> None:
        version = self.rng.choice(list(self.past))
        self.target.restoreToVersion(version)
        if self.oracle is not None:
            self.ask(f"RESTORE TABLE {{t}} TO VERSION AS OF {self.theirs[version]}")
        self.columns, self.rows = self.past[version]

    def vacuum(self) -> None:
        """Old versions cannot be read any more."""
        self.table.vacuum(retention_hours=0, allow_short_retention=True)
        version = self.table.snapshot().version
        self.past = {version: self.past[version]}

    def new_column(self) -> None:
        name = f"extra{len(self.columns)}_{self.table.snapshot().version}"
        if self.rng.random() < 0.5:
            self.table.add_columns(pa.schema([(name, pa.string())]))
            self.ask(f"ALTER TABLE {{t}} ADD COLUMNS ({name} STRING)")
            self.columns = [*self.columns, name]
            self.rows = self.wide(self.rows)
            return
        rows = [(*row, "more") for row in new_rows(self.rng, 3)]
        self.table.append(self.frame(rows, (*BASE, name)), merge_schema=True)
        before = len(self.columns)
        self.columns = [*self.columns, name]
        filler = [None] * (before - len(BASE))
        added = [(*row[: len(BASE)], *filler, "more") for row in rows]
        self.ask(f"ALTER TABLE {{t}} ADD COLUMNS ({name} STRING)")
        self.insert("INSERT INTO {t}", added)
        self.rows = self.wide(self.rows) + added

    def fewer_columns(self) -> None:
        """Overwritten with the first columns alone."""
        rows = new_rows(self.rng, 8)
        self.table.overwrite(self.frame(rows), overwrite_schema=True)
        if self.oracle is not None and len(self.columns) > len(BASE):
            kept = dict(self.table.snapshot().properties)
            part = " PARTITIONED BY (part)" if self.partitioned else ""
            shown = ", ".join(f"'{k}' = '{v}'" for k, v in kept.items() if k in _REPLACED)
            props = f" TBLPROPERTIES ({shown})" if shown else ""
            how = f"REPLACE TABLE {{t}} USING delta{part}{props} AS"
            self.insert(how, rows, BASE)
        else:
            self.insert("INSERT OVERWRITE {t}", rows, BASE)
        self.columns, self.rows = list(BASE), rows

    def vectors(self) -> None:
        """Deletion vectors, on or off."""
        on = self.table.snapshot().properties.get(VECTORS) == "true"
        value = "false" if on else "true"
        self.table.set_properties({VECTORS: value})
        self.ask(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{VECTORS}' = '{value}')")

    # --- one after the other ----------------------------------------------------------------

    def step(self) -> None:
        names = ["append"] * 3 + ["delete"] * 3 + ["update"] * 3 + ["merge"] * 3 + ["upsert"] * 2
        names += ["overwrite", "overwrite_dynamic", "replace_where", "optimize", "optimize"]
        names += ["restore", "vectors", "append_plain"]
        if self.rng.random() < 0.15:
            names = ["new_column", "fewer_columns", "vacuum"]
        name = self.rng.choice(names)
        before = self.table.snapshot().version
        columns, rows = self.columns, self.rows
        getattr(self, name)()
        self.done[name] += 1
        if self.partitioned:
            # A partition value cannot be told from no value when it is empty.
            self.rows = [(row[0], row[1] or None, *row[2:]) for row in self.rows]
        version = self.table.snapshot().version
        self.past[version] = (self.columns, self.rows)
        assert self.now(version) == Counter(self.rows), f"{name} made version {version}"
        if self.oracle is not None:
            self.theirs[version] = self.oracle.version
            assert self.oracle.has(self.columns, Counter(self.rows)), f"Delta after {name}"
        # A version that changed columns or properties has no rows of its own to tell.
        if self.feed and version == before + 1 and columns == self.columns:
            self._check_feed(name, version, rows)

    def _check_feed(self, name: str, version: int, before: list[Row]) -> None:
        """What the feed says is the difference of the rows; of DML it says what Delta's does."""
        found = (
            self.spark.read.format("deltalakedb")
            .options(catalog=self.url, readChangeFeed="true")
            .options(startingVersion=version, endingVersion=version)
            .load(self.table.name)
            .select("_change_type", *map(quoted, self.columns))
            .toArrow()
        )
        told = counted(found)
        assert all(row[0] in _SIGNS for row in told), told
        net: Counter[Row] = Counter()
        for row, count in told.items():
            net[row[1:]] += _SIGNS[row[0]] * count
        change = Counter(self.rows)
        change.subtract(Counter(before))
        assert {r: n for r, n in net.items() if n} == {r: n for r, n in change.items() if n}, name
        if self.oracle is not None and name in _DML:
            assert told == self.oracle.changes(self.columns, self.theirs[version]), name
        self.feeds += 1

    def now(self, version: int) -> Counter[Row]:
        snapshot = self.table.snapshot(version)
        return counted(snapshot.to_arrow().select(list(snapshot.schema.names)))

    def check_past(self) -> None:
        """Every version as it was; by Spark, and by Delta, some of them."""
        for version, (_, rows) in self.past.items():
            assert self.now(version) == Counter(rows), f"version {version}"
        some = self.rng.sample(sorted(self.past), min(5, len(self.past)))
        for version in {*some, max(self.past)}:
            columns, rows = self.past[version]
            scanned = self.target.toDF(version=version).select(*map(quoted, columns)).toArrow()
            assert counted(scanned) == Counter(rows), f"version {version}"
            if self.oracle is not None:
                theirs = self.oracle.rows(columns, self.theirs[version])
                assert theirs == Counter(rows), f"Delta's version {self.theirs[version]}"


_FROM_SOURCE = {quoted(name): f"s.{quoted(name)}" for name in BASE}
_INSERT = f"INSERT ({', '.join(_FROM_SOURCE)}) VALUES ({', '.join(_FROM_SOURCE.values())})"
_REPLACED = (VECTORS, FEED, "delta.columnMapping.mode")
_DML = ("delete", "update", "merge", "upsert")
_SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
