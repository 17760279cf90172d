"""The checker finds what must never be: each kind of damage, done on purpose, is named."""

from contextlib import closing
from pathlib import Path

import pytest

from concurrency.checker import KEY_PARAMETER, KEY_PROPERTY, check
from concurrency.journal import Journal, Outcome, Part, read_journal
from concurrency.workload import acknowledge, add, create_tables, remove, transfer_path
from deltalakedb.lake import Lake
from deltalakedb.store import Store

Catalog = tuple[str, Path]
A = "(SELECT table_id FROM dl_tables WHERE name = 'a')"
B = "(SELECT table_id FROM dl_tables WHERE name = 'b')"
TRANSFER = transfer_path("transfer", ("a", "b"))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with a few honest commits (its URL), and their journal."""
    journal_path = tmp_path / "writer.jsonl"
    url = f"sqlite:///{tmp_path}/lake.db"
    with Lake.connect(url, mirror="worker") as lake:
        journal = Journal(journal_path)
        create_tables(lake, journal, tmp_path)
        a, c = lake.table("a"), lake.table("c")
        journal.trying("append", "append", {"a": Part(("p=0/1", "p=0/2"))}, ("app", 1))
        committed = a.commit(
            [add("p=0/1"), add("p=0/2")],
            operation_parameters={KEY_PARAMETER: "append"},
            app_txn=("app", 1),
        )
        acknowledge(journal, "append", {"a": committed})
        journal.trying("delete", "delete", {"a": Part((), ("p=0/1",))}, ("app", 2))
        committed = a.commit(
            [remove("p=0/1")],
            operation_parameters={KEY_PARAMETER: "delete"},
            app_txn=("app", 2),
        )
        acknowledge(journal, "delete", {"a": committed})
        journal.trying("properties", "properties", {"c": Part()})
        acknowledge(journal, "properties", {"c": c.set_properties({KEY_PROPERTY: "properties"})})
        with lake.transaction() as tx:
            for name in ("a", "b"):
                tx.table(name).add_actions(
                    [add(TRANSFER)], operation_parameters={KEY_PARAMETER: "transfer"}
                )
            journal.trying("transfer", "transfer", dict.fromkeys("ab", Part((TRANSFER,))))
        acknowledge(journal, "transfer", tx.results)
        journal.end()
    return url, journal_path


def damage(url: str, *statements: str) -> None:
    with closing(Store.open(url)) as store, store.write() as session:
        for statement in statements:
            assert session.execute_count(statement, {}) > 0, f"nothing to damage: {statement}"


def test_honest_commits_pass(catalog: Catalog) -> None:
    url, journal = catalog
    report = check(url, [journal])
    assert report.problems == []
    assert report.versions == 3 + 1 + 1 + 1 + 1 + 2
    assert report.transactions == 1
    assert report.outcomes == {Outcome.ACKNOWLEDGED.value: 8}


FORGET_B1 = [
    f"DELETE FROM {relation} WHERE table_id = {B} AND {column} = 1"
    for relation, column in (
        ("dl_table_versions", "version"),
        ("dl_add_files", "version"),
        ("dl_active_files", "added_version"),
        ("dl_mirror_status", "version"),
    )
]


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([f"DELETE FROM dl_table_versions WHERE table_id = {A} AND version = 2"], "not dense"),
        ([f"UPDATE dl_table_heads SET current_version = 1 WHERE table_id = {A}"], "not the newest"),
        ([f"UPDATE dl_table_heads SET current_version = 9 WHERE table_id = {A}"], "not the newest"),
        (
            [f"UPDATE dl_table_versions SET committed_at = 1 WHERE table_id = {A} AND version = 2"],
            "not after",
        ),
        (
            [f"UPDATE dl_table_versions SET commit_uuid = 'u' WHERE table_id = {A}"],
            "commit u has",
        ),
        (["DELETE FROM dl_add_files WHERE path = 'p=0/2'"], "adds other files"),
        (["DELETE FROM dl_remove_files"], "removes other files"),
        (["UPDATE dl_add_files SET version = 77 WHERE path = 'p=0/2'"], "without a version"),
        (["DELETE FROM dl_active_files WHERE path = 'p=0/2'"], "the replay 1"),
        (
            ["UPDATE dl_active_files SET removed_version = 9 WHERE path = 'p=0/1'"],
            "differs from the ledger",
        ),
        (["UPDATE dl_table_versions SET live_files = live_files + 1"], "and should"),
        (["UPDATE dl_table_versions SET live_bytes = live_bytes + 1"], "and should"),
        (
            [f"DELETE FROM dl_mirror_status WHERE table_id = {A} AND version = 1"],
            "one row for each",
        ),
        (["UPDATE dl_mirror_status SET digest = 'x'"], "another digest"),
        (["UPDATE dl_mirror_status SET payload = CAST('{}' AS BLOB)"], "another payload"),
        (["UPDATE dl_mirror_status SET status = 'FAILED'"], "is FAILED"),
        (["UPDATE dl_txn_actions SET txn_version = 1"], "after (app, 1)"),
        (["UPDATE dl_tables SET properties = '{}' WHERE name = 'c'"], "other properties"),
        (["DELETE FROM dl_tables WHERE name = 'b'"], "unregistered table"),
        (
            [*FORGET_B1, f"UPDATE dl_table_heads SET current_version = 0 WHERE table_id = {B}"],
            "wrote {'a': 1} and not ['a', 'b']",
        ),
        (
            [f"UPDATE dl_table_versions SET transaction_id = NULL WHERE table_id = {B}"],
            "has the transaction ids",
        ),
    ],
)
def test_damage_in_the_database_is_found(
    catalog: Catalog, statements: list[str], expected: str
) -> None:
    url, journal = catalog
    damage(url, *statements)
    problems = check(url, [journal]).problems
    assert any(expected in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"key": "append"', '"key": "appended"', "nobody tried the commit append"),
        ('"key": "append"', '"key": "appended"', "appended (acknowledged) wrote {}"),
        ('"versions": {"a": 2}', '"versions": {"a": 7}', "was acknowledged at version 7"),
        ('"commit_uuids": {"a": "', '"commit_uuids": {"a": "0', "another commit UUID"),
        ('"outcome": "acknowledged"', '"outcome": "refused"', "was refused (), and wrote"),
        ('"outcome": "acknowledged"', '"outcome": "already"', "told to be done before, and wrote"),
        ('{"event": "heard"', '{"event": "violation", "text": "a sight"', "a sight"),
    ],
)
def test_a_journal_that_differs_is_found(
    catalog: Catalog, old: str, new: str, expected: str
) -> None:
    url, journal = catalog
    text = journal.read_text()
    assert old in text
    journal.write_text(text.replace(old, new))
    problems = check(url, [journal]).problems
    assert any(expected in problem for problem in problems), problems


def test_silence_is_only_for_the_dead(catalog: Catalog) -> None:
    url, journal = catalog
    lines = journal.read_text().splitlines(keepends=True)
    assert '"end"' in lines[-1]
    assert '"transfer"' in lines[-2]
    journal.write_text("".join([*lines[:-2], lines[-1]]))
    (problem,) = check(url, [journal]).problems
    assert "its writer lived on" in problem
    # Killed before it heard, it may have written that; a line cut short is no line.
    journal.write_text("".join(lines[:-2]) + lines[-2][:-9])
    report = check(url, [journal])
    assert report.problems == []
    assert report.in_flight_there == 1
    assert read_journal(journal).tries[-1].outcome is Outcome.IN_FLIGHT


def test_a_silent_try_in_the_middle_is_found(catalog: Catalog) -> None:
    url, journal = catalog
    lines = journal.read_text().splitlines(keepends=True)
    heard = next(n for n, line in enumerate(lines) if '"heard", "key": "append"' in line)
    journal.write_text("".join(lines[:heard] + lines[heard + 1 : -1]))
    (problem,) = check(url, [journal]).problems
    assert "its writer lived on" in problem
