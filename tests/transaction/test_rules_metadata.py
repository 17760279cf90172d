"""One test a rule for the metaData and the protocol of a commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deltalakedb.actions import Action, Metadata, Protocol
from deltalakedb.errors import CommitRejectedError, UnsupportedFeatureError
from deltalakedb.transaction import Rule, validate_commit
from transaction.examples import LEGACY, column, features, mapped, schema, table

ROOMY = features(
    "appendOnly", "changeDataFeed", "domainMetadata", reader=("columnMapping", "typeWidening")
)


def accepted(new: Action, old: Metadata | None = None, **options: Any) -> None:
    """Commit `new` to a table with the metadata `old`."""
    given: dict[str, Any] = {"protocol": ROOMY, **options}
    validate_commit([new], metadata=old or table(), **given)


def refused(rule: Rule, new: Action, old: Metadata | None = None, **options: Any) -> str:
    with pytest.raises(CommitRejectedError) as caught:
        accepted(new, old, **options)
    assert caught.value.rule == rule.value, str(caught.value)
    return str(caught.value)


def created(metadata: Metadata, protocol: Protocol = ROOMY) -> None:
    validate_commit([protocol, metadata], metadata=None, protocol=None)


def not_created(rule: Rule, metadata: Metadata, protocol: Protocol = ROOMY) -> str:
    with pytest.raises(CommitRejectedError) as caught:
        created(metadata, protocol)
    assert caught.value.rule == rule.value, str(caught.value)
    return str(caught.value)


class TestSchema:
    def test_valid_schemas(self) -> None:
        created(table())
        created(replace(table(), schema_string=schema()))
        created(table(column("id"), column("day", "date"), by=("day",)))

    @pytest.mark.parametrize(
        "metadata",
        [
            replace(table(), schema_string=None),
            replace(table(), schema_string="{"),
            replace(table(), schema_string='"long"'),
            table(column("a"), column("A")),
            table(column("a b")),
            table(column("a", "decimal(50,1)")),
            table(column("a", "money")),
            table(by=("nowhere",)),
            table(column("a"), by=("a",)),
            table(column("a"), column("l", {"type": "struct", "fields": []}), by=("l",)),
        ],
    )
    def test_invalid_schemas(self, metadata: Metadata) -> None:
        not_created(Rule.SCHEMA, metadata)

    def test_an_odd_schema_of_an_imported_table_may_stay(self) -> None:
        odd = table(column("a b"))
        accepted(replace(odd, description="news"), odd)


class TestIdentity:
    def test_a_table_keeps_its_id_unless_replaced(self) -> None:
        accepted(replace(table(), id="other"), replaces_all=True)
        refused(Rule.TABLE_ID, replace(table(), id="other"))
        not_created(Rule.TABLE_ID, replace(table(), id=""))

    def test_tables_are_made_of_parquet(self) -> None:
        not_created(Rule.TABLE_ID, replace(table(), format_provider="orc"))


class TestProperties:
    def test_valid_properties(self) -> None:
        created(table(properties={"delta.checkpointInterval": "5", "mine": "anything"}))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("delta.checkpointInterval", "often"),
            ("delta.nonsense", "1"),
            ("delta.isolationLevel", "SnapshotIsolation"),
            ("delta.isolationLevel", "Chaos"),
            ("delta.feature.appendOnly", "maybe"),
        ],
    )
    def test_invalid_properties_are_named(self, name: str, value: str) -> None:
        assert name in not_created(Rule.PROPERTIES, table(properties={name: value}))

    def test_an_unknown_property_of_an_imported_table_may_stay(self) -> None:
        old = table(properties={"delta.ofAnotherEngine": "1"})
        accepted(replace(old, description="news"), old)
        refused(Rule.PROPERTIES, table(properties={"delta.ofAnotherEngine": "2"}), old)


WIDE = {"delta.enableTypeWidening": "true"}


def _changed(of_type: str, *, recorded: bool = True) -> dict[str, Any]:
    changes = [{"fromType": "x", "toType": of_type}]
    return column("a", of_type, metadata={"delta.typeChanges": changes} if recorded else {})


class TestSchemaChange:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ([column("a")], [column("a"), column("b")]),
            ([column("a"), column("b")], [column("b"), column("new"), column("a")]),
            ([column("a", nullable=False)], [column("a")]),
            ([column("a", "void")], [column("a", "string")]),
            (
                [column("s", {"type": "struct", "fields": [column("x")]})],
                [column("s", {"type": "struct", "fields": [column("x"), column("y")]})],
            ),
        ],
    )
    def test_what_live_files_bear(
        self, old: list[dict[str, Any]], new: list[dict[str, Any]]
    ) -> None:
        accepted(table(*new), table(*old))

    @pytest.mark.parametrize(
        ("old", "new", "named"),
        [
            ([column("a"), column("b")], [column("a")], "'b' is dropped or renamed"),
            ([column("a")], [column("A")], "'a' is dropped or renamed"),
            ([column("a")], [column("a", "string")], "from long to string"),
            ([column("a", "integer")], [_changed("long")], "delta.enableTypeWidening"),
            ([column("a")], [column("a", nullable=False)], "nulls"),
            ([column("a")], [column("a"), column("b", nullable=False)], "lack it"),
            (
                [column("s", {"type": "struct", "fields": [column("x"), column("y")]})],
                [column("s", {"type": "struct", "fields": [column("x")]})],
                "'s.y' is dropped",
            ),
            (
                [column("l", {"type": "array", "elementType": "long", "containsNull": True})],
                [column("l", {"type": "array", "elementType": "long", "containsNull": False})],
                "elements of 'l'",
            ),
            (
                [column("l", {"type": "array", "elementType": "long", "containsNull": True})],
                [column("l", {"type": "array", "elementType": "string", "containsNull": True})],
                "'l.element' changes from long to string",
            ),
            (
                [column("m", {"type": "map", "keyType": "long", "valueType": "long"})],
                [column("m", {"type": "map", "keyType": "string", "valueType": "long"})],
                "'m.key' changes",
            ),
            (
                [column("m", {"type": "map", "keyType": "long", "valueType": "long"})],
                [
                    column(
                        "m",
                        {
                            "type": "map",
                            "keyType": "long",
                            "valueType": "long",
                            "valueContainsNull": False,
                        },
                    )
                ],
                "values of 'm'",
            ),
        ],
    )
    def test_what_live_files_do_not_bear(
        self, old: list[dict[str, Any]], new: list[dict[str, Any]], named: str
    ) -> None:
        assert named in refused(Rule.SCHEMA_CHANGE, table(*new), table(*old))
        accepted(table(*new), table(*old), replaces_all=True)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("byte", "short"),
            ("short", "integer"),
            ("integer", "long"),
            ("integer", "double"),
            ("float", "double"),
            ("date", "timestamp_ntz"),
            ("decimal(5,2)", "decimal(7,2)"),
            ("decimal(5,2)", "decimal(7,4)"),
            ("integer", "decimal(10,0)"),
            ("long", "decimal(22,2)"),
        ],
    )
    def test_types_may_widen_where_the_table_says_so(self, old: str, new: str) -> None:
        protocol = features(reader=("timestampNtz", "typeWidening"))
        before = table(column("a", old), properties=WIDE)
        accepted(table(_changed(new), properties=WIDE), before, protocol=protocol)
        unrecorded = table(_changed(new, recorded=False), properties=WIDE)
        assert "record" in refused(Rule.SCHEMA_CHANGE, unrecorded, before, protocol=protocol)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("long", "integer"),
            ("long", "double"),
            ("double", "float"),
            ("integer", "string"),
            ("decimal(5,2)", "decimal(6,4)"),
            ("decimal(5,2)", "decimal(5,1)"),
            ("integer", "decimal(10,2)"),
            ("date", "decimal(10,0)"),
        ],
    )
    def test_no_type_narrows(self, old: str, new: str) -> None:
        before = table(column("a", old), properties=WIDE)
        refused(Rule.SCHEMA_CHANGE, table(_changed(new), properties=WIDE), before)

    def test_elements_may_widen_too(self) -> None:
        def listed(of_type: str, **metadata: Any) -> Metadata:
            array = {"type": "array", "elementType": of_type, "containsNull": True}
            return table(column("a", array, metadata=metadata), properties=WIDE)

        record = {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}
        accepted(listed("long", **record), listed("integer"))
        refused(Rule.SCHEMA_CHANGE, listed("long"), listed("integer"))

    def test_the_record_of_type_changes_is_kept(self) -> None:
        before = table(_changed("long"), properties=WIDE)
        accepted(table(_changed("long"), column("b"), properties=WIDE), before)
        lost = table(_changed("long", recorded=False), properties=WIDE)
        assert "record" in refused(Rule.SCHEMA_CHANGE, lost, before)


class TestPartitionColumns:
    def test_they_stay_while_files_are_live(self) -> None:
        old, new = table(by=("day",)), table()
        assert "['day']" in refused(Rule.PARTITION_COLUMNS, new, old)
        refused(Rule.PARTITION_COLUMNS, old, new)
        accepted(new, old, replaces_all=True)
        accepted(replace(old, description="news"), old)

    def test_their_order_counts(self) -> None:
        columns = (column("a"), column("b"), column("c"))
        refused(
            Rule.PARTITION_COLUMNS, table(*columns, by=("b", "a")), table(*columns, by=("a", "b"))
        )


def _mapping(mode: str = "name", highest: int = 2) -> dict[str, str]:
    return {
        "delta.columnMapping.mode": mode,
        "delta.columnMapping.maxColumnId": str(highest),
    }


class TestColumnMapping:
    OLD = table(mapped("a", 1, "c1"), mapped("b", 2, "c2"), properties=_mapping())

    def test_columns_can_be_renamed_dropped_and_added(self) -> None:
        accepted(
            table(
                mapped("b", 3, "c3", "string"), mapped("z", 1, "c1"), properties=_mapping(highest=3)
            ),
            self.OLD,
        )

    def test_spaces_in_names_are_fine(self) -> None:
        created(table(mapped("a b", 1), properties=_mapping()))

    @pytest.mark.parametrize(
        "columns",
        [
            [column("a")],
            [column("a", metadata={"delta.columnMapping.id": 1})],
            [mapped("a", 1), mapped("b", 1)],
            [mapped("a", 1, "same"), mapped("b", 2, "same")],
            [mapped("a", 3)],
            [column("s", {"type": "struct", "fields": [column("x")]})],
        ],
    )
    def test_every_field_has_its_own_id_and_name(self, columns: list[dict[str, Any]]) -> None:
        not_created(Rule.COLUMN_MAPPING, table(*columns, properties=_mapping()))

    def test_ids_are_never_used_again(self) -> None:
        without_b = table(mapped("a", 1, "c1"), properties=_mapping())
        again = table(mapped("a", 1, "c1"), mapped("new", 2, "c9"), properties=_mapping())
        assert "used before" in refused(Rule.COLUMN_MAPPING, again, without_b)

    def test_the_highest_id_never_falls(self) -> None:
        old = table(mapped("a", 1, "c1"), properties=_mapping(highest=7))
        new = table(mapped("a", 1, "c1"), properties=_mapping(highest=6))
        assert "fall from 7 to 6" in refused(Rule.COLUMN_MAPPING, new, old)
        refused(Rule.COLUMN_MAPPING, new, old, replaces_all=True)

    def test_the_physical_name_of_a_column_stays(self) -> None:
        new = table(mapped("a", 1, "c9"), mapped("b", 2, "c2"), properties=_mapping())
        assert "sought as 'c9'" in refused(Rule.SCHEMA_CHANGE, new, self.OLD)

    def test_from_none_only_to_name_and_with_the_names_in_files(self) -> None:
        plain = table(column("a"), column("b"))
        named = table(mapped("a", 1), mapped("b", 2), properties=_mapping())
        accepted(named, plain)
        by_id = table(mapped("a", 1), mapped("b", 2), properties=_mapping("id"))
        assert "none to name" in refused(Rule.COLUMN_MAPPING, by_id, plain)
        accepted(by_id, plain, replaces_all=True)
        refused(Rule.SCHEMA_CHANGE, self.OLD, plain)

    def test_and_not_back(self) -> None:
        plain = table(column("a"), column("b"))
        refused(Rule.COLUMN_MAPPING, plain, self.OLD)
        accepted(plain, self.OLD, replaces_all=True)

    def test_a_partition_column_may_be_renamed_but_not_exchanged(self) -> None:
        old = replace(self.OLD, partition_columns=("b",))
        renamed = table(
            mapped("a", 1, "c1"), mapped("z", 2, "c2"), by=("z",), properties=_mapping()
        )
        accepted(renamed, old)
        refused(Rule.PARTITION_COLUMNS, replace(self.OLD, partition_columns=("a",)), old)


class TestNewConstraints:
    NEW = table(properties={"delta.constraints.positive": "id > 0"})

    def test_live_rows_must_have_been_verified(self) -> None:
        protocol = features("checkConstraints")
        assert "'positive'" in refused(Rule.CHECK_CONSTRAINTS, self.NEW, protocol=protocol)
        accepted(self.NEW, protocol=protocol, enforced={"checkConstraints"})
        accepted(self.NEW, protocol=protocol, replaces_all=True)
        accepted(replace(self.NEW, description="news"), self.NEW, protocol=protocol)

    def test_a_constraint_may_be_dropped(self) -> None:
        accepted(table(), self.NEW, protocol=features("checkConstraints"))


class TestProtocol:
    @pytest.mark.parametrize(
        "protocol",
        [
            Protocol(3, 7),
            Protocol(3, 7, (), None),
            Protocol(1, 2, None, ()),
            Protocol(3, 6, (), None),
            Protocol(0, 2),
            Protocol(3, 7, ("columnMapping",), ()),
            Protocol(3, 7, (), ("deletionVectors",)),
        ],
    )
    def test_malformed_protocols(self, protocol: Protocol) -> None:
        not_created(Rule.PROTOCOL, table(), protocol)

    def test_protocols_of_the_future(self) -> None:
        with pytest.raises(UnsupportedFeatureError):
            created(table(), Protocol(4, 8))
        with pytest.raises(UnsupportedFeatureError, match="madeUpFeature"):
            created(table(), features("madeUpFeature"))

    def test_upgrades(self) -> None:
        accepted(Protocol(1, 4), protocol=LEGACY)
        accepted(features("appendOnly", "invariants", "domainMetadata"), protocol=LEGACY)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (Protocol(1, 4), Protocol(1, 3)),
            (features("domainMetadata"), features()),
            (features(reader=("columnMapping",)), Protocol(2, 5)),
            (LEGACY, features("appendOnly")),
        ],
    )
    def test_nothing_is_lost_but_on_purpose(self, old: Protocol, new: Protocol) -> None:
        refused(Rule.PROTOCOL_DOWNGRADE, new, protocol=old)
        accepted(new, protocol=old, allow_feature_drop=True)

    @pytest.mark.parametrize(
        ("metadata", "missing"),
        [
            (table(properties={"delta.enableDeletionVectors": "true"}), "deletionVectors"),
            (
                table(column("id"), column("day", "date"), column("t", "timestamp_ntz")),
                "timestampNtz",
            ),
            (table(properties={"delta.feature.domainMetadata": "supported"}), "domainMetadata"),
            (table(properties={"delta.enableRowTracking": "true"}), "domainMetadata, rowTracking"),
        ],
    )
    def test_what_the_metadata_uses_is_in_the_protocol(
        self, metadata: Metadata, missing: str
    ) -> None:
        assert f"lacks {missing}" in not_created(Rule.REQUIRED_FEATURES, metadata, LEGACY)
        assert f"lacks {missing}" in refused(Rule.REQUIRED_FEATURES, metadata, protocol=LEGACY)

    def test_a_preview_does_for_its_feature(self) -> None:
        protocol = features(reader=("typeWidening-preview",))
        created(table(properties=WIDE), protocol)
