"""Golden tables: Delta tables that other engines wrote, and what is known of each.

They are read where they lie (`golden_dir`), or in a copy that a test makes to write to.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from deltalakedb.lake import Lake
from deltalakedb.table import Table

_REPOSITORY = Path(__file__).resolve().parents[2]
# Delta's own tests gave the files of vectors this prefix, which no descriptor knows of, and wrote
# a word for the folder that one of the tables lies in.
_TEST_PREFIX = "test%dv%prefix-"
_PLACEHOLDER = b"{{FOLDER_WITH_SPECIAL_CHAR}}"


@dataclass(frozen=True, slots=True)
class GoldenTable:
    """A golden table: its folder and the facts of expected.json."""

    path: Path
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder, which is also its name in a catalog."""
        return self.path.name

    @property
    def must_import(self) -> bool:
        """Whether a refusal would be wrong."""
        return bool(self.facts["must_import"])

    @property
    def traits(self) -> frozenset[str]:
        """What is special about it."""
        return frozenset(self.facts["traits"])

    def copy_to(self, folder: Path) -> "GoldenTable":
        """A copy to write to, as an engine would have left the table outside its own tests."""
        target = folder / self.name
        for source in self.path.rglob("*"):
            place = target / source.relative_to(self.path)
            # Checksums of Hadoop's local file system are no part of a table, and some are stale.
            if not source.is_file() or (source.name[0] == "." and source.suffix == ".crc"):
                continue
            if place.parent == target:
                place = target / place.name.removeprefix(_TEST_PREFIX)
            place.parent.mkdir(parents=True, exist_ok=True)
            vectors = _vectors_of(target).encode()
            place.write_bytes(source.read_bytes().replace(_PLACEHOLDER, vectors))
            os.utime(place, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
        return replace(self, path=target)

    def as_it_lay(self, text: str) -> str:
        """Text of the log of a copy, as it stands in the golden table."""
        return text.replace(_vectors_of(self.path), _PLACEHOLDER.decode())

    def import_into(self, lake: Lake) -> Table:
        """Take it over under its own name, where it lies: nothing may be published there."""
        assert lake.mirror.mode == "worker", "a commit would be written among the golden tables"
        return lake.import_table(str(self.path), self.name)


def _folder() -> Path:
    named = os.environ.get("DELTALAKEDB_GOLDEN")
    return Path(named) if named else _REPOSITORY.parent / "shared" / "golden"


def _vectors_of(folder: Path) -> str:
    return quote(str(folder / "folder&with%special char"))


def golden_names() -> list[str]:
    """The folders of golden tables, to parametrise by; one that skips where there are none."""
    listed = _folder() / "expected.json"
    if not listed.is_file():
        return ["no golden tables"]
    return [entry["folder"] for entry in json.loads(listed.read_text("utf-8"))]


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder of Delta tables written by other implementations (DELTALAKEDB_GOLDEN names it)."""
    folder = _folder()
    if not folder.is_dir():
        pytest.skip(f"no golden tables at {folder}: set DELTALAKEDB_GOLDEN to their folder")
    return folder


@pytest.fixture(scope="session")
def golden_tables(golden_dir: Path) -> dict[str, GoldenTable]:
    """Every golden table by the name of its folder."""
    entries: list[dict[str, Any]] = json.loads((golden_dir / "expected.json").read_text("utf-8"))
    return {entry["folder"]: GoldenTable(golden_dir / entry["folder"], entry) for entry in entries}


def file_digest(files: Iterable[tuple[str, str]]) -> str:
    """The digest of expected.json over (path as in the log, deletion vector id) of live files."""
    keys = sorted(f"{unquote(path)}|{dv_id}" for path, dv_id in files)
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
