"""SQL over tables of a lake, all of them at one instant.

`sql` finds the tables that a query names, takes snapshots of all of them at once, and lets the
catalog choose the files by what the WHERE clauses say of each table. What a clause means is up to
Spark, which evaluates all of it again: a condition that is used here can only leave out files
that have no row for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import sqlglot
from sqlglot import expressions as ast
from sqlglot.errors import SqlglotError

from deltalakedb.errors import InvalidConditionError
from deltalakedb.snapshot.predicate import conjunction
from deltalakedb.spark.native_format import install
from deltalakedb.spark.query_text import conjuncts
from deltalakedb.spark.scan import FILE_COLUMNS, planned, quoted, scan, scan_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltalakedb.lake import Lake
    from deltalakedb.snapshot import Snapshot

# Joins that keep no row of the one side that has no partner on the other.
_PLAIN_JOINS: Final = frozenset({"", "INNER", "CROSS"})


def register(
    spark: SparkSession, catalog: str | Lake | None = None, names: Iterable[str] | None = None
) -> list[str]:
    """Make temporary views of tables, all at one instant; the names of the views.

    A view has the name of its table: `SELECT * FROM `sales.orders``, with backticks where that has
    a dot. Later commits do not show until it is registered again.
    """
    from deltalakedb.spark.lakes import lake_of

    lake = lake_of(spark, catalog)
    wanted = [table.name for table in lake.tables()] if names is None else list(names)
    with lake.snapshot(wanted) as at:
        for name, snapshot in at.items():
            scan(spark, snapshot).createOrReplaceTempView(quoted(name))
    return wanted


def sql(spark: SparkSession, lake: Lake, query: str) -> DataFrame:
    """Run a query that may name tables of the lake, beside whatever else the session knows."""
    install()
    try:
        tree = sqlglot.parse_one(query, dialect="spark")
    except (SqlglotError, RecursionError) as error:
        raise InvalidConditionError(
            "The query cannot be understood",
            why=str(error).splitlines()[0],
            fix="Correct it; it is a SELECT in Spark's SQL",
        ) from error
    known = {table.name for table in lake.tables()}
    found = [(node, name) for node in _tables(tree) if (name := _name(node)) in known]
    views: list[str] = []
    try:
        with lake.snapshot(sorted({name for _, name in found})) as at:
            for node, name in found:
                view = f"__deltalakedb_{uuid.uuid4().hex}"
                _scanned(spark, at[name], _said_of(node)).createOrReplaceTempView(view)
                views.append(view)
                _point_to(node, view)
        # Spark resolves the views at once: they are not needed when it has.
        return spark.sql(tree.sql(dialect="spark") if found else query)
    finally:
        for view in views:
            spark.catalog.dropTempView(view)


def _tables(tree: ast.Expr) -> Iterator[ast.Table]:
    """The tables that a query names, and not what it defines itself by WITH."""
    defined = {cte.alias.lower() for cte in tree.find_all(ast.CTE)}
    for node in list(tree.find_all(ast.Table)):
        if node.args.get("db") or node.name.lower() not in defined:
            yield node


def _name(node: ast.Table) -> str:
    return ".".join(part.name for part in node.parts)


def _point_to(node: ast.Table, view: str) -> None:
    """Let a table of a query be a view; the query goes on to call it by its old name."""
    alias = node.alias or node.name
    node.set("this", ast.to_identifier(view))
    node.set("db", None)
    node.set("catalog", None)
    node.set("alias", ast.TableAlias(this=ast.to_identifier(alias, quoted=True)))


def _said_of(node: ast.Table) -> list[str]:
    """What WHERE says of this table alone, without its name before the columns."""
    select = node.find_ancestor(ast.Select)
    if select is None or not _keeps_only_partners(select, node):
        return []
    where = select.args.get("where")
    if where is None:
        return []
    alias = (node.alias or node.name).lower()
    alone = not select.args.get("joins") and not select.args.get("laterals")
    found = []
    for part in conjuncts(where.this):
        columns = list(part.find_all(ast.Column))
        mine = all(
            column.table.lower() == alias or (alone and not column.table) for column in columns
        )
        if columns and mine and not part.find(ast.Subquery, ast.Select):
            found.append(_bare(part, alias))
    return found


def _keeps_only_partners(select: ast.Select, node: ast.Table) -> bool:
    """Whether a row of the table that WHERE refuses could make no other row appear."""
    source = select.args.get("from_") or select.args.get("from")
    first = source is not None and source.this is node
    joins = select.args.get("joins") or []
    if not first and not any(join.this is node for join in joins):
        return False
    kinds = {f"{join.side or ''}{join.kind or ''}".upper() for join in joins}
    return kinds <= _PLAIN_JOINS or (first and kinds <= _PLAIN_JOINS | {"LEFT", "LEFTOUTER"})


def _bare(part: ast.Expr, alias: str) -> str:
    def strip(node: ast.Expr) -> ast.Expr:
        if isinstance(node, ast.Column) and node.table.lower() == alias and len(node.parts) == 2:
            return ast.Column(this=node.this)
        return node

    return part.copy().transform(strip).sql(dialect="spark")


def _scanned(spark: SparkSession, snapshot: Snapshot, said: list[str]) -> DataFrame:
    """The rows of the files that may be needed."""
    where = conjunction(planned(spark, snapshot.metadata, part) for part in said)
    files = snapshot.files(where=where, columns=FILE_COLUMNS)
    return scan_files(spark, snapshot, files)
