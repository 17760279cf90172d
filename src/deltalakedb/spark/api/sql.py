"""SQL over tables of a lake, all of them at one instant.

- `sql` looks up the tables that a query names, takes snapshots of all of them at once, and lets the
  catalog prune the files of each by the parts of WHERE that concern this table alone.
- Spark evaluates all of WHERE again: a condition that is used here only leaves out files that have
  no row for it.
- Spark gets the query as it was written, except for the names of the tables. sqlglot parses it only
  to locate them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from sqlglot import Token, TokenType
from sqlglot import expressions as ast
from sqlglot.errors import SqlglotError

from deltalakedb.arguments import require_names
from deltalakedb.conditions.predicate import Predicate, conjunction
from deltalakedb.conditions.sql import SparkSql
from deltalakedb.errors import InvalidConditionError, UnsupportedFeatureError
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.spark.api.errors import analysis_errors
from deltalakedb.spark.api.session import lake_of
from deltalakedb.spark.io.query_text import conjuncts
from deltalakedb.spark.io.scan import FILE_COLUMNS, planned, quoted, scan, scan_files
from deltalakedb.spark.io.timestamps import moment, session_zone

# Joins that drop rows without a partner on the other side.
_PLAIN_JOINS: Final = frozenset({"", "INNER", "CROSS"})


def register(
    spark: SparkSession, catalog: str | Lake | None = None, names: Iterable[str] | None = None
) -> list[str]:
    """Create temporary views of tables, all at one instant; return the names of the views.

    A view has the name of its table: `SELECT * FROM `sales.orders``, with backticks around a name
    with a dot. Later commits are not visible until it is registered again.
    """
    lake = lake_of(spark, catalog)
    if names is None:
        wanted = [table.name for table in lake.tables()]
    else:
        wanted = require_names("names", names)
    with analysis_errors(), lake.snapshot(wanted) as at:
        for name, snapshot in at.items():
            scan(spark, snapshot).createOrReplaceTempView(quoted(name))
    return wanted


def sql(spark: SparkSession, lake: Lake, query: str) -> DataFrame:
    """Run a query over tables of the lake, and tables and views of the session.

    `VERSION AS OF` and `TIMESTAMP AS OF` after the name of a table read an earlier state of it.
    """
    tree, tokens = _parsed(query)
    places = _named(tree, {table.name for table in lake.tables()})
    if not places:
        return spark.sql(query)
    if not isinstance(tree, ast.Query):
        raise UnsupportedFeatureError(
            f"{tree.key.upper()} is no query of tables of a lake",
            why="Spark reads tables of a lake here, and does not change them",
            fix="Use DeltaTable.forName(…).delete, .update or .merge, or table.append",
        )
    views: list[str] = []
    edits: list[_Edit] = []
    # A clause after |> applies to the result before it; the tree does not have this order.
    piped = any(token.token_type is TokenType.PIPE_GT for token in tokens)
    try:
        with lake.snapshot(sorted({name for _, name in places})) as at:
            for node, name in places:
                snapshot = _travelled(spark, lake, node, at[name])
                view = f"__deltalakedb_{uuid.uuid4().hex}"
                conditions = [] if piped else _conditions_of(node)
                _scanned(spark, snapshot, conditions).createOrReplaceTempView(view)
                views.append(view)
                edits += _edits(node, view, tokens)
        # Spark resolves the views in this call; later they are not needed.
        return spark.sql(_edited(query, edits))
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def _parsed(query: str) -> tuple[ast.Expr, list[Token]]:
    dialect = SparkSql()
    try:
        tokens = dialect.tokenize(query)
        trees = [tree for tree in dialect.parser().parse(tokens, query) if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise InvalidConditionError(
            "The query cannot be understood",
            why=str(error).splitlines()[0],
            fix="Correct it; it is a SELECT in Spark's SQL",
        ) from error
    if len(trees) != 1:
        raise InvalidConditionError(
            f"There are {len(trees)} queries in the text", fix="Pass one SELECT"
        )
    return trees[0], tokens


# --- the tables of a query ----------------------------------------------------------------


def _named(tree: ast.Expr, known: set[str]) -> list[tuple[ast.Table, str]]:
    """The places where a query names tables of the lake."""
    by_lower: dict[str, list[str]] = {}
    for name in known:
        by_lower.setdefault(name.lower(), []).append(name)
    places = []
    for node in tree.find_all(ast.Table):
        name = ".".join(part.name for part in node.parts)
        if not name or _is_defined(node, name):
            continue
        # Spark's names have no case; if two tables differ by case alone, the exact name counts.
        alike = by_lower.get(name.lower(), [])
        if name in known or len(alike) == 1:
            places.append((node, name if name in known else alike[0]))
    return places


def _is_defined(node: ast.Table, name: str) -> bool:
    """Whether a WITH of the query defines the name at this place."""
    below: ast.Expr = node
    above = node.parent
    while above is not None:
        clause = above if isinstance(above, ast.With) else above.args.get("with_")
        if isinstance(clause, ast.With) and name.lower() in _visible(clause, below):
            return True
        below, above = above, above.parent
    return False


def _visible(clause: ast.With, below: ast.Expr) -> set[str]:
    """The names that a WITH defines for one of its parts, or for the query after it."""
    names = [cte.alias.lower() for cte in clause.expressions]
    inside = [cte is below for cte in clause.expressions]
    if not any(inside):
        # The query that has the clause is visited next.
        return set() if below is clause else set(names)
    earlier = inside.index(True)
    return set(names[: earlier + 1] if clause.args.get("recursive") else names[:earlier])


def _travelled(spark: SparkSession, lake: Lake, node: ast.Table, now: Snapshot) -> Snapshot:
    """The snapshot of an `AS OF` clause; without one, that of the query."""
    clause = node.args.get("version")
    if clause is None:
        return now
    wanted = clause.args.get("expression")
    if clause.args.get("kind") != "AS OF" or not isinstance(wanted, ast.Literal):
        raise UnsupportedFeatureError(
            f"{clause.sql(dialect='spark')} is no version of table {now.table.name!r}",
            fix="Write VERSION AS OF 3, or TIMESTAMP AS OF '2026-11-01 12:00:00'",
        )
    table = lake.table(now.table.name)
    if str(clause.this).upper() in ("VERSION", "SYSTEM_VERSION"):
        try:
            return table.snapshot(int(wanted.name))
        except ValueError:
            raise InvalidConditionError(
                f"{wanted.name!r} is no version of table {table.name!r}",
                fix="Versions are whole numbers",
            ) from None
    return table.snapshot(timestamp=moment(wanted.name, session_zone(spark)))


# --- the text of a query ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Edit:
    """The replacement of the characters of a query from `start` to before `end`."""

    start: int
    end: int
    text: str


def _edits(node: ast.Table, view: str, tokens: Sequence[Token]) -> list[_Edit]:
    """Replace a table of a query by a view, with the name of the table as its alias."""
    parts = [part.meta for part in node.parts]
    first = _at(tokens, parts[0]["start"])
    last = _at(tokens, parts[-1]["start"])
    after = last + 1
    edits = [_Edit(tokens[first].start, tokens[last].end + 1, quoted(view))]
    if node.args.get("version") is not None:
        end = _end_of_version(tokens, after)
        edits.append(_Edit(tokens[after].start, tokens[end].end + 1, ""))
        after = end + 1
    if not node.alias:
        # An alias comes after a sample.
        end = _end_of_sample(tokens, after)
        at = tokens[end - 1].end + 1
        edits.append(_Edit(at, at, f" AS {quoted(node.name)}"))
    return edits


def _at(tokens: Sequence[Token], start: int) -> int:
    return next(i for i, token in enumerate(tokens) if token.start == start)


def _end_of_version(tokens: Sequence[Token], at: int) -> int:
    """The last token of `[FOR] VERSION AS OF 3`: the first after OF."""
    while tokens[at].text.upper() != "OF":
        at += 1
    return at + 1


def _end_of_sample(tokens: Sequence[Token], at: int) -> int:
    """The token after `TABLESAMPLE (…) REPEATABLE (…)`, if that comes next."""
    for word in ("TABLESAMPLE", "REPEATABLE"):
        if at < len(tokens) and tokens[at].text.upper() == word:
            at += 1
            depth = 0
            while True:
                depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[at].token_type, 0)
                at += 1
                if not depth:
                    break
    return at


def _edited(query: str, edits: Iterable[_Edit]) -> str:
    for edit in sorted(edits, key=lambda one: one.start, reverse=True):
        query = query[: edit.start] + edit.text + query[edit.end :]
    return query


# --- the conditions on a table ------------------------------------------------------------


def _conditions_of(node: ast.Table) -> list[str]:
    """The parts of WHERE that name this table alone, without its name before the columns."""
    select = node.find_ancestor(ast.Select)
    if select is None or not _keeps_only_partners(select, node) or _is_reshaped(node):
        return []
    where = select.args.get("where")
    if where is None:
        return []
    alias = (node.alias or node.name).lower()
    alone = not select.args.get("joins") and not select.args.get("laterals")
    conditions = []
    for part in conjuncts(where.this):
        columns = list(part.find_all(ast.Column))
        mine = all(
            column.table.lower() == alias or (alone and not column.table) for column in columns
        )
        if columns and mine and not part.find(ast.Subquery, ast.Select):
            conditions.append(_bare(part, alias))
    return conditions


def _is_reshaped(node: ast.Table) -> bool:
    """Whether the query renames columns of the table, or reads other rows than its own."""
    alias = node.args.get("alias")
    renamed = alias is not None and bool(alias.args.get("columns"))
    return renamed or any(node.args.get(key) for key in ("pivots", "sample", "joins", "laterals"))


def _keeps_only_partners(select: ast.Select, node: ast.Table) -> bool:
    """Whether leaving out a row of the table for which WHERE is false cannot add a row."""
    source = select.args.get("from_")
    first = source is not None and source.this is node
    joins = select.args.get("joins") or []
    if not first and not any(join.this is node for join in joins):
        return False
    if any(join.this.args.get("joins") for join in joins):
        return False
    kinds = {f"{join.side or ''}{join.kind or ''}".upper() for join in joins}
    return kinds <= _PLAIN_JOINS or (first and kinds <= _PLAIN_JOINS | {"LEFT", "LEFTOUTER"})


def _bare(part: ast.Expr, alias: str) -> str:
    def strip(node: ast.Expr) -> ast.Expr:
        if isinstance(node, ast.Column) and node.table.lower() == alias and len(node.parts) == 2:
            return ast.Column(this=node.this)
        return node

    return part.copy().transform(strip).sql(dialect=SparkSql, comments=False)


def _scanned(spark: SparkSession, snapshot: Snapshot, conditions: list[str]) -> DataFrame:
    """The rows of the files that can match the conditions."""
    where = conjunction(_usable(spark, snapshot, conditions))
    files = snapshot.files(where=where, columns=FILE_COLUMNS)
    return scan_files(spark, snapshot, files)


def _usable(
    spark: SparkSession, snapshot: Snapshot, conditions: Iterable[str]
) -> Iterator[Predicate]:
    for part in conditions:
        try:
            yield planned(spark, snapshot.metadata, part)
        except InvalidConditionError:
            # It may name a column of the outer query; Spark resolves it.
            continue
