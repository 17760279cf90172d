"""The command line as a person or a program uses it."""

import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import deltalakedb
from deltalakedb.cli import log_lines
from deltalakedb.cli.app import run
from deltalakedb.cli.output import printable, size
from deltalakedb.cli.schemas import read_schema
from deltalakedb.errors import ConfigurationError, Fix
from deltalakedb.mirror.mirror import Mirror
from deltalakedb.telemetry import warning

from support.lake import add

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/lake.db"


@pytest.fixture
def command(
    catalog: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Run a command in the test's folder; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELTALAKEDB_CATALOG", catalog)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def orders(command: Command) -> None:
    code, _, err = command("create", "sales.orders", "orders", "id long, day date")
    assert code == 0, err


def as_json(answer: tuple[int, str, str]) -> Any:
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


def test_a_table_is_cloned(command: Command, orders: None) -> None:
    made = as_json(command("clone", "sales.orders", "sales.copy", "copy", "--json"))
    assert (made["table"], made["version"]) == ("sales.copy", 0)
    assert "sales.copy" in command("tables")[1]
    code, _, err = command("clone", "sales.orders", "other", "copy")
    assert code != 0
    assert "copy belongs to table 'sales.copy' already" in " ".join(err.split())


def test_parquet_files_are_converted(command: Command, tmp_path: Path) -> None:
    (tmp_path / "plain" / "n=1").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "plain" / "n=1" / "a.parquet")
    assert command("convert", "plain")[0] != 0
    made = as_json(command("convert", "plain", "--partition-schema", "n int", "--json"))
    assert (made["table"], made["files"]) == ("plain", 1)


def test_a_new_catalog_is_migrated_once(command: Command) -> None:
    applied = as_json(command("migrate", "--json"))
    assert applied[0] == "0001_ledger"
    assert as_json(command("migrate", "--json")) == []
    assert "up to date" in command("migrate")[1]


def test_tables_are_created_listed_and_shown(command: Command, tmp_path: Path) -> None:
    assert "no tables yet" in command("tables")[1]
    code, out, _ = command(
        *("create", "sales.orders", "orders", "id bigint not null, price decimal(10,2), day date"),
        *("--partition-by", "day", "--property", "owner=me"),
    )
    assert code == 0
    assert re.search(r"price\s+decimal\(10,2\)", out)
    assert re.search(r"id\s+long\s+not null", out)
    listed = as_json(command("tables", "--json"))
    assert listed == [
        {"name": "sales.orders", "location": f"file://{tmp_path}/orders", "version": 0}
    ]
    shown = as_json(command("show", "sales.orders", "--json"))
    assert shown["partition_columns"] == ["day"]
    assert shown["properties"]["owner"] == "me"
    assert shown["schema"][0] == {"name": "id", "type": "long", "nullable": False}
    assert (tmp_path / "orders" / "_delta_log" / f"{0:020d}.json").is_file()


@pytest.mark.usefixtures("orders")
def test_files_and_history_are_listed(command: Command, catalog: str) -> None:
    with deltalakedb.connect(catalog, committer="ann") as lake:
        lake.table("sales.orders").commit([add("a.parquet", size=2_500), add("b.parquet")])
    rows = as_json(command("files", "sales.orders", "--json"))
    assert sorted(row["path"] for row in rows) == ["a.parquet", "b.parquet"]
    assert "2.5 kB" in command("files", "sales.orders")[1]
    assert "1 more: --limit 0 shows all" in command("files", "sales.orders", "--limit", "1")[1]
    assert as_json(command("files", "sales.orders", "--version", "0", "--json")) == []
    (entry,) = as_json(command("history", "sales.orders", "--committer", "ann", "--json"))
    assert (entry["version"], entry["operation"], entry["num_adds"]) == (1, "WRITE", 2)
    assert "CREATE TABLE" in command("history", "sales.orders")[1]


