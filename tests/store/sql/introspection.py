"""What a live catalog looks like, read from the engine's own tables.

`dump` holds everything that can tell two schemas apart, in the engine's own words. `describe` is
the part that all engines have, in one shape, to compare with the documentation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalakedb.store.dialect import Dialect, Session

_POSTGRES = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
               a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attstorage::text
        FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND a.attnum > 0
          AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
        ORDER BY c.relname, a.attnum""",
    "relations": """
        SELECT relname, relkind::text, reloptions::text, relpersistence::text
        FROM pg_class
        WHERE relnamespace = quote_ident(current_schema())::regnamespace ORDER BY relname""",
    "constraints": """
        SELECT c.relname, k.conname, k.contype::text, pg_get_constraintdef(k.oid), k.convalidated
        FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
        WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND NOT c.relispartition
        ORDER BY c.relname, k.conname""",
    "indexes": """
        SELECT c.relname, i.relname,
               replace(pg_get_indexdef(i.oid), quote_ident(current_schema()) || '.', '')
        FROM pg_index AS x
        JOIN pg_class AS c ON c.oid = x.indrelid
        JOIN pg_class AS i ON i.oid = x.indexrelid
        WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND NOT c.relispartition
        ORDER BY c.relname, i.relname""",
    "views": r"""
        -- A view that was made from this very text names its nulls: no difference.
        SELECT relname, regexp_replace(pg_get_viewdef(oid, true), '(NULL::\w+) AS \w+', '\1', 'g')
        FROM pg_class
        WHERE relnamespace = quote_ident(current_schema())::regnamespace
          AND relkind = 'v'
        ORDER BY relname""",
    "enums": """
        SELECT t.typname, e.enumlabel FROM pg_enum AS e JOIN pg_type AS t ON t.oid = e.enumtypid
        WHERE t.typnamespace = quote_ident(current_schema())::regnamespace
        ORDER BY t.typname, e.enumsortorder""",
    "functions": """
        SELECT proname FROM pg_proc WHERE pronamespace = quote_ident(current_schema())::regnamespace
        ORDER BY proname""",
    "grants": """
        SELECT c.relname, pg_get_userbyid(c.relowner), g.grantee::regrole::text,
               g.privilege_type, g.is_grantable
        FROM pg_class AS c
        CROSS JOIN aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS g
        WHERE c.relnamespace = quote_ident(current_schema())::regnamespace
          AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
        ORDER BY 1, 2, 3, 4, 5""",
}
_SQLITE = {
    # SQLite keeps the text of every statement that made something: nothing escapes it.
    "master": "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name",
    "columns": """
        SELECT m.name, c.cid, c.name, c.type, c."notnull", c.dflt_value, c.pk
        FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c
        WHERE m.type = 'table' ORDER BY m.name, c.cid""",
    "indexes": """
        SELECT m.name, i.name, i."unique", i.origin, i.partial, x.seqno, x.name, x."desc"
        FROM sqlite_master AS m, pragma_index_list(m.name) AS i, pragma_index_xinfo(i.name) AS x
        WHERE m.type = 'table' AND x.key ORDER BY m.name, i.name, x.seqno""",
}
_DUCKDB = {
    "columns": """
        SELECT table_name, column_index, column_name, data_type, is_nullable, column_default
        FROM duckdb_columns() WHERE NOT internal ORDER BY table_name, column_index""",
    "constraints": """
        SELECT table_name, constraint_type, constraint_text FROM duckdb_constraints()
        ORDER BY table_name, constraint_index""",
    "indexes": """
        SELECT table_name, index_name, is_unique, sql FROM duckdb_indexes()
        ORDER BY table_name, index_name""",
    "views": "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY view_name",
    "enums": """
        SELECT type_name, labels FROM duckdb_types() WHERE NOT internal ORDER BY type_name""",
}
_DUMPS = {"postgres": _POSTGRES, "sqlite": _SQLITE, "duckdb": _DUCKDB}

