"""Parses conditions in SQL text, in Spark's dialect.

sqlglot parses the text; only the forms named here are supported, and all others are refused. Two
quotes inside a text stand for one, as in Spark 4 and in every other SQL.

A number with an exponent is a double and one with a point a decimal, as in Spark. A literal that is
cast, such as `DATE '2026-11-01'`, `5L` or `CAST('1.5' AS DECIMAL(3,1))`, is converted if that is
exact.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Final, cast

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError

from deltalakedb.actions.datatypes import DecimalType
from deltalakedb.actions.partition import INTEGER_RANGES
from deltalakedb.actions.scalars import fit_decimal, parse_date, parse_moment, to_float32
from deltalakedb.conditions.binding import MIRRORED, Binder, constant
from deltalakedb.conditions.predicate import Column, Operator, Predicate, Split, normal_form
from deltalakedb.errors import (
    ConditionSyntaxError,
    InvalidConditionError,
    UnsupportedConditionError,
)

_FORMS: Final = (
    "comparisons with literals, IN, BETWEEN, IS NULL, LIKE 'abc%', startswith, AND, OR, NOT"
)
_COMPARISONS: Final[dict[type[exp.Expression], Operator]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_PYTHON: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class SparkSql(Spark):
    """SQL as Spark 4 reads it."""

    class Tokenizer(Spark.Tokenizer):
        """Two quotes inside a text stand for one."""

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']


def read_sql(text: str, binder: Binder, *, strict: bool) -> Predicate:
    """Bind SQL text; without `strict`, what cannot be expressed becomes `Opaque`."""
    try:
        node = _parse(text)
        return normal_form(node, _split, _Leaf(binder), text=None if strict else _sql)
    except RecursionError:
        raise UnsupportedConditionError(
            f"The condition {_short(text)} is nested too deeply",
            why="its parentheses or NOTs are more than can be read",
            fix="Write it flatter, for example with IN lists, or AND and OR without parentheses",
        ) from None


def _parse(text: str) -> exp.Expression:
    dialect = SparkSql()
    try:
        tokens = dialect.tokenize(text)
        _check_tokens(text, tokens)
        parsed = cast(
            "list[exp.Expression | None]",
            dialect.parser().parse_into(exp.Condition, tokens, text),
        )
    except SqlglotError as error:
        raise ConditionSyntaxError(
            f"Cannot understand the condition {_short(text)}",
            why=_reason(error),
            fix=f"Write {_FORMS}; put names that are keywords in `backticks`",
        ) from None
    if len(parsed) != 1 or parsed[0] is None:
        raise _not_one(text)
    return parsed[0]


def _check_tokens(text: str, tokens: Sequence[Token]) -> None:
    if not tokens:
        raise InvalidConditionError(
            "The condition is empty", fix="Write a condition, or leave `where` out"
        )
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        raise _not_one(text)
    if any(token.comments for token in tokens):
        # The text after a comment mark would be ignored silently.
        raise InvalidConditionError(
            f"The condition {_short(text)} has a comment", fix="Leave the comment out"
        )
    for token in tokens:
        if token.token_type is TokenType.HEX_STRING and text[token.start] == "0":
            raise UnsupportedConditionError(
                f"Cannot understand the condition {_short(text)}",
                why="0x… may stand for a number or for bytes",
                fix="Write the number, or X'…' for bytes",
            )


def _not_one(text: str) -> InvalidConditionError:
    return InvalidConditionError(
        f"The condition {_short(text)} is not one condition",
        why="a semicolon ends a statement, and a condition is none",
        fix="Write one condition without semicolons",
    )


def _reason(error: SqlglotError) -> str:
    if isinstance(error, ParseError) and error.errors:
        details = error.errors[0]
        near = f"{details.get('start_context', '')}{details.get('highlight', '')}"[-60:]
        return f"the text {near!r} is not the beginning of one" if near else "it is incomplete"
    return str(error)


def _short(text: str) -> str:
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}…"


def _sql(node: exp.Expression) -> str:
    return node.sql(dialect="spark")


# --- the tree -----------------------------------------------------------------------------


def _split(node: exp.Expression) -> Split[exp.Expression] | None:
    node = _bare(node)
    if isinstance(node, exp.And):
        return "and", (node.this, node.expression)
    if isinstance(node, exp.Or):
        return "or", (node.this, node.expression)
    if isinstance(node, exp.Not):
        return "not", (node.this,)
    return None


def _bare(node: exp.Expression) -> exp.Expression:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


class _Leaf:
    """Binds the leaves of a condition: everything but AND, OR and NOT."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._readers: dict[type[exp.Expression], Callable[..., Predicate]] = {
            **dict.fromkeys(_COMPARISONS, self._comparison),
            exp.NullSafeEQ: self._null_safe,
            exp.NullSafeNEQ: self._null_safe,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Is: self._is,
            exp.Like: self._like,
            exp.Escape: self._escape,
            exp.StartsWith: self._starts_with,
        }

    def __call__(self, node: exp.Expression, *, negated: bool) -> Predicate:
        node = _bare(node)
        literal = read_literal(node)
        if literal is None or isinstance(literal, bool):
            return constant(true=literal, negated=negated)
        names = _names(node)
        if names is not None:
            return self._binder.truth(self._binder.column(names), negated=negated)
        reader = self._readers.get(type(node))
        if reader is None:
            raise _unsupported(node)
        # sqlglot marks the node of NOT LIKE, and may do so for others.
        return reader(node, negated=negated is not bool(node.args.get("negate")))

    def _comparison(self, node: exp.Expression, *, negated: bool) -> Predicate:
        sign = _COMPARISONS[type(node)]
        column, literal, mirrored = self._sides(node)
        if column is None:
            left, right = literal
            return constant(true=_compare(node, left, sign, right), negated=negated)
        if mirrored:
            sign = MIRRORED[sign]
        return self._binder.comparison(column, sign, literal, negated=negated)

    def _null_safe(self, node: exp.Expression, *, negated: bool) -> Predicate:
        column, literal, _ = self._sides(node)
        if column is None:
            raise _unsupported(node)
        opposite = isinstance(node, exp.NullSafeNEQ)
        return self._binder.null_safe_equal(column, literal, negated=negated is not opposite)

    def _in(self, node: exp.Expression, *, negated: bool) -> Predicate:
        values = node.expressions
        if not values or set(node.args) - {"this", "expressions", "negate"}:
            raise _unsupported(node)
        literals = [_literal(value, node) for value in values]
        return self._binder.in_list(self._column(node), literals, negated=negated)

    def _between(self, node: exp.Expression, *, negated: bool) -> Predicate:
        if node.args.get("symmetric"):
            raise _unsupported(node)
        low, high = (_literal(node.args[name], node) for name in ("low", "high"))
        return self._binder.between(self._column(node), low, high, negated=negated)

    def _is(self, node: exp.Expression, *, negated: bool) -> Predicate:
        what = _literal(node.expression, node)
        column = self._column(node)
        if what is not None and not isinstance(what, bool):
            raise _unsupported(node)
        # IS TRUE and IS FALSE are never null, as <=> is not.
        return self._binder.null_safe_equal(column, what, negated=negated)

    def _like(self, node: exp.Expression, *, negated: bool, escape: str = "\\") -> Predicate:
        pattern = _literal(node.expression, node)
        return self._binder.like(self._column(node), pattern, escape=escape, negated=negated)

    def _escape(self, node: exp.Expression, *, negated: bool) -> Predicate:
        like, escape = node.this, _literal(node.expression, node)
        if not isinstance(like, exp.Like):
            raise _unsupported(node)
        if not isinstance(escape, str) or len(escape) != 1:
            raise InvalidConditionError(
                f"The condition {_short(_sql(node))} is not valid",
                why="ESCAPE takes one character",
                fix="Write it like ESCAPE '!'",
            )
        opposite = bool(like.args.get("negate"))
        return self._like(like, negated=negated is not opposite, escape=escape)

    def _starts_with(self, node: exp.Expression, *, negated: bool) -> Predicate:
        prefix = _literal(node.expression, node)
        return self._binder.starts_with(self._column(node), prefix, negated=negated)

    def _column(self, node: exp.Expression) -> Column:
        names = _names(_bare(node.this))
        if names is None:
            raise _unsupported(node)
        return self._binder.column(names)

    def _sides(self, node: exp.Expression) -> tuple[Column | None, Any, bool]:
        """The column, the literal, and whether the literal stands first; or two literals."""
        left, right = _bare(node.this), _bare(node.expression)
        names = _names(left)
        if names is not None:
            literal = _literal(right, node)
            return self._binder.column(names), literal, False
        names = _names(right)
        if names is None:
            return None, (_literal(left, node), _literal(right, node)), False
        literal = _literal(left, node)
        return self._binder.column(names), literal, True


def _names(node: exp.Expression) -> list[str] | None:
    """The parts of a column's name, from the outermost; None where the node is no column."""
    below: list[str] = []
    while isinstance(node, exp.Dot):
        if not isinstance(node.expression, exp.Identifier):
            return None
        below.insert(0, node.expression.name)
        node = node.this
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        return None
    return [*(part.name for part in node.parts), *below]


def _literal(node: exp.Expression, whole: exp.Expression) -> Any:
    value = read_literal(_bare(node))
    if value is NOT_LITERAL:
        raise _unsupported(whole)
    return value


def _compare(node: exp.Expression, left: Any, sign: Operator, right: Any) -> bool | None:
    # `1 = 1`, which programs write to begin a chain of ANDs.
    if left is None or right is None:
        return None
    if type(left) is not type(right) or not isinstance(left, int | str):
        raise _unsupported(node)
    return _PYTHON[sign](left, right)


def _unsupported(node: exp.Expression) -> UnsupportedConditionError:
    return UnsupportedConditionError(
        f"The condition {_short(_sql(node))} is more than can be planned with",
        why=f"only these forms are understood: {_FORMS}",
        fix="Write it in these forms, or filter the rows after reading them",
    )


# --- literals -------------------------------------------------------------------------

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
