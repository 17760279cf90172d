"""Changes of a table itself (its properties, columns, protocol, name) as commits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from deltalakedb.actions import Action, Metadata, Protocol
from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.actions.clustering import (
    FEATURE,
    check_still_covered,
    clustering_domain,
    clustering_paths,
    dotted,
)
from deltalakedb.actions.datatypes import (
    COLUMN_ID,
    LONG,
    PHYSICAL_NAME,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    schema_to_json,
    with_nulls,
)
from deltalakedb.actions.features import protocol_for, required_features, upgrade
from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.actions.planning import plan_of, plan_text
from deltalakedb.actions.properties import (
    CONSTRAINT_PREFIX,
    TableProperties,
    check_properties,
)
from deltalakedb.actions.schema_checks import assign_column_mapping
from deltalakedb.arguments import optional_text, require_names, require_texts, short_repr
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import (
    CommitRejectedError,
    ConditionSyntaxError,
    ConfigurationError,
    Fix,
    InvalidArgumentError,
    InvalidConditionError,
    TableExistsError,
    UnsupportedConditionError,
)
from deltalakedb.storage import local_path
from deltalakedb.store import TableRecord
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Commit, Guarantees, Operation, TableState

_ICT = "delta.enableInCommitTimestamps"
ROW_COLUMNS: Final = {
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col",
}
_STATISTICS = {"delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns"}
_MAX_ID = "delta.columnMapping.maxColumnId"


def create(
    name: str,
    location: str,
    schema: Any,
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    now: int,
) -> Commit:
    """A new table."""
    partition_by = require_texts("partition_by", partition_by)
    cluster_by = require_names("cluster_by", cluster_by)
    optional_text("description", description)
    columns, configuration = _mapped(
        schema_from_any(schema), new_configuration(properties), new_name=_random_name
    )
    check_constraints(configuration, columns, partition_by)
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=schema_to_json(columns),
        partition_columns=tuple(partition_by),
        configuration=configuration,
        name=name,
        description=description,
        created_time=now,
    )
    clustering = [clustering_domain(metadata, cluster_by)] if cluster_by else []
    protocol = protocol_for(metadata, [FEATURE] if cluster_by else [])
    return Commit(
        table=record_of(metadata, protocol, location, now),
        base=None,
        actions=(protocol, metadata, *clustering),
        operation=Operation(
            "CREATE TABLE",
            {
                "isManaged": "false",
                "description": description,
                "partitionBy": dumps(list(partition_by)),
                "clusterBy": dumps(list(cluster_by)) if cluster_by else None,
                "properties": dumps(configuration),
            },
        ),
    )


def refuse_delta_log(location: str) -> None:
    """Refuse a folder that holds a Delta table.

    Object stores may be slow and are not asked: there the first publication detects it.
    """
    folder = local_path(location)
    log = None if folder is None else folder / "_delta_log"
    if log is not None and log.is_dir() and any(log.iterdir()):
        raise TableExistsError(
            f"There is a Delta table at {location} already",
            why="It has a _delta_log, which a new table would contradict",
            fix=f"Import it with its history, {Fix('lake.import_table', ...)}, or use another "
            "location",
        )


def new_configuration(properties: Mapping[str, str] | None) -> dict[str, str]:
    """The properties of a new table: in-commit timestamps are on unless they say otherwise."""
    texts = as_text({} if properties is None else properties)
    check_properties(texts)
    return with_row_columns({_ICT: "true", **texts})


def check_constraints(
    configuration: Mapping[str, str], schema: StructType, partition_columns: Sequence[str]
) -> None:
    """Refuse CHECK constraints that are no conditions on these columns: no row could be written.

    A condition that only Spark can evaluate is accepted.
    """
    for name, text in TableProperties(configuration).constraints.items():
        try:
            parse_where(text, schema, partition_columns)
        except InvalidConditionError as error:
            unsupported = isinstance(error, UnsupportedConditionError)
            if unsupported and not isinstance(error, ConditionSyntaxError):
                continue
            raise InvalidConditionError(
                f"The CHECK constraint {name!r} ({text}) cannot be used",
                why=str(error),
                fix=f"Correct the property {CONSTRAINT_PREFIX}{name}",
            ) from error


def with_row_columns(configuration: Mapping[str, str]) -> dict[str, str]:
    """Add names for the columns in which engines keep the ids of rewritten rows."""
    if not TableProperties(configuration).enable_row_tracking:
        return dict(configuration)
    names = {name: f"{prefix}-{uuid.uuid4()}" for name, prefix in ROW_COLUMNS.items()}
    return {**names, **configuration}


def record_of(metadata: Metadata, protocol: Protocol, location: str, now: int) -> TableRecord:
    """The row of a new table in the catalog: its id and name are those of its metadata."""
    check_name(metadata.name)
    assert metadata.name is not None  # noqa: S101 - just checked
    return TableRecord(
        table_id=metadata.id,
        name=metadata.name,
        location=location,
        protocol_min_reader=protocol.min_reader_version,
        protocol_min_writer=protocol.min_writer_version,
        properties=metadata.configuration,
        created_at=now,
        updated_at=now,
        plan=plan_text(plan_of(metadata)),
    )


def set_properties(
    table: TableRecord,
    base: TableState,
    properties: Mapping[str, str],
    domains: Callable[[], Mapping[str, str]] = dict,
    *,
    verified: bool = False,
) -> Commit:
    """Properties set or replaced; the protocol is upgraded where one of them needs it.

    `domains` returns the metadata domains of the table. With `verified`, all rows of `base` fulfil
    its CHECK constraints.
    """
    changed = as_text(properties)
    _require_any(changed, "property to set", "Pass names and values, e.g. {'owner': 'me'}")
    check_properties(changed)
    configuration: Mapping[str, str] = with_row_columns({**base.metadata.configuration, **changed})
    metadata = replace(base.metadata, configuration=configuration)
    check_constraints(changed, metadata.schema, metadata.partition_columns)
    if changed.keys() & _STATISTICS:
        check_still_covered(metadata, domains())
    before, after = TableProperties(base.metadata.configuration), TableProperties(configuration)
    tracks = after.enable_row_tracking and not before.enable_row_tracking
    if tracks and base.counts.live_files:
        raise CommitRejectedError(
            f"Row tracking cannot be switched on for table {table.name!r}",
            rule="row-tracking",
            why=f"Its {base.counts.live_files} files have no row ids, and assigning them "
            "afterwards is not supported",
            fix="Switch it on while the table is empty, e.g. in create_table",
        )
    if before.column_mapping_mode == "none":
        # Existing files have their columns by these names.
        schema, configuration = _mapped(
            base.metadata.schema, configuration, new_name=lambda field: field.name
        )
        if schema != base.metadata.schema:
            metadata = replace(
                metadata, configuration=configuration, schema_string=schema_to_json(schema)
            )
    return Commit(
        table=table,
        base=base,
        actions=_with_protocol(base, metadata),
        operation=Operation("SET TBLPROPERTIES", {"properties": dumps(changed)}),
        # Files that others add meanwhile would have no row ids, or unchecked rows.
        read=ReadSet(whole_table=tracks or verified),
        guarantees=Guarantees(frozenset({"checkConstraints"} if verified else ())),
    )


def unset_properties(
    table: TableRecord, base: TableState, names: Iterable[str], *, if_exists: bool
) -> Commit:
    """Properties removed."""
    fix = "Pass a list of names, e.g. ['owner']"
    wanted = list(dict.fromkeys(require_texts("names", names, fix=fix)))
    _require_any(wanted, "property to unset", fix)
    configuration = dict(base.metadata.configuration)
    for name in wanted:
        if name not in configuration and not if_exists:
            raise ConfigurationError(
                f"Table {table.name!r} has no property {name!r} to unset",
                fix="Check its spelling, or pass if_exists=True",
            )
        configuration.pop(name, None)
    return Commit(
        table=table,
        base=base,
        actions=(replace(base.metadata, configuration=configuration),),
        operation=Operation(
            "UNSET TBLPROPERTIES", {"properties": dumps(wanted), "ifExists": if_exists}
        ),
    )


def add_columns(table: TableRecord, base: TableState, columns: Any) -> Commit:
    """Columns added at the end; they must allow null, because existing files lack them."""
    added = schema_from_any(columns).fields
    _require_any(added, "column to add", "Pass a schema of the new columns")
    schema = base.metadata.schema
    for field in added:
        if not field.nullable:
            raise CommitRejectedError(
                f"Column {field.name!r} cannot be added as NOT NULL",
                rule="added-column-nullable",
                why="The files of the table have no values for it",
                fix="Add it as nullable",
            )
        if schema.get(field.name) is not None:
            raise CommitRejectedError(
                f"Table {table.name!r} has a column {field.name!r} already",
                rule="column-names-unique",
                why="Names of columns are unique, ignoring case",
                fix="Choose another name",
            )
    after, configuration = _mapped(
        StructType((*schema.fields, *added)), base.metadata.configuration, new_name=_random_name
    )
    metadata = replace(
        base.metadata, schema_string=schema_to_json(after), configuration=configuration
    )
    fields = loads(schema_to_json(StructType(tuple(added))))["fields"]
    return Commit(
        table=table,
        base=base,
        actions=_with_protocol(base, metadata),
        operation=Operation(
            "ADD COLUMNS", {"columns": dumps([{"column": field} for field in fields])}
        ),
    )


def widen_columns(base: TableState, columns: StructType) -> tuple[Action, ...]:
    """Columns added that a table lacks, and fields that its structs lack; nothing else changes."""
    after = _widened(base.metadata.schema, columns)
    if after == base.metadata.schema:
        return ()
    mapped, configuration = _mapped(after, base.metadata.configuration, new_name=_random_name)
    metadata = replace(
        base.metadata, schema_string=schema_to_json(mapped), configuration=configuration
    )
    return _with_protocol(base, metadata)


def _widened(struct: StructType, other: StructType) -> StructType:
    fields = [
        field
        if (more := other.get(field.name)) is None
        else replace(field, type=_widened_type(field.type, more.type))
        for field in struct.fields
    ]
    added = [_added(f) for f in other.fields if struct.get(f.name) is None]
    return replace(struct, fields=(*fields, *added))


def _added(field: StructField) -> StructField:
    """A field of rows as a new column, without Delta's own metadata, which is of another table."""
    own = {key: value for key, value in field.metadata.items() if not key.startswith("delta.")}
    return StructField(field.name, _loose(field.type), metadata=own)