@pytest.mark.usefixtures("orders")
def test_no_command_waits_for_pandas() -> None:
    """pyarrow would import it with its first array, which takes longer than all the rest."""
    code = (
        "import sys\nfrom deltalakedb.cli import main\nsys.argv = ['deltalakedb', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    sys.stderr.write(str('pandas' in sys.modules))"
    )
    for arguments in (["files", "sales.orders"], ["verify", "sales.orders"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stderr.endswith("False"), done.stderr


@pytest.mark.usefixtures("orders")
def test_lists_end_where_they_are_told_to_and_say_so(command: Command, catalog: str) -> None:
    with deltalakedb.connect(catalog, committer="ann") as lake:
        table = lake.table("sales.orders")
        table.commit([add(f"{number:03d}.parquet") for number in range(101)])
        for number in range(20):
            table.commit([add(f"more-{number}.parquet")])
    # People get a page, and are told that there is more; programs get everything.
    for some in ((), ("--where", "id > 0")):
        code, out, err = command("files", "sales.orders", *some)
        assert (code, out.count(".parquet")) == (0, 100), err
        assert "more: --limit 0 shows all" in out.lower()
        out = command("files", "sales.orders", *some, "--limit", "0")[1]
        assert (out.count(".parquet"), "--limit" in out) == (121, False)
        assert "--limit" not in command("files", "sales.orders", *some, "--limit", "121")[1]
        assert len(as_json(command("files", "sales.orders", *some, "--json"))) == 121
        limited = as_json(command("files", "sales.orders", *some, "--json", "--limit", "2"))
        assert [row["path"] for row in limited] == ["000.parquet", "001.parquet"]
    for some in ((), ("--committer", "ann")):
        out = command("history", "sales.orders", *some)[1]
        assert (out.count("WRITE"), "More: --limit 0 shows all." in out) == (20, True)
        assert "--limit" not in command("history", "sales.orders", *some, "--limit", "0")[1]
        assert len(as_json(command("history", "sales.orders", *some, "--json"))) >= 21
    (newest,) = as_json(command("history", "sales.orders", "--limit", "1", "--json"))
    assert newest["version"] == 21
    assert as_json(command("history", "sales.orders", "--committer", "nobody", "--json")) == []
    assert "No such commits" in command("history", "sales.orders", "--committer", "nobody")[1]
    assert "--limit" not in command("history", "sales.orders", "--limit", "22")[1]


def test_partition_values_are_objects(command: Command, catalog: str) -> None:
    command("create", "t", "t", "id long, day date", "--partition-by", "day")
    with deltalakedb.connect(catalog) as lake:
        lake.table("t").append(pa.table({"id": [1], "day": pa.array([0], pa.date32())}))
    (row,) = as_json(command("files", "t", "--json"))
    assert row["partition_values"] == {"day": "1970-01-01"}


@pytest.mark.usefixtures("orders")
def test_a_dropped_table_keeps_its_files_and_can_come_back(
    command: Command, catalog: str, tmp_path: Path
) -> None:
    with deltalakedb.connect(catalog) as lake:
        lake.table("sales.orders").commit([add("a.parquet")])
    before = sorted(path for path in (tmp_path / "orders").rglob("*"))
    code, out, _ = command("drop", "sales.orders")
    assert code == 0
    assert "no longer in this catalog. Nothing was deleted at" in out
    assert sorted(path for path in (tmp_path / "orders").rglob("*")) == before
    assert as_json(command("tables", "--json")) == []
    # What it says about the way back can be typed.
    back = shlex.split(out.partition("To take it back: `")[2].rstrip("`\n"))
    assert back[:2] == ["deltalakedb", "import"]
    shown = as_json(command(*back[1:], "--json"))
    assert (shown["table"], shown["version"], shown["files"]) == ("sales.orders", 1, 1)
    dropped = as_json(command("drop", f"{tmp_path}/orders", "--json"))
    assert (dropped["table"], dropped["dropped"]) == ("sales.orders", True)


@pytest.mark.usefixtures("orders")
def test_versions_that_exist_nowhere_else_are_dropped_by_force_only(
    command: Command, catalog: str
) -> None:
    with deltalakedb.connect(catalog, mirror="worker") as lake:
        lake.table("sales.orders").commit([add("a.parquet")])
    code, out, err = command("drop", "sales.orders")
    assert (code, out) == (1, "")
    for advice in ("`deltalakedb mirror once`", "`deltalakedb mirror status`", "--force"):
        assert advice in err
    assert as_json(command("show", "sales.orders", "--json"))["version"] == 1
    assert command("drop", "sales.orders", "--force")[0] == 0
    assert command("show", "sales.orders")[0] == 1


@pytest.mark.usefixtures("orders")
def test_the_mirror_is_seen_and_driven(command: Command, catalog: str, tmp_path: Path) -> None:
    with deltalakedb.connect(catalog, mirror="worker") as lake:
        lake.table("sales.orders").commit([add("a.parquet")])
    (status,) = as_json(command("mirror", "status", "--json"))
    assert (status["state"], status["backlog"]) == ("pending", 1)
    assert "pending" in command("mirror", "status", "--behind")[1]
    (done,) = as_json(command("mirror", "once", "--json"))
    assert done == {
        "table": "sales.orders",
        "published": 1,
        "last_version": 1,
        "outcome": "caught_up",
        "error": None,
    }
    assert "Nothing was waiting" in command("mirror", "once")[1]
    assert "All tables are published" in command("mirror", "status", "--behind")[1]
    # A foreign commit is told by exit code and text, and taken up again when it is gone.
    foreign = tmp_path / "orders" / "_delta_log" / f"{2:020d}.json"
    foreign.write_bytes(b"{}\n")
    with deltalakedb.connect(catalog, on_drift="allow") as lake:
        lake.table("sales.orders").commit([add("b.parquet")])
    code, out, _ = command("mirror", "status")
    assert (code, "drifted" in out) == (3, True)
    for advice in ("deltalakedb verify", "deltalakedb adopt", "deltalakedb mirror retry"):
        assert f"`{advice} sales.orders`" in out
    assert "lake." not in out
    code, out, _ = command("mirror", "status", "--json")
    assert "`deltalakedb adopt sales.orders`" in json.loads(out)[0]["last_error"]
    code, out, _ = command("mirror", "retry", "sales.orders")
    assert (code, "see `verify`" in out, "lake." in out) == (3, True, False)
    code, out, _ = command("mirror", "retry", "sales.orders", "--json")
    assert "`deltalakedb adopt sales.orders`" in json.loads(out)[0]["error"]
    foreign.unlink()
    assert command("mirror", "retry", "sales.orders")[0] == 0
    assert command("mirror", "status")[0] == 0


@pytest.mark.usefixtures("orders")
def test_commits_that_come_meanwhile_are_nothing_wrong(
    command: Command, catalog: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with deltalakedb.connect(catalog, mirror="worker") as lake:
        lake.table("sales.orders").commit([add("a.parquet")])
    run_once = Mirror.run_once

    def overtaken(self: Mirror, **options: Any) -> Any:
        done = run_once(self, **options)
        with deltalakedb.connect(catalog, mirror="worker") as lake:
            lake.table("sales.orders").commit([add(f"{len(list(tmp_path.iterdir()))}.parquet")])
        return done

    monkeypatch.setattr(Mirror, "run_once", overtaken)
    code, out, _ = command("mirror", "once")
    assert (code, "1 more versions wait" in out) == (0, True)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    # By its location, as everywhere.
    assert command("mirror", "retry", str(tmp_path / "orders"), "-c", catalog)[0] == 0
    assert command("mirror", "status", "-c", catalog, "--behind")[1].startswith("All tables")


def test_only_what_begins_something_makes_a_catalog(command: Command, tmp_path: Path) -> None:
    # A list of what is not there is empty, and a slip of the pen is told.
    for wanted in (("tables",), ("mirror", "status")):
        code, out, err = command(*wanted, "--json")
        assert (code, json.loads(out), "There is no catalog at" in err) == (0, [], True)
    for wanted in (("show", "t"), ("verify", "t"), ("mirror", "once"), ("mirror", "run")):
        code, _, err = command(*wanted)
        assert (code, "There is no catalog at" in err) == (1, True)
        assert "deltalakedb migrate" in err
    assert command("create", "t", "t", "id number")[0] == 1
    assert command("create", "t", "t", "nonsense")[0] == 1
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "lake.db"])
    assert command("create", "t", "t", "id long")[0] == 0
    assert command("tables")[0] == 0


@pytest.mark.usefixtures("orders")
def test_the_list_of_files_is_made_anew(command: Command, catalog: str) -> None:
    with deltalakedb.connect(catalog) as lake:
        lake.table("sales.orders").commit([add("a.parquet")])
        with lake.store.write() as session:
            session.execute_count("DELETE FROM dl_active_files", {})
    assert as_json(command("rebuild", "sales.orders", "--json")) == {
        "table": "sales.orders",
        "files": 1,
        "problems": 1,
    }
    assert "nothing was wrong" in command("rebuild", "sales.orders")[1]


@pytest.mark.usefixtures("orders")
def test_the_log_is_verified_repaired_and_adopted(
    command: Command, catalog: str, tmp_path: Path
) -> None:
    log = tmp_path / "orders" / "_delta_log"
    with deltalakedb.connect(catalog) as lake:
        lake.table("sales.orders").commit([add("a.parquet")])
    assert "No differences" in command("verify", "sales.orders")[1]
    assert as_json(command("verify", "sales.orders", "--json"))["ok"] is True
    lost = (log / f"{1:020d}.json").read_bytes()
    (log / f"{1:020d}.json").unlink()
    code, out, _ = command("verify", "sales.orders")
    assert (code, f"{1:020d}.json" in out) == (3, True)
    assert "would repair" in command("repair", "sales.orders", "--dry-run")[1]
    assert command("repair", "sales.orders")[0] == 0
    assert (log / f"{1:020d}.json").read_bytes() == lost
    assert "Nothing had to be" in command("repair", "sales.orders")[1]
    assert "nothing to adopt" in command("adopt", "sales.orders")[1]


@pytest.mark.usefixtures("orders")
def test_old_versions_go_and_come_back(command: Command, catalog: str) -> None:
    with deltalakedb.connect(catalog) as lake:
        for number in range(3):
            lake.table("sales.orders").commit([add(f"{number}.parquet")])
    assert "no version is old enough" in command("expire", "sales.orders")[1]
    some = ("expire", "sales.orders", "--older-than", "0 days")
    assert "would be archived" in command(*some, "--dry-run")[1]
    code, _, err = command(*some)
    assert (code, "--archive" in err) == (1, True)
    gone = as_json(command(*some, "--archive", "archive", "--json"))
    assert (gone["first_version"], gone["last_version"]) == (0, 2)
    assert len(as_json(command("history", "sales.orders", "--json"))) == 1
    assert "0 to 2 are back" in command("restore-expired", "sales.orders", "archive")[1]
    assert len(as_json(command("history", "sales.orders", "--json"))) == 4


@pytest.mark.usefixtures("orders")
def test_a_table_leaves_and_comes_back(command: Command, catalog: str, tmp_path: Path) -> None:
    with deltalakedb.connect(catalog, mirror="worker") as lake:
        lake.table("sales.orders").commit([add("a.parquet")])
    foreign = tmp_path / "orders" / "_delta_log" / f"{1:020d}.json"
    foreign.write_text("{}")
    code, out, err = command("export", "sales.orders")
    assert (code, out, "cannot be exported" in err) == (1, "", True)
    foreign.unlink()
    command("mirror", "retry", "sales.orders")
    out = command("export", "sales.orders")[1]
    assert "sales.orders has left the catalog at version 2. It is an ordinary Delta table" in out
    assert "Features dropped because nothing uses them: inCommitTimestamp." in out
    assert as_json(command("export", "sales.orders", "--json"))["version"] == 2
    code, _, err = command("show", "sales.orders")
    assert (code, "was exported" in err) == (1, True)
    command("import", "orders", "--name", "sales.orders")
    done = as_json(command("export", "sales.orders", "--keep-features", "--no-verify", "--json"))
    assert (done["version"], done["dropped_features"]) == (2, [])
    assert "--keep-features" in command("export", "--help")[1]


# --- what goes wrong ----------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
def test_a_table_is_optimised_restored_and_cleaned(command: Command, catalog: str) -> None:
    with deltalakedb.connect(catalog) as lake:
        for i in range(3):
            lake.table("sales.orders").append([{"id": i, "day": None}])
    done = as_json(command("optimize", "sales.orders", "--json"))
    assert (done["files_removed"], done["files_added"], done["version"]) == (3, 1, 4)
    assert "nothing to do" in command("optimize", "sales.orders")[1]
    assert (
        "version 5 is the same as version 2"
        in command(*("restore", "sales.orders", "--version", "2"))[1]
    )
    planned = command(
        *("vacuum", "sales.orders", "--dry-run", "--retention-hours", "0"),
        "--allow-short-retention",
    )
    assert "would be deleted" in planned[1]
    code, _, err = command("vacuum", "sales.orders", "--retention-hours", "0")
    assert code == 1
    assert "168 hours" in err
    assert "--allow-short-retention" in err
    assert as_json(command("vacuum", "sales.orders", "--json"))["files"] == 0
    code, _, err = command("restore", "sales.orders")
    assert code == 1
    assert "a version or a timestamp" in err


def test_an_import_that_was_never_begun_cannot_be_discarded(command: Command) -> None:
    found, out, _ = command("import", "nowhere", "--discard")
    assert (found, "no unfinished import" in out) == (0, True)
    assert as_json(command("import", "nowhere", "--discard", "--json"))["discarded"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "nothing"], 1, "no table 'nothing'"),
        (["tables", "-c", "nonsense"], 1, "names no engine"),
        (["show", "sales.orders", "--version", "7"], 1, "version 7"),
        (["files", "sales.orders", "--where", "id > 'x'"], 1, "Cannot compare"),
        (["files", "sales.orders", "--where", "nonsense = 1"], 1, "nonsense"),
        (["create", "sales.orders", "elsewhere", "id long"], 1, "exists already"),
        (["create", "new", "elsewhere", "id"], 1, "no column with a type"),
        (["create", "new", "elsewhere", "id nonsense"], 1, "nonsense"),
        (["import", "nowhere"], 1, "no Delta table"),
        (["mirror", "retry", "nothing"], 1, "nothing"),
        (["tables", "--storage-option", "no-value"], 2, "NAME=VALUE"),
        (["frobnicate"], 2, "frobnicate"),
        (["mirror", "once", "--concurrency", "0"], 2, "--concurrency"),
        (["mirror", "run", "--log-level", "loud"], 2, "loud"),
    ],
)
@pytest.mark.usefixtures("orders")
def test_what_is_wrong_is_said_in_a_sentence(
    command: Command, arguments: list[str], code: int, says: str
) -> None:
    found, out, err = command(*arguments)
    assert found == code, err
    assert says in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.usefixtures("orders")
