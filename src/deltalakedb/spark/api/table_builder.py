"""The builder of a new table, as in `delta.tables.DeltaTableBuilder`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import DataType, StructField, StructType

from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.arguments import optional_text, refuse, require_flag, require_kind, require_text
from deltalakedb.errors import ConfigurationError, TableNotFoundError
from deltalakedb.importing.import_table import default_name
from deltalakedb.lake import Lake
from deltalakedb.spark.api.arguments import column_names, parse_ddl
from deltalakedb.spark.api.errors import analysis_errors
from deltalakedb.spark.api.session import default_properties
from deltalakedb.spark.io.generated import EXPRESSION
from deltalakedb.spark.io.scan import spark_types
from deltalakedb.spark.io.spark_internals import analyzed_plan, is_connect
from deltalakedb.storage import normalise_location
from deltalakedb.store.table_lookup import table_exists
from deltalakedb.table import Table

if TYPE_CHECKING:
    from deltalakedb.spark.api.table import DeltaTable


How: TypeAlias = Literal["create", "create if missing", "replace", "create or replace"]
"""Whether to create or replace a table, depending on whether it exists."""


class DeltaTableBuilder:
    """The builder of a table; `execute()` creates or replaces it, in one commit."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        result: Callable[[Table], DeltaTable],
        *,
        how: How,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._result = result
        self._how = how
        self._name: str | None = None
        self._location: str | None = None
        self._comment: str | None = None
        self._schema = StructType()
        self._partitions: list[str] = []
        self._clusters: list[str] = []
        self._properties: dict[str, str] = {}

    def tableName(self, identifier: str) -> DeltaTableBuilder:
        """Set the name in the catalog."""
        self._name = require_text("identifier", identifier)
        return self

    def location(self, location: str) -> DeltaTableBuilder:
        """Set the location of the files."""
        self._location = require_text("location", location)
        return self

    def comment(self, comment: str) -> DeltaTableBuilder:
        """Set the description."""
        require_kind("comment", comment, str, "a string")
        self._comment = comment
        return self

    def addColumn(  # noqa: PLR0917 - Delta's
        self,
        colName: str,
        dataType: str | DataType,
        nullable: bool = True,  # noqa: FBT001, FBT002 - Delta's
        generatedAlwaysAs: str | None = None,
        generatedByDefaultAs: Any = None,
        comment: str | None = None,
    ) -> DeltaTableBuilder:
        """Add a column; `generatedAlwaysAs` is an expression of others that computes its values.

        Identity columns, which Delta takes in the same arguments, are refused.
        """
        require_text("colName", colName)
        require_flag("nullable", nullable)
        optional_text("comment", comment)
        _check_generator("generatedAlwaysAs", generatedAlwaysAs, or_text=True)
        _check_generator("generatedByDefaultAs", generatedByDefaultAs)
        identity = not isinstance(generatedAlwaysAs, (str, type(None)))
        if identity or generatedByDefaultAs is not None:
            raise ConfigurationError(
                f"Column {colName!r} cannot be an identity column",
                why="Such columns can be read here, and not written",
                fix="Pass an expression of other columns, e.g. 'CAST(at AS DATE)'",
            )
        metadata = {} if generatedAlwaysAs is None else {EXPRESSION: generatedAlwaysAs}
        if comment is not None:
            metadata["comment"] = comment
        kind = _type_of(colName, dataType)
        self._schema = self._schema.add(colName, kind, nullable, metadata)
        return self

    def addColumns(self, cols: StructType | Iterable[StructField]) -> DeltaTableBuilder:
        """Add the columns of a schema."""
        for field in _fields(cols):
            self._schema = self._schema.add(field)
        return self

    def partitionedBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Set the partition columns."""
        self._partitions = column_names("cols", cols)
        return self

    def clusterBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Set the clustering columns."""
        self._clusters = column_names("cols", cols)
        return self

    def property(self, key: str, value: str) -> DeltaTableBuilder:
        """Set a table property."""
        require_kind("value", value, str, "a string")
        self._properties[require_text("key", key)] = value
        return self

    @analysis_errors()
    def execute(self) -> DeltaTable:
        """Create or replace the table."""
        table = self._existing()
        if table is not None and self._how == "create if missing":
            return self._result(table)
        self._check_generated()
        parts: dict[str, Any] = {
            "schema": self._schema,
            "partition_by": self._partitions,
            "cluster_by": self._clusters,
            "properties": {**default_properties(self._spark), **self._properties},
            "description": self._comment,
        }
        if table is not None and self._how == "create":
            raise table_exists(self._table_name(), "", table.name, table.location)
        if table is not None:
            table.replace(**parts, operation=f"{self._how.upper()} TABLE")
            return self._result(table)
        if self._how == "replace":
            raise TableNotFoundError(
                f"There is no table {self._table_name()!r} to replace",
                fix="Use createOrReplace, or create",
            )
        name = self._table_name()
        return self._result(self._lake.create_table(name, location=self._location, **parts))

    def _table_name(self) -> str:
        if self._name is None and self._location is None:
            raise ConfigurationError("The table has no name", fix="Add .tableName('sales.orders')")
        return self._name or default_name(normalise_location(self._location or ""))

    def _existing(self) -> Table | None:
        """The table of that name; refuse to replace one at another location."""
        try:
            table = self._lake.table(self._table_name())
        except TableNotFoundError:
            return None
        moves = self._location is not None and normalise_location(self._location) != table.location
        if moves and self._how in ("replace", "create or replace"):
            raise ConfigurationError(
                f"The location of table {table.name!r} is {table.location}, and not "
                f"{self._location}",
                fix="Leave the location out, or choose another name",
            )
        return table

    def _check_generated(self) -> None:
        """Let Spark resolve the expressions of generated columns before there are rows."""
        types = spark_types(schema_from_any(self._schema))
        plain = StructType()
        for field in self._schema.fields:
            if EXPRESSION not in field.metadata:
                plain = plain.add(field.name, types[field.name])
        empty = self._spark.createDataFrame([], plain)
        for field in self._schema.fields:
            if EXPRESSION not in field.metadata:
                continue
            text = field.metadata[EXPRESSION]
            try:
                frame = empty.withColumn(field.name, F.expr(text).cast(types[field.name]))
                _ = frame.schema
                if is_connect(frame) or analyzed_plan(frame).deterministic():
                    continue
                why = "It has another value each time"
            except PySparkException as error:
                why = str(error).strip().partition("\n")[0]
            raise ConfigurationError(
                f"Column {field.name!r} cannot be generated as {text!r}",
                why=why,
                fix="Write an expression of columns of the table that are not generated",
            )