Dump = Mapping[str, list[tuple[Any, ...]]]


def dump(dialect: Dialect) -> Dump:
    """Everything about the schema; equal dumps mean equal schemas."""
    with dialect.read() as session:
        return {name: session.execute(q, {}) for name, q in _DUMPS[dialect.engine].items()}


@dataclass(frozen=True, slots=True)
class Column:
    """One column, typed in the engine's words; `checks` are conditions on this column."""

    name: str
    type: str
    nullable: bool
    checks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Description:
    """Tables and views with their columns; primary keys, uniques and indexes by what they cover."""

    tables: Mapping[str, tuple[Column, ...]]
    views: Mapping[str, tuple[Column, ...]]
    primary_keys: Mapping[str, str]
    uniques: frozenset[tuple[str, str]]
    indexes: Mapping[str, tuple[str, str]]
    enums: Mapping[str, tuple[str, ...]]


def describe(dialect: Dialect) -> Description:
    """The schema in the shape that every engine shares."""
    with dialect.read() as session:
        return {"postgres": _postgres, "sqlite": _sqlite, "duckdb": _duckdb}[dialect.engine](
            session
        )


def _normal(expression: str) -> str:
    """A condition without the quotes, casts and outer brackets that an engine adds."""
    text = re.sub(r"::(?:\w+|\"[^\"]+\")", "", expression.replace('"', "")).strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    return " ".join(text.split())


def _checks(
    conditions: list[tuple[str, str]], columns: Mapping[str, list[str]]
) -> dict[tuple[str, str], set[str]]:
    """Each condition under the first column of its relation that it names."""
    found: dict[tuple[str, str], set[str]] = {}
    for relation, condition in conditions:
        words = re.findall(r"\w+", condition)
        column = next(word for word in words if word in columns[relation])
        found.setdefault((relation, column), set()).add(condition)
    return found


def _tables(
    rows: list[tuple[str, str, str, bool]], conditions: list[tuple[str, str]]
) -> dict[str, tuple[Column, ...]]:
    names: dict[str, list[str]] = {}
    for relation, name, _, _ in rows:
        names.setdefault(relation, []).append(name)
    checks = _checks(conditions, names)
    tables: dict[str, tuple[Column, ...]] = {}
    for relation, name, kind, nullable in rows:
        column = Column(name, kind, nullable, frozenset(checks.get((relation, name), set())))
        tables[relation] = (*tables.get(relation, ()), column)
    return tables


def _postgres(session: Session) -> Description:
    rows = session.execute(_POSTGRES["columns"], {})
    views = {name for name, _ in session.execute(_POSTGRES["views"], {})}
    constraints = session.execute(_POSTGRES["constraints"], {})
    conditions = [
        (relation, _normal(text.removeprefix("CHECK ")))
        for relation, _, kind, text, _ in constraints
        if kind == "c"
    ]
    keys = {name for _, name, kind, *_ in constraints if kind in "pu"}
    indexes: dict[str, tuple[str, str]] = {}
    for relation, name, text in session.execute(_POSTGRES["indexes"], {}):
        if name not in keys:
            parts = re.match(r"CREATE INDEX \S+ ON \S+ USING (\w+) (.*)$", text)
            assert parts is not None, text
            covers, _, where = parts[2].partition(" WHERE ")
            covers = covers.strip("()") if parts[1] == "btree" else f"{parts[1]} {covers}"
            indexes[name] = (relation, covers + (f" WHERE {_normal(where)}" if where else ""))
    enums: dict[str, tuple[str, ...]] = {}
    for name, label in session.execute(_POSTGRES["enums"], {}):
        enums[name] = (*enums.get(name, ()), label)
    return Description(
        tables=_tables(
            [(r[0], r[2], r[3], not r[4]) for r in rows if r[0] not in views], conditions
        ),
        views=_tables([(r[0], r[2], r[3], True) for r in rows if r[0] in views], []),
        primary_keys={r[0]: _inside(r[3]) for r in constraints if r[2] == "p"},
        uniques=frozenset((r[0], _inside(r[3])) for r in constraints if r[2] == "u"),
        indexes=indexes,
        enums=enums,
    )


