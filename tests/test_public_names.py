"""The names that users rely on are there after `import deltalakedb` alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import deltalakedb


@pytest.mark.parametrize("name", deltalakedb.__all__)
def test_a_public_name_is_there_after_a_plain_import(name: str) -> None:
    script = f"import deltalakedb; print(deltalakedb.{name})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = deltalakedb.no_such_name


def test_the_root_of_all_errors_is_where_the_documentation_says() -> None:
    with pytest.raises(deltalakedb.errors.DeltaLakeDbError):
        deltalakedb.connect("nonsense")
