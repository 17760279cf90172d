"""The parameters of requests, each checked by its name and kind before any query runs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl
from uuid import UUID

from deltalakedb.errors import ConfigurationError
from deltalakedb.snapshot.resolve import to_milliseconds

PAGE = 50
LARGEST_PAGE = 500
_LONGEST = 4_000
_MAX_LONG = 2**63 - 1

Kind = Literal["text", "limit", "time", "flag", "cursor"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a resource. The `shape` of a cursor has the types of its values.

    A UUID is a text in a cursor, in its canonical spelling.
    """

    name: str
    kind: Kind
    description: str
    required: bool = False
    shape: tuple[type, ...] = ()


def parse(query: str, known: Sequence[Parameter]) -> dict[str, Any]:
    """The values of all `known` parameters; ConfigurationError for any other."""
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=20, strict_parsing=False
        )
    except ValueError as error:
        raise _bad("The parameters cannot be parsed", str(error)) from None
    values: dict[str, str] = {}
    names = {parameter.name for parameter in known}
    for name, value in pairs:
        if name not in names:
            raise _bad(f"There is no parameter {name[:100]!r} here", f"Known: {sorted(names)}")
        if name in values:
            raise _bad(f"The parameter {name!r} occurs twice", "Only one value makes sense")
        if "\0" in value or len(value) > _LONGEST:
            raise _bad(f"The value of {name!r} cannot be used", "It is too long, or has a NUL")
        values[name] = value
    return {one.name: _value(one, values.get(one.name) or None) for one in known}


def _value(parameter: Parameter, text: str | None) -> Any:
    if text is None:
        if parameter.required:
            raise _bad(f"The parameter {parameter.name!r} is missing", parameter.description)
        return {"limit": PAGE, "flag": False}.get(parameter.kind)
    match parameter.kind:
        case "text":
            return text
        case "limit":
            return _limit(parameter.name, text)
        case "time":
            return to_milliseconds(text, name=parameter.name)
        case "flag":
            if text not in ("true", "false"):
                raise _bad(f"{parameter.name}={text[:100]!r} is neither true nor false", "")
            return text == "true"
        case "cursor":
            return _cursor(text, parameter.shape)


def _limit(name: str, text: str) -> int:
    limit = small_number(text, LARGEST_PAGE)
    if not limit:
        raise _bad(f"{name}={text[:100]!r} is no size of a page", f"Use 1 to {LARGEST_PAGE}")
    return limit


def small_number(text: str, most: int) -> int | None:
    """A decimal number from 0 to `most` in at most nine ASCII digits; None for any other text."""
    if len(text) > 9 or not text.isascii() or not text.isdecimal():
        return None
    number = int(text)
    return number if number <= most else None


def make_cursor(*values: str | int) -> str:
    """The start of the next page, as text for a URL."""
    text = json.dumps(values, ensure_ascii=True, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _cursor(text: str, shape: tuple[type, ...]) -> tuple[Any, ...]:
    try:
        padded = text + "=" * (-len(text) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        values = None
    if (
        not isinstance(values, list)
        or tuple(map(type, values)) != tuple(str if one is UUID else one for one in shape)
        or any(isinstance(v, int) and not 0 <= v <= _MAX_LONG for v in values)
        or any(isinstance(v, str) and not _storable(v) for v in values)
        or not all(_is_uuid(v) for v, kind in zip(values, shape, strict=True) if kind is UUID)
    ):
        raise _bad("The cursor is not one of this server", "Begin without a cursor")
    return tuple(values)


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _bad(what: str, why: str) -> ConfigurationError:
    return ConfigurationError(what, why=why, fix="See /api/v1/openapi.json")


def query_of(values: Mapping[str, str | int | bool | None]) -> dict[str, str]:
    """The parameters that have a value, as texts for a URL."""
    return {
        name: "true" if value is True else str(value)
        for name, value in values.items()
        if value is not None and value is not False
    }
