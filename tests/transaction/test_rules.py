"""One test a rule for whole commits: what passes, what is refused, and under which name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from deltalakedb.actions import (
    Action,
    CdcFile,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
    UnknownAction,
)
from deltalakedb.errors import CommitRejectedError, UnsupportedFeatureError
from deltalakedb.transaction import Rule, touched_paths, validate_commit
from transaction.examples import LEGACY, add, column, features, info, remove, table, vector

BASE = table()


def accepted(
    *actions: Action,
    metadata: Metadata | None = BASE,
    protocol: Protocol | None = LEGACY,
    enforced: Sequence[str] = (),
    replaces_all: bool = False,
) -> None:
    validate_commit(
        actions,
        metadata=metadata,
        protocol=protocol,
        enforced=frozenset(enforced),
        replaces_all=replaces_all,
    )


def refused(
    rule: Rule,
    *actions: Action,
    metadata: Metadata | None = BASE,
    protocol: Protocol | None = LEGACY,
    enforced: Sequence[str] = (),
) -> str:
    """The message of the refusal, which must name its rule."""
    with pytest.raises(CommitRejectedError) as caught:
        accepted(*actions, metadata=metadata, protocol=protocol, enforced=enforced)
    assert caught.value.rule == rule.value, str(caught.value)
    assert f"(rule: {rule.value})" in str(caught.value)
    return str(caught.value)


def test_names_of_rules_are_stable_words() -> None:
    values = [rule.value for rule in Rule]
    assert len(set(values)) == len(values)
    assert all(value == value.lower() and " " not in value for value in values)


class TestOfEachKindOne:
    def test_version_0_needs_protocol_and_metadata(self) -> None:
        accepted(LEGACY, BASE, metadata=None, protocol=None)
        accepted(LEGACY, BASE, add(), info(), metadata=None, protocol=None)
        message = refused(Rule.FIRST_VERSION, BASE, add(), metadata=None, protocol=None)
        assert "has no protocol" in message
        message = refused(Rule.FIRST_VERSION, LEGACY, metadata=None, protocol=None)
        assert "has no metaData" in message

    def test_an_empty_commit_is_fine(self) -> None:
        accepted()

    def test_one_metadata(self) -> None:
        refused(Rule.ONE_METADATA, BASE, BASE)

    def test_one_protocol(self) -> None:
        refused(Rule.ONE_PROTOCOL, LEGACY, LEGACY)

    def test_one_commit_info(self) -> None:
        accepted(CommitInfo())
        refused(Rule.ONE_COMMIT_INFO, CommitInfo(), CommitInfo())

    def test_one_txn_for_each_app(self) -> None:
        accepted(Txn("a", 1), Txn("b", 1))
        assert "'a'" in refused(Rule.ONE_TXN, Txn("a", 1), Txn("b", 1), Txn("a", 2))

    def test_one_metadata_for_each_domain(self) -> None:
        protocol = features("domainMetadata")
        d, e = (DomainMetadata(name, "{}", removed=False) for name in "de")
        accepted(d, e, protocol=protocol)
        message = refused(Rule.ONE_DOMAIN, d, e, replace(d, removed=True), protocol=protocol)
        assert "'d'" in message

    @pytest.mark.parametrize("action", [CheckpointMetadata(1), Sidecar("s", 1, 1)])
    def test_actions_of_checkpoints_are_refused(self, action: Action) -> None:
        refused(Rule.CHECKPOINT_ONLY, action)

    def test_unknown_actions_are_refused_by_name(self) -> None:
        assert "'frobnicate'" in refused(Rule.UNKNOWN_ACTION, UnknownAction("frobnicate", {}))


class TestDomains:
    def test_domains_need_their_feature(self) -> None:
        domain = DomainMetadata("mine", "{}", removed=False)
        accepted(domain, protocol=features("domainMetadata"))
        assert "domainMetadata" in refused(Rule.DOMAIN, domain)

    def test_names_of_delta_are_reserved(self) -> None:
        protocol = features("domainMetadata", "rowTracking", "clustering")
        for name in ("delta.rowTracking", "delta.clustering"):
            accepted(DomainMetadata(name, "{}", removed=False), protocol=protocol)
        other = DomainMetadata("delta.mine", "{}", removed=False)
        assert "reserved" in refused(Rule.DOMAIN, other, protocol=protocol)

    def test_a_domain_of_delta_needs_the_feature_it_belongs_to(self) -> None:
        domain = DomainMetadata("delta.clustering", "{}", removed=False)
        assert "'clustering'" in refused(Rule.DOMAIN, domain, protocol=features("domainMetadata"))


class TestAppendOnly:
    TABLE = table(properties={"delta.appendOnly": "true"})

    def test_data_cannot_be_removed(self) -> None:
        accepted(add(), remove("b", data_change=False), metadata=self.TABLE)
        assert "'b'" in refused(Rule.APPEND_ONLY, remove("b"), metadata=self.TABLE)

    def test_not_even_with_a_deletion_vector(self) -> None:
        protocol = features("appendOnly", reader=("deletionVectors",))
        changed = add("b", deletion_vector=vector(), stats='{"numRecords":9}')
        refused(Rule.APPEND_ONLY, remove("b"), changed, metadata=self.TABLE, protocol=protocol)

    def test_nor_in_the_commit_that_sets_or_unsets_the_property(self) -> None:
        refused(Rule.APPEND_ONLY, BASE, remove("b"), metadata=self.TABLE)
        refused(Rule.APPEND_ONLY, self.TABLE, remove("b"))

    def test_other_tables_lose_what_they_like(self) -> None:
        accepted(remove("b"), metadata=table(properties={"delta.appendOnly": "false"}))


CONSTRAINED = {
    "checkConstraints": table(properties={"delta.constraints.positive": "id > 0"}),
    "invariants": table(
        column("id", metadata={"delta.invariants": '{"expression":{"expression":"id > 0"}}'})
    ),
    "generatedColumns": table(
        column("id"), column("twice", metadata={"delta.generationExpression": "id * 2"})
    ),
    "identityColumns": table(
        column("id", metadata={"delta.identity.start": 1, "delta.identity.step": 1})
    ),
    "allowColumnDefaults": table(column("id", metadata={"CURRENT_DEFAULT": "7"})),
}
CONSTRAINT_RULES = {
    "checkConstraints": Rule.CHECK_CONSTRAINTS,
    "invariants": Rule.INVARIANTS,
    "generatedColumns": Rule.GENERATED_COLUMNS,
    "identityColumns": Rule.IDENTITY_COLUMNS,
    "allowColumnDefaults": Rule.COLUMN_DEFAULTS,
}


@pytest.mark.parametrize("kind", CONSTRAINED)
class TestConstraints:
    def test_rows_are_refused_unless_somebody_enforced_it(self, kind: str) -> None:
        metadata, protocol = CONSTRAINED[kind], features(kind)
        message = refused(CONSTRAINT_RULES[kind], add(), metadata=metadata, protocol=protocol)
        assert f"enforced={{{kind!r}}}" in message
        others = [name for name in CONSTRAINED if name != kind]
        refused(
            CONSTRAINT_RULES[kind], add(), metadata=metadata, protocol=protocol, enforced=others
        )
        accepted(add(), metadata=metadata, protocol=protocol, enforced=[kind])

    def test_what_adds_no_rows_is_free(self, kind: str) -> None:
        metadata = CONSTRAINED[kind]
        protocol = features(kind, reader=("deletionVectors",))
        accepted(
            remove("gone"),
            add("compacted", data_change=False),
            Txn("a", 1),
            metadata=metadata,
            protocol=protocol,
        )
        hidden = add("b", deletion_vector=vector(), stats='{"numRecords":9}')
        accepted(remove("b"), hidden, metadata=metadata, protocol=protocol)

    def test_a_table_that_only_could_use_it_is_free(self, kind: str) -> None:
        accepted(add(), protocol=features(kind))


class TestUnsupported:
    def test_a_table_with_an_unknown_feature_is_not_written_to(self) -> None:
        with pytest.raises(UnsupportedFeatureError, match="madeUpFeature"):
            accepted(add(), protocol=features("madeUpFeature"))

    def test_a_feature_the_caller_honours_is_no_obstacle(self) -> None:
        metadata = table(properties={"delta.enableIcebergCompatV2": "true"})
        protocol = features("icebergCompatV2", reader=("columnMapping",))
        file = add(stats='{"numRecords":1}')
        with pytest.raises(UnsupportedFeatureError, match="icebergCompatV2"):
            accepted(file, metadata=metadata, protocol=protocol)
        accepted(file, metadata=metadata, protocol=protocol, enforced=["icebergCompatV2"])

    def test_row_ids_are_given_out_by_the_committer(self) -> None:
        protocol = features("rowTracking", "domainMetadata")
        accepted(add(stats='{"numRecords":1}'), protocol=protocol)
        assert "numRecords" in refused(Rule.STATISTICS, add(), protocol=protocol)


def test_touched_paths_are_listed_once_each() -> None:
    cdc = CdcFile("_change_data/c", {}, 1)
    assert touched_paths([add("a"), remove("b"), remove("a"), cdc, info()]) == ["a", "b"]
