"""The examples of docs/how-to/spark.md are run as they stand, one after the other."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltalakedb.lake import Lake

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "spark.md"


def test_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Spark itself, and the processes of a data source, stand in other folders than this test.
    page = PAGE.read_text("utf-8").replace("sqlite:///lake.db", f"sqlite:///{tmp_path}/lake.db")
    page = page.replace(
        '"checkpointLocation", "checkpoint"', f'"checkpointLocation", "{tmp_path}/c"'
    )
    assert f"{tmp_path}/c" in page
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"spark": spark}
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(example, PAGE.name, "exec"), names)  # noqa: S102 - that is the test
    lake = names["lake"]
    assert isinstance(lake, Lake)
    lake.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "108 1000"
    assert "|      5|OPTIMIZE|" in lines or any("OPTIMIZE" in line for line in lines)
    assert "1005 1000" in lines
    assert "('shop',)" in lines
    assert any("update_postimage" in line for line in lines)
    assert lines[-1] == "1005"