def _type_of(column: str, value: object) -> DataType:
    """A type of Spark, or one as SQL writes it, e.g. "INT" or "struct<a: bigint>"."""
    if isinstance(value, DataType):
        return value
    text = require_text("dataType", value, fix="Pass a type, e.g. 'bigint' or LongType()")
    what = f"Column {column!r} cannot be of the type {text!r}"
    fix = "Write a type of SQL, e.g. 'bigint' or 'struct<a: int>'"
    parsed: DataType = parse_ddl(DataType, text, what, fix)
    return parsed


def _fields(cols: object) -> list[StructField]:
    fields = cols.fields if isinstance(cols, StructType) else cols
    if not isinstance(fields, Iterable) or isinstance(fields, (str, bytes)):
        refuse("cols", cols, "a StructType or a list of StructFields")
    listed = list(fields)
    for field in listed:
        require_kind("Each of cols", field, StructField, "a StructField")
    return listed


def _check_generator(name: str, value: object, *, or_text: bool = False) -> None:
    """Refuse a value that is no expression and no IdentityGenerator of Delta, by its attributes."""
    if value is None or (or_text and isinstance(value, str) and value.strip()):
        return
    if not hasattr(value, "start") or not hasattr(value, "step"):
        kind = "an expression in SQL" if or_text else "an IdentityGenerator"
        refuse(name, value, kind)
