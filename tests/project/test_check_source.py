"""The rules of `scripts/check_source.py`: each one refuses what it is there for."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_source.py"


@pytest.fixture
def check(tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_source", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SOURCE = tmp_path  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (
            'from importlib import import_module\nimport_module("deltalakedb.spark.api")',
            "by a string",
        ),
        (
            'import importlib\nR = {"x": "deltalakedb.spark"}\nimportlib.import_module(R["x"])',
            "by a string",
        ),
        ('from importlib import import_module\nimport_module("deltalakedb.staging.stage")', None),
        ('ROOM = "deltalakedb.spark"', None),
        ('import importlib\nimportlib.import_module("pyarrow")', None),
        ("import sys\nsys.meta_path.insert(0, None)", "import hook"),
        ("import gc\ngc.freeze()", "gc.freeze"),
        ("import pyarrow.dataset as ds\nclass Rows(ds.Dataset): ...", "pyarrow's Dataset"),
        ("from pyarrow.dataset import Scanner\nclass Rows(Scanner): ...", "pyarrow's Scanner"),
        ("from .own import Dataset\nclass Rows(Dataset): ...", None),
    ],
)
def test_each_rule(check: ModuleType, tmp_path: Path, text: str, refused: str | None) -> None:
    path = tmp_path / "deltalakedb" / "staging" / "rows.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = [message for _, message in check.violations(path)]
    if refused is None:
        assert not found
    else:
        assert len(found) == 1
        assert refused in found[0]
