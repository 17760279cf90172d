"""A schema on the command line: columns, Delta JSON, or a file that has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalakedb.errors import ConfigurationError

_FIX = "Write columns such as 'id long, day date', Delta schema JSON, or the name of a file"


def read_schema(text: str) -> Any:
    """What `create_table` takes as a schema."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return stripped
    path = _file(stripped)
    if path is None:
        return _columns(stripped)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_schema(path).remove_metadata()
        except (pa.ArrowException, OSError) as error:
            raise ConfigurationError(
                f"{path} is no Parquet file", why=str(error), fix=_FIX
            ) from error
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read", why=str(error), fix=_FIX) from error


def _columns(text: str) -> str:
    fields = []
    for column in _split(text):
        name, _, kind = column.strip().partition(" ")
        required = kind.strip().lower().endswith("not null")
        if required:
            kind = kind.strip()[: -len("not null")]
        if not name or not kind.strip():
            raise ConfigurationError(f"{column.strip()!r} is no column with a type", fix=_FIX)
        fields.append(
            {
                "name": name,
                "type": _TYPES.get(kind.strip().lower(), kind.strip().lower()),
                "nullable": not required,
                "metadata": {},
            }
        )
    return json.dumps({"type": "struct", "fields": fields})


# What people used to SQL write, as Delta has it.
_TYPES = {
    "bigint": "long",
    "int": "integer",
    "smallint": "short",
    "tinyint": "byte",
    "bool": "boolean",
}


def _split(text: str) -> list[str]:
    """Parts between commas that are not inside parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


def _file(text: str) -> Path | None:
    try:
        path = Path(text)
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None
