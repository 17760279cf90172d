"""Named SQL, loaded from the files beside this module.

`sql/queries.sql`, `sql/bulk.sql` and `sql/browse.sql` hold what all engines share;
`sql/<engine>/queries.sql` holds what an engine must say differently. A query starts at a line
`-- name: its_name`, its description follows as comments.
Parameters are written `:name` and rewritten to the driver's style; values never become SQL text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from deltalakedb.store.relations import Relation
from deltalakedb.store.url import Engine

_NAME = re.compile(r"^-- name: *(?P<name>[a-z_0-9]+) *$", re.MULTILINE)
# Strings, comments and casts are skipped; any other colon begins a parameter.
_PARAMETER = re.compile(r"'(?:[^']|'')*'|--[^\n]*|::|:(?P<name>[a-z_][a-z_0-9]*)")

_STYLES: Mapping[Engine, Callable[[str], str]] = {
    "postgres": lambda name: f"%({name})s",
    "sqlite": lambda name: f":{name}",
    "duckdb": lambda name: f"${name}",
}


@cache
def load_queries(engine: Engine) -> Mapping[str, str]:
    """Every named query of `engine`, with parameters in its driver's style."""
    folder = files("deltalakedb.store") / "sql"
    queries: dict[str, str] = {}
    for name in ("queries.sql", "bulk.sql", "browse.sql", f"{engine}/queries.sql"):
        queries.update(_split((folder / name).read_text("utf-8")))
    return {name: rewrite(sql, engine) for name, sql in queries.items()}


def _split(text: str) -> dict[str, str]:
    marks = list(_NAME.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {
        mark["name"]: _strip_comments(text[mark.end() : end])
        for mark, end in zip(marks, ends, strict=True)
    }


def _strip_comments(sql: str) -> str:
    lines = (line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";")


@cache
def select_rows(engine: Engine, relation: Relation, condition: str) -> str:
    """The query of a table's rows in a relation for which `condition` is true."""
    columns = ", ".join(relation.columns)
    return rewrite(
        f"SELECT {columns} FROM {relation.name} WHERE table_id = :table_id AND {condition}",  # noqa: S608
        engine,
    )


def rewrite(sql: str, engine: Engine) -> str:
    """`:name` parameters in the driver's style."""
    if engine == "postgres":
        sql = sql.replace("%", "%%")
    return replace_parameters(sql, _STYLES[engine])


def replace_parameters(sql: str, style: Callable[[str], str]) -> str:
    """Each `:name` replaced by what `style` makes of the name."""

    def one(match: re.Match[str]) -> str:
        return style(match["name"]) if match["name"] else match[0]

    return _PARAMETER.sub(one, sql)
