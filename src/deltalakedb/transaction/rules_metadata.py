"""Rules for the metaData and the protocol of a commit."""

from __future__ import annotations

from typing import Final

from deltalakedb.actions.datatypes import (
    COLUMN_ID,
    PHYSICAL_NAME,
    StructType,
    column_id,
    physical_name,
)
from deltalakedb.actions.features import check_protocol as check_form
from deltalakedb.actions.features import features_in_use, required_features, upgrade
from deltalakedb.actions.planning import check_plan
from deltalakedb.actions.properties import (
    CONSTRAINT_PREFIX,
    TableProperties,
    check_properties,
)
from deltalakedb.actions.schema_checks import check_schema
from deltalakedb.actions.values import Metadata, Protocol
from deltalakedb.errors import ConfigurationError, InvalidActionError, InvalidSchemaError
from deltalakedb.transaction.attempt import isolation_of
from deltalakedb.transaction.rulebook import Rule, reject, reject_for
from deltalakedb.transaction.schema_change import Comparison, schema_problem

_MAX_ID: Final = "delta.columnMapping.maxColumnId"
_REPLACE: Final = "or replace all files of the table in the same commit"


# --- protocol -----------------------------------------------------------------------------


def check_protocol(new: Protocol, old: Protocol | None, *, allow_feature_drop: bool) -> None:
    """The protocol is well-formed and loses nothing; too new is an `UnsupportedFeatureError`."""
    try:
        check_form(new)
    except InvalidActionError as error:
        raise reject_for(Rule.PROTOCOL, error) from error
    if old is None or allow_feature_drop:
        return
    why = ""
    lost = sorted(required_features(old) - required_features(new))
    if lost:
        why = f"it would lose {', '.join(lost)}"
    elif (
        new.min_reader_version < old.min_reader_version
        or new.min_writer_version < old.min_writer_version
    ):
        why = (
            f"the table has versions {old.min_reader_version} and {old.min_writer_version}, and "
            f"would get {new.min_reader_version} and {new.min_writer_version}"
        )
    if why:
        raise reject(
            Rule.PROTOCOL_DOWNGRADE,
            "The protocol of the table cannot be lowered",
            why=why,
            fix="Keep what the table has; a feature is dropped by its own operation",
        )


def check_features(metadata: Metadata, protocol: Protocol) -> None:
    """The protocol has every feature that properties and schema use, and what these build on."""
    try:
        uses = features_in_use(metadata)
    except ConfigurationError as error:
        raise reject_for(Rule.PROPERTIES, error) from error
    present = required_features(protocol)
    # A preview has the format of the final feature.
    wanted = [name for name in uses if f"{name}-preview" not in present]
    needed = upgrade(protocol, wanted)
    if needed == protocol:
        return
    missing = sorted(required_features(needed) - present) or sorted(wanted)
    reasons = "; ".join(f"{name} because of {uses[name]}" for name in missing if name in uses)
    raise reject(
        Rule.REQUIRED_FEATURES,
        f"The protocol of the table lacks {', '.join(missing)}",
        why=reasons or "features that the table uses build on it",
        fix="Commit a protocol that has the features together with the metaData",
    )


# --- metadata -----------------------------------------------------------------------------


def check_metadata(
    new: Metadata, old: Metadata | None, *, replaces_all: bool, enforced: frozenset[str]
) -> None:
    """The new metaData is valid by itself, and live files stay readable under it."""
    _check_identity(new, old, replaces_all=replaces_all)
    _check_properties(new, old)
    schema = _schema(new)
    mode = TableProperties(new.configuration).column_mapping_mode
    if old is None or _layout(new) != _layout(old):
        try:
            check_schema(
                schema, column_mapping=mode != "none", partition_columns=new.partition_columns
            )
        except InvalidSchemaError as error:
            raise reject_for(Rule.SCHEMA, error) from error
        if mode != "none":
            _check_mapping(schema, new)
    try:
        check_plan(new)
    except ConfigurationError as error:
        raise reject_for(Rule.PROPERTIES, error) from error
    if old is not None:
        _check_mapping_change(new, old, mode, replaces_all=replaces_all)
        if not replaces_all:
            _check_change(new, old, schema, mode)
            _check_new_constraints(new, old, enforced)


def _check_identity(new: Metadata, old: Metadata | None, *, replaces_all: bool) -> None:
    if not new.id:
        why = "the id is empty"
    elif new.format_provider != "parquet":
        why = f"the format is {new.format_provider!r}, and Delta tables consist of parquet files"
    elif old is not None and new.id != old.id and not replaces_all:
        why = f"the id would change from {old.id!r} to {new.id!r}"
    else:
        return
    raise reject(
        Rule.TABLE_ID,
        "The metaData does not identify the table",
        why=why,
        fix="Start from the present metaData of the table and change only what should differ",
    )


def _check_properties(new: Metadata, old: Metadata | None) -> None:
    # Properties of an imported table that this release does not know may stay, not come.
    before = {} if old is None else old.configuration
    changed = {name: text for name, text in new.configuration.items() if before.get(name) != text}
    try:
        check_properties(changed)
        if "delta.isolationLevel" in changed:
            isolation_of(new)
    except ConfigurationError as error:
        raise reject_for(Rule.PROPERTIES, error) from error


