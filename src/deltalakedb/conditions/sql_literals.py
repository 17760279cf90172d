"""Converts literals of SQL text to Python values.

A number with an exponent is a double and one with a point a decimal, as in Spark. A literal that
is cast, such as `DATE '2026-11-01'`, `5L` or `CAST('1.5' AS DECIMAL(3,1))`, is converted where that
is exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from sqlglot import exp

from deltalakedb.actions.datatypes import DecimalType
from deltalakedb.actions.partition import INTEGER_RANGES
from deltalakedb.actions.scalars import fit_decimal, parse_date, parse_moment, to_float32
from deltalakedb.errors import InvalidConditionError, UnsupportedConditionError

NOT_LITERAL: Final = object()
"""What `read_literal` gives for a node that is no literal."""

_NUMBER: Final = re.compile(r"(\d*)(?:\.(\d*))?(?:[eE][+-]?\d+)?", re.ASCII)
_MAX_DIGITS: Final = 1_000
_Type = exp.DataType.Type


class _InexactError(ValueError):
    """A literal cannot be converted exactly."""


def read_literal(node: exp.Expression) -> Any:
    """The value of a literal (None for NULL), or `NOT_LITERAL`."""
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal):
        return node.this if node.is_string else _number(node.this)
    if isinstance(node, exp.RawString):
        return node.this
    if isinstance(node, exp.HexString):
        return _bytes(node.this)
    if isinstance(node, exp.Neg):
        return _negative(node)
    if isinstance(node, exp.Cast):
        return _cast(node)
    return NOT_LITERAL


def _number(text: str) -> int | Decimal | float:
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _MAX_DIGITS:
        raise InvalidConditionError(
            f"Cannot read the number {text[:80]}", fix="Write it with digits, as 5, 2.5 or 1e3"
        )
    if "e" in text.lower():
        return _double(text)
    return Decimal(text) if "." in text else int(text)


def _double(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UnsupportedConditionError(
            f"Cannot compare with the number {text[:80]}",
            why="only finite doubles can be compared here",
            fix="Write a number between -1.7976931348623157e308 and 1.7976931348623157e308",
        )
    return number


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
    except ValueError:
        raise InvalidConditionError(
            f"Cannot read the bytes X'{digits[:80]}'", fix="Write hexadecimal digits, as X'0AFF'"
        ) from None


def _negative(node: exp.Neg) -> Any:
    inner, negative = node.this, True
    while isinstance(inner, exp.Neg | exp.Paren):
        negative ^= isinstance(inner, exp.Neg)
        inner = inner.this
    value = read_literal(inner)
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float):
        return None if value is None else NOT_LITERAL
    if not negative:
        return value
    # The sign of a Decimal is changed exactly; minus would round to the context's precision.
    return value.copy_negate() if isinstance(value, Decimal) else -value


# --- casts --------------------------------------------------------------------------------


def _cast(node: exp.Cast) -> Any:
    inner = node.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    value = read_literal(inner)
    if value is None or value is NOT_LITERAL:
        return value
    target = node.to
    try:
        if target.this == _Type.DECIMAL:
            return _to_decimal(value, target)
        convert = _CASTS.get(target.this)
        if convert is None:
            return NOT_LITERAL
        return convert(value)
    except (ValueError, OverflowError, InvalidOperation) as error:
        raise UnsupportedConditionError(
            f"Cannot convert {value!r} to {target.sql(dialect='spark')}",
            why=str(error) if isinstance(error, ValueError) else "it does not fit",
            fix="Write a literal of that type",
        ) from None


def _to_whole(name: str) -> Callable[[Any], int]:
    bound = INTEGER_RANGES[name]

    def convert(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,20}", value.strip(), re.ASCII):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _InexactError("it is no whole number")
        if not -bound <= value < bound:
            raise _InexactError(f"it lies outside {-bound} to {bound - 1}")
        return value

    return convert


def _to_decimal(value: Any, target: exp.DataType) -> Decimal:
    sizes = [int(param.name) for param in target.expressions]
    precision, scale = (sizes + [10, 0][len(sizes) :])[:2]
    if isinstance(value, str):
        value = value.strip()
        if _NUMBER.fullmatch(value.lstrip("+-")) is None or len(value) > _MAX_DIGITS:
            raise _InexactError("it is no number")
    elif isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _InexactError("it is no decimal number")
    return fit_decimal(Decimal(value), DecimalType(precision, scale))


def _to_double(value: Any) -> float:
    if isinstance(value, str | bool) or not isinstance(value, int | Decimal | float):
        raise _InexactError("it is no number")
    return float(value)


def _to_float(value: Any) -> float:
    return to_float32(_to_double(value))


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _InexactError("it is no text")
    return value


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _InexactError("it is no boolean")
    return value


def _to_bytes(value: Any) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else bytes(value)


def _to_date(value: Any) -> Any:
    return parse_date(_to_text(value))


def _to_timestamp(value: Any) -> Any:
    # Without a zone it stays wall-clock time; the binding of the column adds the zone.
    moment, zone = parse_moment(_to_text(value))
    return moment if zone is None else moment.replace(tzinfo=zone)


def _to_timestamp_ntz(value: Any) -> Any:
    moment, zone = parse_moment(_to_text(value))
    if zone not in (None, UTC):
        raise _InexactError("it has a zone, and a TIMESTAMP_NTZ has none")
    return moment


_CASTS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    _Type.TINYINT: _to_whole("byte"),
    _Type.SMALLINT: _to_whole("short"),
    _Type.INT: _to_whole("integer"),
    _Type.BIGINT: _to_whole("long"),
    _Type.DOUBLE: _to_double,
    _Type.FLOAT: _to_float,
    _Type.TEXT: _to_text,
    _Type.BOOLEAN: _to_boolean,
    _Type.BINARY: _to_bytes,
    _Type.DATE: _to_date,
    _Type.TIMESTAMP: _to_timestamp,
    _Type.TIMESTAMPTZ: _to_timestamp,
    _Type.TIMESTAMPLTZ: _to_timestamp,
    _Type.TIMESTAMPNTZ: _to_timestamp_ntz,
}
