"""Parses conditions that are a `pyarrow.compute.Expression`.

pyarrow has no API for the tree of an expression, but it serialises one: pickling gives an Arrow
file whose only row holds the typed literals, and whose schema has the calls as key-value metadata,
in order. This is exact and needs no schema; the text of an expression is ambiguous, and Substrait
binds the expression to a schema first, which fails for literals of another type.

The keys repeat, and pyarrow returns metadata as a dict, so they are read through Arrow's C data
interface, whose layout is fixed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltalakedb.actions.datatypes import DOUBLE, FLOAT
from deltalakedb.conditions.binding import MIRRORED, Binder, NullMatching, constant
from deltalakedb.conditions.literals import Instant
from deltalakedb.conditions.predicate import Column, Null, Operator, Predicate, Split, normal_form
from deltalakedb.errors import InvalidConditionError, UnsupportedConditionError

_COMPARISONS: Final[dict[str, Operator]] = {
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_NULL_MATCHING: Final[dict[int, NullMatching]] = {0: "match", 1: "skip", 2: "emit_null", 3: "sql"}
_NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Field:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Value:
    scalar: pa.Scalar


@dataclass(slots=True)
class _Call:
    function: str
    arguments: list[_Node] = field(default_factory=list)
    options: pa.StructScalar | None = None


_Node: TypeAlias = _Field | _Value | _Call


def read_arrow(expression: pc.Expression, binder: Binder, *, strict: bool) -> Predicate:
    """Bind an expression; without `strict`, what cannot be expressed becomes `Opaque`."""
    return normal_form(_tree(expression), _split, _Leaf(binder), text=None if strict else _text)


# --- reading pyarrow's own form -----------------------------------------------------------


def _tree(expression: pc.Expression) -> _Node:
    try:
        _, (buffer,) = expression.__reduce__()
        reader = pa.ipc.open_file(buffer)
        batch = reader.get_batch(0)
        entries = iter(list(_metadata(reader.schema)))
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise UnsupportedConditionError(
            f"Cannot read the pyarrow expression {_short(str(expression))}",
            why=str(error),
            fix="Name columns by their names, or write the condition as SQL text",
        ) from None
    root = _Call("root")
    above = [root]
    for key, text in entries:
        if key == "literal":
            above[-1].arguments.append(_Value(batch.column(int(text))[0]))
        elif key == "field_ref":
            above[-1].arguments.append(_Field((text,)))
        elif key == "nested_field_ref":
            names = tuple(next(entries)[1] for _ in range(int(text)))
            above[-1].arguments.append(_Field(names))
        elif key == "call":
            call = _Call(text)
            above[-1].arguments.append(call)
            above.append(call)
        elif key == "options":
            above[-1].options = batch.column(int(text))[0]
        elif key == "end":
            above.pop()
        else:
            raise _unreadable(expression)
    if len(above) != 1 or len(root.arguments) != 1:
        raise _unreadable(expression)
    return root.arguments[0]


class _ArrowSchema(ctypes.Structure):
    # The first members of the struct of Arrow's C data interface.
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = _ArrowSchema.from_address(pointer_of(capsule, b"arrow_schema")).metadata
    if address is None:
        return
    (count, address) = _integer(address)
    for _ in range(count):
        key, address = _bytes(address)
        value, address = _bytes(address)
        yield key.decode("utf-8"), value.decode("utf-8")
    # The capsule owns the memory that was read above.
    del capsule


def _integer(address: int) -> tuple[int, int]:
    return int.from_bytes(ctypes.string_at(address, 4), sys.byteorder, signed=True), address + 4


def _bytes(address: int) -> tuple[bytes, int]:
    size, address = _integer(address)
    return ctypes.string_at(address, size), address + size


def _unreadable(expression: pc.Expression) -> UnsupportedConditionError:
    return UnsupportedConditionError(
        f"Cannot read the pyarrow expression {_short(str(expression))}",
        why=f"pyarrow {pa.__version__} writes expressions in a form that is not known here",
        fix="Write the condition as SQL text",
    )


# --- the tree -----------------------------------------------------------------------------


def _split(node: _Node) -> Split[_Node] | None:
    if isinstance(node, _Call):
        if node.function == "and_kleene":
            return "and", node.arguments
        if node.function == "or_kleene":
            return "or", node.arguments
        if node.function == "invert":
            return "not", node.arguments
    return None


class _Leaf:
    """Binds the leaves of a condition: everything but AND, OR and NOT."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._readers: dict[str, Callable[..., Predicate]] = {
            **dict.fromkeys(_COMPARISONS, self._comparison),
            "is_null": self._is_null,
            "is_valid": self._is_valid,
            "is_in": self._is_in,
            "starts_with": self._starts_with,
            "match_like": self._match_like,
        }

    def __call__(self, node: _Node, *, negated: bool) -> Predicate:
        if isinstance(node, _Field):
            return self._binder.truth(self._binder.column(node.names), negated=negated)
        if isinstance(node, _Value):
            value = _python(node.scalar)
            if value is not None and not isinstance(value, bool):
                raise InvalidConditionError(
                    f"The value {_short(str(value))} is no condition",
                    fix="Compare a column with it",
                )
            return constant(true=value, negated=negated)
        reader = self._readers.get(node.function)
        if reader is None:
            raise _unsupported(node)
        return reader(node, negated=negated)

    def _comparison(self, node: _Call, *, negated: bool) -> Predicate:
        sign = _COMPARISONS[node.function]
        left, right = node.arguments
        if isinstance(left, _Value):
            left, right, sign = right, left, MIRRORED[sign]
        if not isinstance(left, _Field) or not isinstance(right, _Value):
            raise _unsupported(node)
        column = self._binder.column(left.names)
        return self._binder.comparison(column, sign, _python(right.scalar), negated=negated)

    def _is_null(self, node: _Call, *, negated: bool) -> Predicate:
        column = self._column(node)
        if _option(node, "nan_is_null", default=False) and column.type in (FLOAT, DOUBLE):
            raise _unsupported(node)
        return Null(column, negated)

    def _is_valid(self, node: _Call, *, negated: bool) -> Predicate:
        return Null(self._column(node), not negated)

    def _is_in(self, node: _Call, *, negated: bool) -> Predicate:
        if node.options is None:
            raise _unsupported(node)
        # In pyarrow null is in the list or not, while SQL's answer would be null.
        nulls = _NULL_MATCHING.get(_option(node, "null_matching_behavior", default=0))
        if nulls is None:
            raise _unsupported(node)
        literals = [_python(scalar) for scalar in node.options["value_set"].values]
        return self._binder.in_list(self._column(node), literals, negated=negated, nulls=nulls)

    def _starts_with(self, node: _Call, *, negated: bool) -> Predicate:
        return self._binder.starts_with(self._column(node), _pattern(node), negated=negated)

    def _match_like(self, node: _Call, *, negated: bool) -> Predicate:
        return self._binder.like(self._column(node), _pattern(node), negated=negated)

    def _column(self, node: _Call) -> Column:
        argument = node.arguments[0]
        if not isinstance(argument, _Field):
            raise _unsupported(node)
        return self._binder.column(argument.names)