def _inside(text: str) -> str:
    return text[text.index("(") + 1 : text.rindex(")")].replace('"', "")


def _sqlite(session: Session) -> Description:
    statements = session.execute(_SQLITE["master"], {})
    conditions: list[tuple[str, str]] = []
    indexes: dict[str, tuple[str, str]] = {}
    for kind, name, relation, text in statements:
        if kind == "table":
            # A column that was added later stands on the line of the one before it.
            for line in re.split(r"\n|(?<=\)), (?=\w+ (?:INTEGER|TEXT|BLOB)\b)", text):
                found = re.search(r" CHECK \((.*)\),?$", line)
                conditions += [(relation, _normal(found[1]))] if found else []
        elif kind == "index" and text:
            parts = re.search(r"\bON\s+\w+\s*\(([^)]*)\)\s*(?:WHERE\s+(.*))?$", text, re.DOTALL)
            assert parts is not None, text
            where = f" WHERE {_normal(parts[2])}" if parts[2] else ""
            indexes[name] = (relation, " ".join(parts[1].split()) + where)
    rows = session.execute(_SQLITE["columns"], {})
    keys: dict[str, list[str]] = {}
    origins: dict[str, tuple[str, str]] = {}
    for relation, name, _, origin, _, _, column, _ in session.execute(_SQLITE["indexes"], {}):
        keys.setdefault(name, []).append(column)
        origins[name] = (relation, origin)
    primary = {r: ", ".join(keys[n]) for n, (r, origin) in origins.items() if origin == "pk"}
    # An INTEGER PRIMARY KEY is the row id, which needs no index.
    primary |= {r[0]: r[2] for r in rows if r[6] == 1 and r[3] == "INTEGER"}
    views = session.execute(
        "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c "
        "WHERE m.type = 'view' ORDER BY m.name, c.cid",
        {},
    )
    return Description(
        tables=_tables([(r[0], r[2], r[3], not r[4]) for r in rows], conditions),
        # Which types the columns of a view get depends on the version of SQLite.
        views=_tables([(view, column, "", True) for view, column in views], []),
        primary_keys=primary,
        uniques=frozenset(
            (r, ", ".join(keys[n])) for n, (r, origin) in origins.items() if origin == "u"
        ),
        indexes=indexes,
        enums={},
    )


def _duckdb(session: Session) -> Description:
    rows = session.execute(_DUCKDB["columns"], {})
    views = {name for name, _ in session.execute(_DUCKDB["views"], {})}
    constraints = session.execute(_DUCKDB["constraints"], {})
    enums = {name: tuple(labels) for name, labels in session.execute(_DUCKDB["enums"], {})}
    spelled = {f"ENUM({', '.join(repr(v) for v in labels)})": n for n, labels in enums.items()}
    rows = [(r[0], r[1], r[2], spelled.get(r[3], r[3]), r[4]) for r in rows]
    return Description(
        tables=_tables(
            [(r[0], r[2], r[3], r[4]) for r in rows if r[0] not in views],
            [(r[0], _normal(r[2].removeprefix("CHECK"))) for r in constraints if r[1] == "CHECK"],
        ),
        views=_tables([(r[0], r[2], r[3], True) for r in rows if r[0] in views], []),
        primary_keys={r[0]: _inside(r[2]) for r in constraints if r[1] == "PRIMARY KEY"},
        uniques=frozenset((r[0], _inside(r[2])) for r in constraints if r[1] == "UNIQUE"),
        indexes={
            name: (relation, text)
            for relation, name, _, text in session.execute(_DUCKDB["indexes"], {})
        },
        enums=enums,
    )