def test_where_an_error_comes_from_is_told_on_demand(command: Command) -> None:
    code, _, err = command("--debug", "show", "nothing")
    assert code == 1
    assert "Traceback" in err


def test_a_catalog_must_be_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTALAKEDB_CATALOG")
    code, _, err = command("tables")
    assert code == 2
    assert "DELTALAKEDB_CATALOG" in err


def test_text_from_anybody_cannot_steer_the_terminal(command: Command, catalog: str) -> None:
    assert printable("a\x1b[31mb\nc") == "a\\x1b[31mb\nc"
    with deltalakedb.connect(catalog, committer="\x1b[31m[bold]x") as lake:
        lake.create_table("[red]t", location="t", schema=read_schema("id long"))
    out = command("history", "[red]t")[1]
    assert "\x1b[31m" not in out
    assert "[bold]x" in out
    assert "[red]t" in command("tables")[1]
    with deltalakedb.connect(catalog) as lake:
        lake.create_table("a:id:b", location="t2", schema=read_schema("id long"))
    assert "a:id:b" in command("tables")[1], "a name is no emoji"


def test_sizes_and_schemas_as_people_write_them(tmp_path: Path) -> None:
    assert [size(n) for n in (0, 999, 1_500, 2_000_000, 3 * 10**15)] == [
        *("0 B", "999 B", "1.5 kB", "2.0 MB"),
        "3000.0 TB",
    ]
    assert json.loads(read_schema("a int, b decimal(10, 2) not null"))["fields"] == [
        {"name": "a", "type": "integer", "nullable": True, "metadata": {}},
        {"name": "b", "type": "decimal(10, 2)", "nullable": False, "metadata": {}},
    ]
    kinds = json.loads(read_schema("a STRING, b DECIMAL(10,2), c Date"))["fields"]
    assert [field["type"] for field in kinds] == ["string", "decimal(10,2)", "date"]
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_schema(str(tmp_path / "x.json"))
    bad = tmp_path / "x.parquet"
    bad.write_bytes(b"no")
    with pytest.raises(ConfigurationError, match="Parquet"):
        read_schema(str(bad))


