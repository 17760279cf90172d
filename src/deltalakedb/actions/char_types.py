"""CHAR(n) and VARCHAR(n), which Delta has no types for: strings, with a note of what was declared.

The note is that of Spark, in the metadata of the column; whoever writes rows keeps to it
(`deltalakedb.staging.lengths`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

DECLARED: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Where the metadata of a column has the declared type."""
_INNER: Final = ("elementType", "keyType", "valueType")
_LIMITED: Final = re.compile(r"(var)?char\(\d+\)")


def noted(text: str, spark_fields: Iterable[Any]) -> str:
    """The JSON text of a Spark schema, with strings in the place of CHAR and VARCHAR."""
    if not _LIMITED.search(text):
        return text
    schema = json.loads(text)
    for field, given in zip(schema["fields"], spark_fields, strict=True):
        kind = _as_string(field["type"])
        if kind != field["type"]:
            field["metadata"] = {**field["metadata"], DECLARED: given.dataType.simpleString()}
            field["type"] = kind
    return json.dumps(schema)


def _as_string(kind: Any) -> Any:
    if isinstance(kind, str):
        return "string" if _LIMITED.fullmatch(kind) else kind
    if isinstance(kind.get("fields"), list):
        fields = [{**field, "type": _as_string(field["type"])} for field in kind["fields"]]
        return {**kind, "fields": fields}
    inner = {name: _as_string(kind[name]) for name in _INNER if name in kind}
    return {**kind, **inner}
