"""Giving out row ids."""

from __future__ import annotations

import json

import pytest

from deltalakedb.actions import AddFile, DomainMetadata, Txn
from deltalakedb.errors import CommitRejectedError, InvalidActionError
from deltalakedb.transaction import Rule, assign_row_ids, high_water_mark
from transaction.examples import add, remove, vector


def _domain(mark: int) -> DomainMetadata:
    text = json.dumps({"rowIdHighWaterMark": mark}, separators=(",", ":"))
    return DomainMetadata("delta.rowTracking", text, removed=False)


def test_new_files_get_ids_above_the_mark_and_the_version_of_the_commit() -> None:
    files = [add("a", stats='{"numRecords":3}'), add("b", stats='{"numRecords":5}')]
    filled, domain = assign_row_ids([Txn("x", 1), *files], 9, 4)

    a, b = (action for action in filled if isinstance(action, AddFile))
    assert (a.base_row_id, a.default_row_commit_version) == (10, 4)
    assert (b.base_row_id, b.default_row_commit_version) == (13, 4)
    assert domain == _domain(17)
    assert Txn("x", 1) in filled


def test_the_first_id_is_0() -> None:
    filled, domain = assign_row_ids([add(stats='{"numRecords":1}')], high_water_mark(None), 0)
    assert isinstance(filled[0], AddFile)
    assert filled[0].base_row_id == 0
    assert domain == _domain(0)


def test_the_domain_of_an_earlier_try_is_replaced() -> None:
    filled, domain = assign_row_ids([add(stats='{"numRecords":1}'), _domain(3)], 9, 4)
    assert len(filled) == 1
    assert domain == _domain(10)


def test_a_file_that_has_ids_keeps_them() -> None:
    file = add(base_row_id=3, default_row_commit_version=1)
    assert assign_row_ids([file], 9, 4) == ([file], None)


def test_a_file_with_a_new_deletion_vector_takes_over_its_ids() -> None:
    old = remove("a", base_row_id=3, default_row_commit_version=1)
    filled, domain = assign_row_ids([old, add("a", deletion_vector=vector())], 9, 4)
    assert isinstance(filled[1], AddFile)
    assert (filled[1].base_row_id, filled[1].default_row_commit_version) == (3, 1)
    assert domain is None


def test_without_a_count_of_rows_there_are_no_ids() -> None:
    with pytest.raises(CommitRejectedError, match="'a'") as caught:
        assign_row_ids([add("a")], 9, 4)
    assert caught.value.rule == Rule.ROW_TRACKING.value


@pytest.mark.parametrize("base", [-1, 10])
def test_ids_that_nobody_has_given_out_are_refused(base: int) -> None:
    with pytest.raises(CommitRejectedError) as caught:
        assign_row_ids([add(base_row_id=base)], 9, 4)
    assert caught.value.rule == Rule.ROW_TRACKING.value


def test_a_removed_domain_means_no_ids_yet() -> None:
    assert high_water_mark(_domain(5)) == 5
    assert high_water_mark(DomainMetadata("delta.rowTracking", "", removed=True)) == -1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rowIdHighWaterMark":"5"}'])
def test_a_damaged_domain_is_not_guessed_at(text: str) -> None:
    with pytest.raises(InvalidActionError):
        high_water_mark(DomainMetadata("delta.rowTracking", text, removed=False))
