"""New tables as they are put together, as in `delta.tables.DeltaTableBuilder`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.errors import ConfigurationError, TableNotFoundError
from deltalakedb.spark.generated import EXPRESSION
from deltalakedb.spark.scan import spark_types
from deltalakedb.spark.session import default_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    from deltalakedb.lake import Lake
    from deltalakedb.spark.table import DeltaTable
    from deltalakedb.table import Table


How: TypeAlias = Literal["create", "create if missing", "replace", "create or replace"]
"""What becomes of a table that is there already, or is not."""


class DeltaTableBuilder:
    """A table to be created or replaced; `execute()` does it, in one version."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        made: Callable[[Table], DeltaTable],
        *,
        how: How,
    ) -> None:
        from pyspark.sql.types import StructType

        self._spark = spark
        self._lake = lake
        self._made = made
        self._how = how
        self._name: str | None = None
        self._location: str | None = None
        self._comment: str | None = None
        self._schema = StructType()
        self._partitions: list[str] = []
        self._clusters: list[str] = []
        self._properties: dict[str, str] = {}

    def tableName(self, identifier: str) -> DeltaTableBuilder:
        """Its name in the catalog."""
        self._name = identifier
        return self

    def location(self, location: str) -> DeltaTableBuilder:
        """Where its files will lie."""
        self._location = location
        return self

    def comment(self, comment: str) -> DeltaTableBuilder:
        """What it is about."""
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
        """A column; `generatedAlwaysAs` is an expression of others that its values follow from.

        Identity columns, which Delta takes in the same places, are refused.
        """
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
        kind = _type_of(colName, dataType) if isinstance(dataType, str) else dataType
        self._schema = self._schema.add(colName, kind, nullable, metadata)
        return self

    def addColumns(self, cols: StructType | Iterable[StructField]) -> DeltaTableBuilder:
        """Columns as some schema has them."""
        for field in getattr(cols, "fields", cols):
            self._schema = self._schema.add(field)
        return self

    def partitionedBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Its partition columns."""
        self._partitions = _names(cols)
        return self

    def clusterBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Its clustering columns."""
        self._clusters = _names(cols)
        return self

    def property(self, key: str, value: str) -> DeltaTableBuilder:
        """A table property."""
        self._properties[key] = value
        return self

    def execute(self) -> DeltaTable:
        """Create or replace it."""
        there = self._there()
        if there is not None and self._how == "create if missing":
            return self._made(there)
        self._check_generated()
        parts: dict[str, Any] = {
            "schema": self._schema,
            "partition_by": self._partitions,
            "cluster_by": self._clusters,
            "properties": {**default_properties(self._spark), **self._properties},
            "description": self._comment,
        }
        if there is not None and self._how != "create":
            there.replace(**parts, operation=f"{self._how.upper()} TABLE")
            return self._made(there)
        if self._how == "replace":
            raise TableNotFoundError(
                f"There is no table {self._named()!r} to replace",
                fix="Use createOrReplace, or create",
            )
        if self._location is None:
            raise ConfigurationError(
                "It is not said where the table will lie", fix="Add .location('…')"
            )
        return self._made(self._lake.create_table(self._named(), location=self._location, **parts))

    def _named(self) -> str:
        from deltalakedb.storage import normalise_location
        from deltalakedb.transaction.take_over import default_name

        if self._name is None and self._location is None:
            raise ConfigurationError("The table has no name", fix="Add .tableName('sales.orders')")
        return self._name or default_name(normalise_location(self._location or ""))

    def _there(self) -> Table | None:
        """The table of that name, if it lies where it was said to."""
        from deltalakedb.storage import normalise_location

        try:
            found = self._lake.table(self._named())
        except TableNotFoundError:
            return None
        if self._location is not None and normalise_location(self._location) != found.location:
            if self._how == "create if missing":
                return found
            raise ConfigurationError(
                f"Table {found.name!r} lies at {found.location}, and not at {self._location}",
                fix="Leave the location out, or choose another name",
            )
        return found

    def _check_generated(self) -> None:
        """Expressions are resolved by Spark once, before rows depend on them."""
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F  # noqa: N812 - its usual name
        from pyspark.sql.types import StructType

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
                made = empty.withColumn(field.name, F.expr(text).cast(types[field.name]))
                _ = made.schema
                known: Any = getattr(made, "_jdf", None)
                if known is None or known.queryExecution().analyzed().deterministic():
                    continue
                why = "It gives another value each time"
            except PySparkException as error:
                why = str(error).strip().partition("\n")[0]
            raise ConfigurationError(
                f"Column {field.name!r} cannot be generated as {text!r}",
                why=why,
                fix="Write an expression of columns of the table that are not generated",
            )


def _type_of(column: str, text: str) -> DataType:
    """A type as SQL writes it, e.g. "INT" or "struct<a: bigint>"."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import DataType

    try:
        return DataType.fromDDL(text)
    except ParseException as error:
        raise ConfigurationError(
            f"Column {column!r} cannot be of the type {text!r}",
            why=str(error).strip().partition("\n")[0],
            fix="Write a type of SQL, e.g. 'bigint' or 'struct<a: int>'",
        ) from None


def _names(cols: Iterable[str | list[str] | tuple[str, ...]]) -> list[str]:
    return [name for one in cols for name in ([one] if isinstance(one, str) else one)]
