"""Whether live files stay readable when a table's schema changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltalakedb.actions.datatypes import (
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    column_id,
    physical_name,
)

_TYPE_CHANGES: Final = "delta.typeChanges"
_WIDER: Final = {
    "byte": {"short", "integer", "long", "double"},
    "short": {"integer", "long", "double"},
    "integer": {"long", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
_DIGITS: Final = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the point that a decimal needs to hold the type (Delta's own bounds)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two schemas are compared: whether each has column mapping, and types may widen."""

    mapped_before: bool
    mapped_after: bool
    widening: bool

    @property
    def by_id(self) -> bool:
        """Whether columns are matched by their ids; otherwise by their names."""
        return self.mapped_before and self.mapped_after


def schema_problem(old: StructType, new: StructType, how: Comparison) -> str:
    """Say why files of `old` could not be read with `new`; the empty string when they can."""
    return _struct_problem(old, new, "", how)


def _struct_problem(old: StructType, new: StructType, at: str, how: Comparison) -> str:
    def key(field: StructField) -> int | str | None:
        return column_id(field) if how.by_id else field.name

    after = {key(field): field for field in new.fields}
    for before in old.fields:
        now = after.pop(key(before), None)
        here = f"{at}{before.name}"
        if now is not None:
            problem = _field_problem(before, now, here, how)
            if problem:
                return problem
        elif not how.by_id:
            return (
                f"the column {here!r} is dropped or renamed, "
                "which live files bear only with column mapping"
            )
    for field in after.values():
        if not field.nullable:
            return f"the new column {at + field.name!r} cannot be null, and live files lack it"
    return ""


def _field_problem(old: StructField, new: StructField, at: str, how: Comparison) -> str:
    stored = physical_name(old) if how.mapped_before else old.name
    sought = physical_name(new) if how.mapped_after else new.name
    if stored != sought:
        return f"the column {at!r} is {stored!r} in live files, and would be sought as {sought!r}"
    if old.nullable and not new.nullable:
        return f"the column {at!r} may hold nulls, and would no longer be allowed to"
    recorded, record = old.metadata.get(_TYPE_CHANGES), new.metadata.get(_TYPE_CHANGES)
    if isinstance(recorded, list) and not (
        isinstance(record, list) and record[: len(recorded)] == recorded
    ):
        return f"the column {at!r} would lose the record of its type changes ({_TYPE_CHANGES})"
    return _type_problem(old.type, new.type, at, how) or (
        f"the type of {at!r} changes, and the field does not record it in {_TYPE_CHANGES!r}"
        if _differs(old.type, new.type) and record == recorded
        else ""
    )


def _type_problem(old: DataType, new: DataType, at: str, how: Comparison) -> str:
    if old in (new, VOID):
        return ""
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _struct_problem(old, new, f"{at}.", how)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        if old.contains_null and not new.contains_null:
            return f"the elements of {at!r} may be null, and would no longer be allowed to"
        return _type_problem(old.element_type, new.element_type, f"{at}.element", how)
    if isinstance(old, MapType) and isinstance(new, MapType):
        if old.value_contains_null and not new.value_contains_null:
            return f"the values of {at!r} may be null, and would no longer be allowed to"
        return _type_problem(old.key_type, new.key_type, f"{at}.key", how) or _type_problem(
            old.value_type, new.value_type, f"{at}.value", how
        )
    change = f"the type of {at!r} changes from {old} to {new}"
    if not how.widening:
        return f"{change}, and 'delta.enableTypeWidening' is not true"
    return "" if _is_wider(old, new) else f"{change}, which cannot hold every value of the old type"


def _differs(old: DataType, new: DataType) -> bool:
    """Whether a type changed that this very field records; nested fields record their own."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        return False
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _differs(old.element_type, new.element_type)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return _differs(old.key_type, new.key_type) or _differs(old.value_type, new.value_type)
    return old not in (new, VOID)


def _is_wider(old: DataType, new: DataType) -> bool:
    if isinstance(new, DecimalType):
        if isinstance(old, DecimalType):
            more = new.scale - old.scale
            return more >= 0 and new.precision - old.precision >= more
        if isinstance(old, PrimitiveType) and old.name in _DIGITS:
            return new.precision - new.scale >= _DIGITS[old.name]
        return False
    return (
        isinstance(old, PrimitiveType)
        and isinstance(new, PrimitiveType)
        and new.name in _WIDER.get(old.name, ())
    )