def _schema(metadata: Metadata) -> StructType:
    if metadata.schema_string is None:
        raise reject(Rule.SCHEMA, "The metaData has no schema", fix="Write its schemaString")
    try:
        return metadata.schema
    except InvalidSchemaError as error:
        raise reject_for(Rule.SCHEMA, error) from error


def _layout(metadata: Metadata) -> tuple[str | None, tuple[str, ...], str, int]:
    properties = TableProperties(metadata.configuration)
    return (
        metadata.schema_string,
        metadata.partition_columns,
        properties.column_mapping_mode,
        properties.column_mapping_max_id,
    )


def _check_mapping(schema: StructType, metadata: Metadata) -> None:
    seen: dict[int, str] = {}
    names: dict[str, str] = {}
    for field in schema.all_fields():
        number, name = column_id(field), field.metadata.get(PHYSICAL_NAME)
        if number is None or not isinstance(name, str) or not name:
            key = COLUMN_ID if number is None else PHYSICAL_NAME
            raise _mapping(f"the field {field.name!r} has no {key}")
        if seen.setdefault(number, field.name) is not field.name:
            raise _mapping(f"{seen[number]!r} and {field.name!r} share the column id {number}")
    for field in schema.fields:
        name = physical_name(field)
        if names.setdefault(name, field.name) is not field.name:
            raise _mapping(f"{names[name]!r} and {field.name!r} share the name {name!r} in files")
    highest = TableProperties(metadata.configuration).column_mapping_max_id
    if seen and highest < max(seen):
        raise _mapping(f"{_MAX_ID} is {highest}, and the schema has the column id {max(seen)}")


def _check_mapping_change(new: Metadata, old: Metadata, mode: str, *, replaces_all: bool) -> None:
    before, after = TableProperties(old.configuration), TableProperties(new.configuration)
    old_mode = before.column_mapping_mode
    if mode != old_mode and (old_mode, mode) != ("none", "name") and not replaces_all:
        raise _mapping(
            f"the mode would change from {old_mode} to {mode}, and only none to name is possible"
        )
    if mode == "none":
        return
    if after.column_mapping_max_id < before.column_mapping_max_id:
        raise _mapping(
            f"{_MAX_ID} would fall from {before.column_mapping_max_id} "
            f"to {after.column_mapping_max_id}"
        )
    if old_mode == "none" or replaces_all:
        return
    known = {column_id(field) for field in old.schema.all_fields()}
    for field in new.schema.all_fields():
        number = column_id(field)
        if number is not None and number not in known and number <= before.column_mapping_max_id:
            raise _mapping(
                f"the new field {field.name!r} has the column id {number}, which was used before "
                f"({_MAX_ID} is {before.column_mapping_max_id})"
            )


def _mapping(why: str) -> Exception:
    return reject(
        Rule.COLUMN_MAPPING,
        "The column mapping of the table is not valid",
        why=why,
        fix="Give new columns new ids above delta.columnMapping.maxColumnId, raise that to the "
        "highest, and leave the ids and physical names of the others alone",
    )


def _check_change(new: Metadata, old: Metadata, schema: StructType, mode: str) -> None:
    before = old.schema
    old_mode = TableProperties(old.configuration).column_mapping_mode
    if _partition_names(old, before, old_mode) != _partition_names(new, schema, mode):
        raise reject(
            Rule.PARTITION_COLUMNS,
            f"The partition columns cannot change from {list(old.partition_columns)} "
            f"to {list(new.partition_columns)}",
            why="live files lie in the old partitions",
            fix=f"Keep them, {_REPLACE}",
        )
    if old.schema_string == new.schema_string:
        return
    how = Comparison(
        mapped_before=old_mode != "none",
        mapped_after=mode != "none",
        widening=TableProperties(new.configuration).enable_type_widening,
    )
    problem = schema_problem(before, schema, how)
    if problem:
        raise reject(
            Rule.SCHEMA_CHANGE,
            "The schema cannot change like this while files of the old schema are live",
            why=problem,
            fix=f"Keep the column as it is, {_REPLACE}",
        )


def _partition_names(metadata: Metadata, schema: StructType, mode: str) -> list[str]:
    if mode == "none":
        return list(metadata.partition_columns)
    return [physical_name(schema.field(name)) for name in metadata.partition_columns]


def _check_new_constraints(new: Metadata, old: Metadata, enforced: frozenset[str]) -> None:
    if "checkConstraints" in enforced:
        return
    for name, text in new.configuration.items():
        if name.startswith(CONSTRAINT_PREFIX) and old.configuration.get(name) != text:
            raise reject(
                Rule.CHECK_CONSTRAINTS,
                f"The CHECK constraint {name.removeprefix(CONSTRAINT_PREFIX)!r} cannot be added",
                why=f"the rows of the table were not checked against {text!r}",
                fix="Verify them, and state it: enforced={'checkConstraints'}",
            )