def _loose(kind: DataType) -> DataType:
    """The type with nulls allowed everywhere: later rows may have them."""
    if isinstance(kind, StructType):
        return replace(kind, fields=tuple(map(_added, kind.fields)))
    if isinstance(kind, ArrayType):
        return replace(kind, element_type=_loose(kind.element_type), contains_null=True)
    if isinstance(kind, MapType):
        return replace(kind, value_type=_loose(kind.value_type), value_contains_null=True)
    return kind


def _widened_type(kind: DataType, other: DataType) -> DataType:
    if isinstance(kind, StructType) and isinstance(other, StructType):
        return _widened(kind, other)
    if isinstance(kind, ArrayType) and isinstance(other, ArrayType):
        element = _widened_type(kind.element_type, other.element_type)
        return replace(kind, element_type=element)
    if isinstance(kind, MapType) and isinstance(other, MapType):
        return replace(kind, value_type=_widened_type(kind.value_type, other.value_type))
    return kind


def replace_columns(
    base: TableState, columns: Any, partition_by: Sequence[str] | None = None
) -> tuple[Action, ...]:
    """The columns of a table replaced by others; the commit has to replace all files too.

    Partition columns stay unless `partition_by` names others. They have to be among the new
    columns. Nulls are allowed everywhere.
    """
    schema = with_nulls(schema_from_any(columns))
    before = base.metadata.partition_columns
    partitions = before if partition_by is None else _spelled(partition_by, schema)
    missing = [name for name in partitions if schema.get(name) is None]
    if missing:
        raise CommitRejectedError(
            f"The new schema has no column {missing[0]!r}",
            rule="partition-columns",
            why="The table is partitioned by it",
            fix="Keep the column, or say by which columns the table is partitioned from now on",
        )
    after, configuration = _mapped(schema, base.metadata.configuration, new_name=_random_name)
    metadata = replace(
        base.metadata,
        schema_string=schema_to_json(after),
        partition_columns=partitions,
        configuration=configuration,
    )
    if after == base.metadata.schema and partitions == before:
        return ()
    return _with_protocol(base, metadata)