# --- processes ----------------------------------------------------------------------------


@pytest.fixture
def worker(catalog: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`deltalakedb mirror run`, with the address of its metrics."""
    deltalakedb.migrate(catalog)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "deltalakedb", "mirror", "run", "-c", catalog),
            *("--metrics-port", "0", "--log-format", "json"),
        ],
        stderr=subprocess.PIPE,
        env=os.environ,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            address = json.loads(process.stderr.readline())["event"].removeprefix("metrics at ")
            yield process, address
        finally:
            process.kill()


def test_a_worker_publishes_serves_metrics_and_ends_when_asked(
    worker: tuple[subprocess.Popen[str], str], catalog: str, tmp_path: Path
) -> None:
    process, address = worker
    assert process.stderr is not None
    with deltalakedb.connect(catalog, mirror="worker") as lake:
        table = lake.create_table("t", location=str(tmp_path / "t"), schema=read_schema("id long"))
        assert json.loads(process.stderr.readline())["event"] == "mirror_worker_started"
        told = json.loads(process.stderr.readline())
        assert (told["event"], told["table_id"]) == ("mirror_published", table.table_id)
        with urllib.request.urlopen(address) as answer:  # noqa: S310 - our own loopback address
            text = answer.read().decode()
        assert "deltalakedb_mirror_published_total 1" in text
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert json.loads(process.stderr.readlines()[-1])["event"] == "mirror_worker_stopped"


@pytest.mark.usefixtures("orders")
def test_what_could_not_be_published_is_a_warning(
    command: Command, catalog: str, tmp_path: Path
) -> None:
    foreign = tmp_path / "orders" / "_delta_log" / f"{1:020d}.json"
    foreign.write_bytes(b"{}\n")
    with deltalakedb.connect(catalog, on_drift="allow") as lake:
        lake.table("sales.orders").append([{"id": 1, "day": None}])
        lake.table("sales.orders").append([{"id": 2, "day": None}])
    handlers = list(logging.getLogger("deltalakedb").handlers)
    # The command itself succeeds: its commit is in the catalog.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_delta_log").write_text("a file where a folder belongs")
    code, out, err = command("create", "other", "other", "id long")
    assert (code, "version" in out) == (0, True)
    assert err.startswith("Warning: ")
    assert "mirror_" not in err
    assert len(err.strip().splitlines()) == 1
    # Where the command tells of it anyway, it is told once.
    code, out, err = command("mirror", "retry", "sales.orders")
    assert (code, err) == (3, "")
    assert out.count("Nothing was overwritten") == 1
    assert logging.getLogger("deltalakedb").handlers == handlers


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_workers_log_advises_commands(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with log_lines.logs_to_stderr(log_lines.LogFormat(form), "info"):
        warning("mirror_failed", lambda: {"version": 3, "error": f"See {Fix('lake.verify', 'a')}"})
    err = capsys.readouterr().err
    assert "mirror_failed" in err
    assert "See `deltalakedb verify a`" in err
    assert ("version=3" in err) is (form == "text"), "what is told stays as it is"


def test_a_port_that_is_taken_is_told(
    worker: tuple[subprocess.Popen[str], str], command: Command
) -> None:
    port = worker[1].rpartition(":")[2].partition("/")[0]
    log = logging.getLogger("deltalakedb")
    before = (log.level, list(log.handlers))
    code, _, err = command("mirror", "run", "--metrics-port", port)
    assert code == 1
    assert f"127.0.0.1:{port}" in err
    assert (log.level, log.handlers) == before, "a command leaves logging as it was"


# --- the warehouse ------------------------------------------------------------------------


def test_the_warehouse_of_a_catalog(command: Command, tmp_path: Path) -> None:
    code, _, err = command("warehouse")
    assert (code, "There is no catalog" in err) == (1, True)
    command("migrate")
    code, out, _ = command("warehouse")
    assert (code, out.split(":")[0]) == (0, "There is no warehouse")
    code, _, err = command("create", "sales.orders", "id long")
    assert code == 1
    assert "`deltalakedb warehouse s3://bucket/lake`" in err
    here = f"file://{tmp_path}/lake"
    assert json.loads(command("warehouse", "lake", "--json")[1]) == {"warehouse": here}
    assert command("warehouse")[1].strip().replace("\n", "") == here
    assert command("warehouse", "--unset", "x")[0] == 2
    created = json.loads(command("create", "sales.orders", "id long", "--json")[1])
    assert created["location"] == f"{here}/sales.db/orders"
    code, out, _ = command("create", "sales.orders", "id long", "--if-not-exists", "--json")
    assert (code, json.loads(out)) == (0, created)
    code, _, err = command("create", "sales.orders", "id date", "--if-not-exists")
    assert (code, "is not the one to create" in err) == (1, True)
    cloned = json.loads(command("clone", "sales.orders", "trial", "--json")[1])
    assert cloned["location"] == f"{here}/trial"
    code, _, err = command("create", "sales.orders")
    assert (code, "SCHEMA" in err) == (2, True)
    assert json.loads(command("warehouse", "--unset", "--json")[1]) == {"warehouse": None}