def _option(node: _Call, name: str, *, default: Any) -> Any:
    # Only the one that is asked for: a list of values may hold what Python cannot.
    if node.options is None or name not in (f.name for f in node.options.type):
        return default
    return node.options[name].as_py()


def _pattern(node: _Call) -> str:
    if _option(node, "ignore_case", default=False):
        raise _unsupported(node)
    pattern = _option(node, "pattern", default=None)
    if isinstance(pattern, bytes):
        pattern = pattern.decode("utf-8", "surrogateescape")
    if not isinstance(pattern, str):
        raise _unsupported(node)
    return pattern


def _python(scalar: pa.Scalar) -> Any:
    """The literal as the binder takes it."""
    kind = scalar.type
    if pa.types.is_dictionary(kind):
        return _python(scalar.value)
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(kind):
        return _moment(scalar.value * _NANOSECONDS[kind.unit], zoned=kind.tz is not None)
    if not any(test(kind) for test in _PLAIN):
        raise InvalidConditionError(
            f"Cannot compare with the value {_short(str(scalar))} of type {kind}",
            why="no column has values of this type that can be compared",
            fix="Use a value of the column's type",
        )
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:
        raise InvalidConditionError(
            f"Cannot compare with a value of type {kind}",
            why=str(error),
            fix="Use a value that Python can represent, in the years 1 to 9999",
        ) from None


_PLAIN: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_date,
)


def _moment(nanoseconds: int, *, zoned: bool) -> datetime | Instant:
    micros, rest = divmod(nanoseconds, 1000)
    if rest:
        return Instant(Fraction(nanoseconds, 1000), zoned)
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return Instant(Fraction(micros), zoned)
    return moment if zoned else moment.replace(tzinfo=None)


# --- messages -----------------------------------------------------------------------------


def _text(node: _Node) -> str:
    if isinstance(node, _Field):
        return ".".join(node.names)
    if isinstance(node, _Value):
        return str(node.scalar)
    return f"{node.function}({', '.join(_operands(node.arguments))})"


def _operands(arguments: Sequence[_Node]) -> Iterator[str]:
    for argument in arguments:
        # One level is enough to recognise the part, whatever its depth.
        yield f"{argument.function}(…)" if isinstance(argument, _Call) else _text(argument)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def _unsupported(node: _Node) -> UnsupportedConditionError:
    return UnsupportedConditionError(
        f"The pyarrow expression {_short(_text(node))} is more than can be planned with",
        why="only comparisons of a column with a value, is_in, is_null, is_valid, starts_with, "
        "&, | and ~ are understood",
        fix="Write it in these forms, or filter the rows after reading them",
    )