def _spelled(names: Sequence[str], schema: StructType) -> tuple[str, ...]:
    """Names of columns in the case of the schema."""
    return tuple(name if (f := schema.get(name)) is None else f.name for name in names)


def cluster_by(
    table: TableRecord, base: TableState, columns: Sequence[str], domains: Mapping[str, str]
) -> Commit:
    """Other clustering columns, or none."""
    domain = clustering_domain(base.metadata, columns)
    before = clustering_paths(base.metadata, domains) or []
    actions: list[Action] = [domain]
    if FEATURE not in required_features(base.protocol):
        actions.insert(0, upgrade(base.protocol, [FEATURE]))
    return Commit(
        table=table,
        base=base,
        actions=tuple(actions),
        operation=Operation(
            "CLUSTER BY",
            {
                "oldClusteringColumns": ",".join(map(dotted, before)),
                "newClusteringColumns": ",".join(columns),
            },
        ),
    )


def upgrade_protocol(table: TableRecord, base: TableState, features: Iterable[str]) -> Commit:
    """Table features added to the protocol; those that it has already stay."""
    wanted = list(features)
    _require_any(wanted, "feature to add", "Name one, e.g. 'deletionVectors'")
    protocol = upgrade(base.protocol, wanted)
    fields = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": list(protocol.reader_features or ()),
        "writerFeatures": list(protocol.writer_features or ()),
    }
    return Commit(
        table=table,
        base=base,
        actions=(protocol,),
        operation=Operation("UPGRADE PROTOCOL", {"newProtocol": dumps(fields)}),
    )


