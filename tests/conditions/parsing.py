"""A schema with a column of every type, and short names for the leaves of a condition."""

from __future__ import annotations

from typing import Any

from deltalakedb.actions.datatypes import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    PHYSICAL_NAME,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DecimalType,
    MapType,
    StructField,
    StructType,
)
from deltalakedb.conditions.binding import Binder
from deltalakedb.conditions.predicate import Column, Comparison, Null, Operator, Predicate
from deltalakedb.conditions.where import parse_where

INNER = StructType((StructField("Zip", INTEGER), StructField("x.y", STRING)))
PERSON = StructType((StructField("address", INNER), StructField("age", LONG)))
SCHEMA = StructType(
    (
        StructField("id", LONG),
        StructField("small", BYTE),
        StructField("name", STRING),
        StructField("Day", DATE),
        StructField("at", TIMESTAMP),
        StructField("wall", TIMESTAMP_NTZ),
        StructField("price", DecimalType(6, 2)),
        StructField("wide", DecimalType(38, 10)),
        StructField("ratio", DOUBLE),
        StructField("single", FLOAT),
        StructField("ok", BOOLEAN),
        StructField("raw", BINARY),
        StructField("a.b", LONG),
        StructField("person", PERSON),
        StructField("list", ArrayType(LONG)),
        StructField("map", MapType(STRING, LONG)),
        StructField("mapped", LONG, metadata={PHYSICAL_NAME: "col-1"}),
    )
)


def parse(where: Any, *, strict: bool = True) -> Predicate:
    return parse_where(where, SCHEMA, ["day"], strict=strict)


def column(*names: str) -> Column:
    return Binder(SCHEMA, ["day"]).column(names)


def compared(name: str, operator: Operator, value: Any) -> Comparison:
    return Comparison(column(name), operator, value)


def null(name: str) -> Null:
    return Null(column(name))


def not_null(name: str) -> Null:
    return Null(column(name), negated=True)
