"""Advice for whoever has no Python at hand."""

import shlex

import pytest

from deltalakedb.advice import as_commands, command_line

NAMES = [
    "sales.orders",
    "a b",
    "it's",
    '"',
    "<script>alert('no')</script>\"",
    "ä\\n",
    "-x",
    "`",
    "(",
    "❤",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_with_the_name_of_a_table_is_a_command(name: str) -> None:
    told = as_commands(f"Compare them with lake.verify({name!r}), and see lake.tables().")
    assert told == (
        f"Compare them with `{command_line('verify', name)}`, and see `deltalakedb tables`."
    )
    words = shlex.split(command_line("verify", name))
    assert [word for word in words if word != "--"] == ["deltalakedb", "verify", name]


def test_what_no_command_does_stays_as_it_is() -> None:
    for text in ("lake.transaction()", "a lake.", "lake.unheard_of('x', y=1)", "snowflake.verify"):
        assert as_commands(text) == text
    assert as_commands("lake.adopt, or lake.repair(…)") == (
        "`deltalakedb adopt`, or `deltalakedb repair`"
    )
    assert as_commands("lake.import_table(location, name)") == "`deltalakedb import`"
    assert as_commands("lake.export('x', verify=False)") == "`deltalakedb export x --no-verify`"


def test_options_of_the_store_are_those_of_the_command() -> None:
    assert as_commands("Check the location and storage_options.") == (
        "Check the location and --storage-option."
    )
    assert as_commands("lake.drop_table('-x', force=True)") == "`deltalakedb drop --force -- -x`"