def rename(table: TableRecord, base: TableState, name: str) -> Commit:
    """Another name, in the registry and in the metadata."""
    check_name(name)
    if name == table.name:
        raise TableExistsError(f"Table {name!r} has that name already", fix="Choose another name")
    return Commit(
        table=table,
        base=base,
        actions=(replace(base.metadata, name=name),),
        operation=Operation("RENAME TABLE", {"from": table.name, "to": name}),
        renames_to=name,
    )


def check_name(name: object) -> None:
    """Refuse a name that is blank, or has control characters or spaces around it."""
    if (
        not isinstance(name, str)
        or not name.strip()
        or name != name.strip()
        or not name.isprintable()
    ):
        raise InvalidArgumentError(
            f"{name!r} is no name for a table",
            why="It is empty, or has spaces around it or control characters in it",
            fix="Use a name such as 'sales.orders'",
        )


def _require_any(items: Collection[object], what: str, fix: str) -> None:
    """Refuse a change of nothing, which would be a version like the one before."""
    if not items:
        raise ConfigurationError(f"There is no {what}", fix=fix)


def _mapped(
    schema: StructType,
    configuration: Mapping[str, str],
    *,
    new_name: Callable[[StructField], str],
) -> tuple[StructType, Mapping[str, str]]:
    """The schema with column ids and physical names, where the table has column mapping."""
    properties = TableProperties(configuration)
    if properties.column_mapping_mode == "none":
        return schema, configuration
    # Represents dropped columns, whose ids must not be used again.
    gone = StructField(
        "", LONG, metadata={COLUMN_ID: properties.column_mapping_max_id, PHYSICAL_NAME: ""}
    )
    mapped, highest = assign_column_mapping(StructType((*schema.fields, gone)), new_name=new_name)
    return StructType(mapped.fields[:-1]), {**configuration, _MAX_ID: str(highest)}


def _random_name(_: StructField) -> str:
    """A unique name for a column in files."""
    return f"col-{uuid.uuid4()}"


def _with_protocol(base: TableState, metadata: Metadata) -> tuple[Action, ...]:
    needed = required_features(protocol_for(metadata)) - required_features(base.protocol)
    if not needed:
        return (metadata,)
    protocol: Protocol = upgrade(base.protocol, needed)
    return (protocol, metadata)


def mapped_columns(schema: Any, configuration: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A schema of new columns as JSON, and the properties that go with it."""
    columns, after = _mapped(schema_from_any(schema), configuration, new_name=_random_name)
    return schema_to_json(columns), dict(after)


def as_text(properties: object) -> dict[str, str]:
    """Table properties as text."""
    if not isinstance(properties, Mapping) or not all(
        isinstance(k, str) and k.strip() and isinstance(v, (str, bool, int, float))
        for k, v in properties.items()
    ):
        raise InvalidArgumentError(
            f"{short_repr(properties)} are no table properties",
            why="Properties are names with values that are text, numbers or True and False",
            fix="Pass a mapping, e.g. {'delta.appendOnly': 'true'}",
        )
    return {
        key: value if isinstance(value, str) else dumps(value) for key, value in properties.items()
    }
