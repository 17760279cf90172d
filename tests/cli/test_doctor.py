"""`deltalakedb doctor`: what it finds, what it advises, and that it leaves nothing behind."""

import json
import re
import secrets
import shlex
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import psycopg
import pytest

import deltalakedb
from deltalakedb.cli import checks
from deltalakedb.cli.app import run
from deltalakedb.clock import ManualClock
from deltalakedb.errors import ConfigurationError, StorageError
from deltalakedb.spark.java import java_home
from deltalakedb.storage import Storage, open_storage
from deltalakedb.store import Store
from deltalakedb.store.roles import Rights
from deltalakedb.store.url import Engine

from support.lake import schema_json
from support.postgres_server import PostgresServer
from support.s3 import S3Server
from support.unprivileged import not_as_root

Doctor = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Call the doctor; its exit code, and its checks by name."""
    monkeypatch.delenv("DELTALAKEDB_CATALOG", raising=False)

    def call(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
        code = run(["doctor", "--json", *arguments])
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert told["ok"] is (code == 0)
        return code, {check["name"]: check for check in told["checks"]}

    return call


def test_a_healthy_installation_is_healthy(
    doctor: Doctor, catalog_url: str, engine: Engine
) -> None:
    with closing(Store.open(catalog_url)) as store:
        store.migrator.ensure()
    code, found = doctor("-c", catalog_url)
    assert code == 0
    sound = ("python", "packages", "database", "rights", "schema", "clock")
    assert {found[name]["state"] for name in sound} == {"ok"}
    assert (found["spark"]["state"], "--spark" in found["spark"]["fix"]) == ("skipped", True)
    assert f"{engine} " in found["database"]["found"]
    assert found["object store"]["state"] == "skipped"


def test_people_read_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--catalog", "nonsense://"]) == 3
    out = capsys.readouterr().out
    assert "names no engine" in out
    assert "1 of" in out


def test_a_catalog_that_is_not_there_is_not_made(doctor: Doctor, tmp_path: Path) -> None:
    code, found = doctor("-c", f"sqlite:///{tmp_path}/lake.db")
    assert (code, found["database"]["state"]) == (0, "warning")
    assert "deltalakedb migrate" in found["database"]["fix"]
    code, found = doctor("-c", f"sqlite:///{tmp_path}/no/lake.db")
    assert (code, found["database"]["state"]) == (3, "wrong")
    assert "Create the folder" in found["database"]["fix"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lake.db").write_bytes(b"this is no database, however long one looks at it")
    code, found = doctor("-c", f"sqlite:///{tmp_path}/lake.db")
    assert (code, found["database"]["state"]) == (3, "wrong")


def test_a_database_of_somebody_else_stays_as_it_is(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE mine (a)")
    before = file.read_bytes()
    code, found = doctor("-c", f"sqlite:///{file}")
    assert (code, found["database"]["state"]) == (0, "warning")
    assert "holds no catalog yet" in found["database"]["found"]
    assert run(["show", "t", "-c", f"sqlite:///{file}"]) == 1
    assert file.read_bytes() == before


def test_what_cannot_be_deleted_is_told_once(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Storage, key: str) -> None:
        raise StorageError(f"{key} cannot be deleted")

    monkeypatch.setattr(Storage, "delete", refuse)
    (check,) = checks.check_location(str(tmp_path), {})
    assert (check.state, "cannot be deleted" in check.found) == ("wrong", True)
    assert doctor("--location", str(tmp_path))[0] == 3


def test_a_schema_that_is_old_or_missing_is_told(doctor: Doctor, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lake.db"
    with closing(Store.open(url)) as store:
        store.migrator.applied()
        assert doctor("-c", url)[1]["database"]["state"] == "warning"
        store.migrator.up(3)
    code, found = doctor("-c", url)
    assert (code, found["schema"]["state"]) == (3, "wrong")
    assert "0003_file_pages" in found["schema"]["found"]
    assert "deltalakedb migrate" in found["schema"]["fix"]


def test_a_server_that_does_not_answer_is_told_without_its_password(doctor: Doctor) -> None:
    code, found = doctor("-c", "postgresql://me:s3cret@127.0.0.1:1/lake?timeout=5")
    assert (code, found["database"]["state"]) == (3, "wrong")
    assert found["database"]["fix"]
    assert "s3cret" not in str(found)


@pytest.mark.parametrize(
    ("may", "state", "says", "advises"),
    [
        ((True, True, True, True), "ok", "owns the catalog", ""),
        ((True, True, True, False), "ok", "may read, commit and publish", "take its owner, lake"),
        ((True, False, True, False), "ok", "as `deltalakedb mirror run`", "deltalakedb_writer"),
        ((True, False, False, False), "ok", "may only read", "deltalakedb_writer, deltalakedb_m"),
        ((True, True, False, False), "warning", "but not publish", "GRANT deltalakedb_mirror TO"),
        ((False, False, False, False), "wrong", "may not even read", "deltalakedb_reader TO etl"),
    ],
)
def test_what_a_role_may_do_is_told(
    may: tuple[bool, bool, bool, bool], state: str, says: str, advises: str
) -> None:
    found = checks.judge_rights(Rights("etl", *may, has_roles=True, owner="lake"))
    assert (found.state, found.name) == (state, "rights")
    assert says in found.found
    assert advises in found.fix


def test_a_role_is_judged_by_what_it_may_do_on_the_server(
    doctor: Doctor, postgres_server: PostgresServer
) -> None:
    database = postgres_server.create_database()
    url = postgres_server.url(database)
    name = f"doctor_{secrets.token_hex(4)}"
    guest = url.replace("//postgres", f"//{name}", 1)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{postgres_server.password}'")
        try:
            code, found = doctor("-c", guest)
            assert (code, found["rights"]["state"]) == (0, "skipped")
            deltalakedb.migrate(url)
            code, found = doctor("-c", guest)
            assert (code, found["rights"]["state"]) == (3, "wrong")
            assert "deltalakedb_reader" in found["rights"]["fix"]
            admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
            code, found = doctor("-c", guest)
            assert (code, found["rights"]["state"]) == (0, "ok")
            assert "may only read" in found["rights"]["found"]
        finally:
            admin.execute(f"DROP OWNED BY {name}")
            admin.execute(f"DROP ROLE {name}")


def test_a_file_that_must_not_be_written_to_is_told(doctor: Doctor, open_folder: Path) -> None:
    url = f"sqlite:///{open_folder}/lake.db"
    deltalakedb.migrate(url)
    assert doctor("-c", url)[1]["rights"]["state"] == "ok"
    (open_folder / "lake.db").chmod(0o444)
    open_folder.chmod(0o777)
    with not_as_root():
        assert doctor("-c", url)[1]["rights"]["state"] == "wrong"


def test_spark_is_started_and_asked_for_s3(
    doctor: Doctor, s3_server: S3Server, s3_bucket: str
) -> None:
    try:
        java_home()
    except ConfigurationError as missing:
        pytest.skip(str(missing))
    options = [f"--storage-option={k}={v}" for k, v in s3_server.storage_options.items()]
    code, found = doctor("--spark", "--location", f"s3://{s3_bucket}/lake", *options)
    assert code == 0, found
    assert (found["java"]["state"], found["spark"]["state"]) == ("ok", "ok")
    assert found["spark internals"]["state"] == "ok"
    assert re.search(r"Spark 4\.\d.*counts 1", found["spark"]["found"])
    # The tests' Spark has S3A only where peers were fetched; either way it is told.
    s3a = found["spark on s3"]
    assert (s3a["state"] == "ok") is ("hadoop-aws" not in s3a["fix"])


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("raise SystemExit('first\\nno such jar')", "no such jar"),
        ("print('no JSON')", "ended with 0, without a message"),
        ("import time; time.sleep(600)", "did not answer"),
    ],
)
def test_a_spark_that_does_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setattr(checks, "_COMMAND", (sys.executable, "-c", script))
    if "sleep" in script:
        monkeypatch.setattr(checks, "_PATIENCE_SECONDS", 0.5)
    (found,) = checks.check_spark(["s3://b/lake"], ready=True)
    assert (found.name, found.state) == ("spark", "wrong")
    assert says in found.found
    assert "deltalakedb.spark.probe" in found.fix


def test_spark_on_s3_needs_hadoops_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, state in ((True, "ok"), (False, "warning")):
        told = {"spark": "4.2.0", "hadoop": "3.4.2", "rows": 1, "s3a": has, "broken": {}}
        told["delta"] = {"broken": {}}
        script = f"print({json.dumps(told)!r})"
        monkeypatch.setattr(checks, "_COMMAND", (sys.executable, "-c", script))
        *_, s3 = checks.check_spark(["s3a://b/lake"], ready=True)
        assert s3.state == state
        assert ("org.apache.hadoop:hadoop-aws:3.4.2" in s3.fix) is not has
        alone = list(checks.check_spark(["/data"], ready=True))
        assert [(check.name, check.state) for check in alone] == [
            ("spark", "ok"),
            ("spark internals", "ok"),
            ("delta on spark", "ok"),
        ]


@pytest.mark.parametrize(
    ("result", "state", "says"),
    [
        ({"missing": "Spark has no Delta", "fix": "Add it"}, "skipped", "Spark has no Delta"),
        ({"broken": {"commits": "no such class"}}, "wrong", "commits (no such class)"),
    ],
)
def test_delta_on_spark_is_a_check_of_its_own(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, object], state: str, says: str
) -> None:
    told = {"spark": "4.2.0", "hadoop": "3", "rows": 1, "s3a": True, "broken": {}, "delta": result}
    monkeypatch.setattr(checks, "_COMMAND", (sys.executable, "-c", f"print({json.dumps(told)!r})"))
    *_, delta = checks.check_spark([], ready=True)
    assert (delta.name, delta.state) == ("delta on spark", state)
    assert says in delta.found
    assert delta.fix


@pytest.mark.parametrize(("theirs", "state"), [(500, "ok"), (61_000, "wrong"), (-61_000, "wrong")])
def test_clocks_that_differ_are_told(theirs: int, state: str) -> None:
    found = checks._clock(1_000_000 + theirs, 1_000_000, 1_000_010)
    assert found.state == state
    assert ("61.0 s" in found.found) is (state == "wrong")


def test_a_commit_of_the_future_is_told(doctor: Doctor, tmp_path: Path, catalog_url: str) -> None:
    ahead = ManualClock(4_070_908_800_000)
    with deltalakedb.connect(catalog_url, clock=ahead, mirror="worker") as lake:
        lake.create_table("t", location=str(tmp_path / "t"), schema=schema_json("id"))
    code, found = doctor("-c", catalog_url)
    assert (code, found["commit times"]["state"]) == (0, "warning")
    assert "2099-01-01" in found["commit times"]["found"]


def test_an_old_python_and_odd_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_python((3, 9, 1)).state == "wrong"
    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: {"pandas": "3.0.1"}.get(name) or real(name)
    )
    found = checks.check_packages("spark", wanted=True)
    assert (found.state, "pandas 3.0.1 is not <3" in found.found) == ("wrong", True)
    assert "deltalakedb[spark]" in found.fix
    missing = {"": {}, "gone": {"no-such-package": "no_such_module"}}
    monkeypatch.setattr(checks, "_MODULES", missing)
    assert checks.check_packages("gone", wanted=False).state == "skipped"
    monkeypatch.setattr(checks, "_MODULES", {"": {}, "spark": {"no-such-package": "nothing"}})
    (tried,) = (c for c in checks.all_checks(None, (), {}, spark=True) if c.name == "spark")
    assert tried.state == "skipped", "what is not installed is not started"
    monkeypatch.setattr(checks, "_MODULES", missing)
    assert checks.check_packages("gone", wanted=True).state == "wrong"


def test_a_machine_without_java_is_told(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "java_home", _java_home_of_nothing)
    assert doctor()[1]["java"]["state"] == "skipped"
    code, found = doctor("--spark")
    assert (code, found["java"]["state"]) == (3, "wrong")
    assert found["spark"]["state"] == "skipped"
    assert "JAVA_HOME" in found["java"]["fix"]


def _java_home_of_nothing() -> Path:
    from deltalakedb.spark.java import java_home

    return java_home({"PATH": ""}, prefix="/nowhere")


# --- object stores ------------------------------------------------------------------------


def test_a_folder_is_tried_out_and_left_as_it_was(doctor: Doctor, tmp_path: Path) -> None:
    code, found = doctor("--location", str(tmp_path / "not" / "yet"), "--location", str(tmp_path))
    assert (code, found[f"object store {tmp_path}"]["state"]) == (0, "ok")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(b"")
    code, found = doctor("--location", str(tmp_path / "file"))
    assert (code, found[f"object store {tmp_path}/file"]["state"]) == (3, "wrong")


def test_a_folder_that_must_not_be_written_to_is_told(doctor: Doctor, open_folder: Path) -> None:
    name = f"object store {open_folder}"
    assert doctor("--location", str(open_folder))[1][name]["state"] == "ok"
    open_folder.chmod(0o555)
    with not_as_root():
        code, found = doctor("--location", str(open_folder))
    open_folder.chmod(0o755)
    assert (code, found[name]["state"]) == (3, "wrong")


def test_a_bucket_is_tried_out_and_left_as_it_was(
    doctor: Doctor, s3_server: S3Server, s3_bucket: str
) -> None:
    options = [f"--storage-option={k}={v}" for k, v in s3_server.storage_options.items()]
    location = f"s3://{s3_bucket}/lake"
    code, found = doctor("--location", location, *options)
    assert (code, found[f"object store {location}"]["state"]) == (0, "ok")
    assert list(open_storage(location, s3_server.storage_options).list()) == []
    code, found = doctor("--location", "s3://no-such-bucket/lake", *options)
    assert (code, found["object store s3://no-such-bucket/lake"]["state"]) == (3, "wrong")


class _Careless(BaseHTTPRequestHandler):
    """A store that writes whatever it is given, conditions or not, and deletes nothing."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self) -> None:
        self._answer(200, self.objects[self.path])

    def do_DELETE(self) -> None:
        self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")

    def do_POST(self) -> None:
        self.do_DELETE()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def careless() -> Iterator[tuple[int, dict[str, bytes]]]:
    objects: dict[str, bytes] = {}
    handler = type("Handler", (_Careless,), {"objects": objects})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1], objects
        server.shutdown()


def test_a_store_that_overwrites_and_keeps_everything_is_told(
    careless: tuple[int, dict[str, bytes]],
) -> None:
    port, objects = careless
    overwritten, kept = checks.check_location("s3://b/lake", S3Server(port).storage_options)
    assert (overwritten.state, "created twice" in overwritten.found) == ("wrong", True)
    assert "one worker only" in overwritten.fix
    ((left, _),) = objects.items()
    assert kept.state == "wrong"
    assert left.rpartition("/")[2] in kept.fix, "what could not be deleted is named"


def test_the_examples_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "operate.md"
    examples = re.findall(r"^deltalakedb doctor.*$", page.read_text("utf-8"), re.MULTILINE)
    assert len(examples) >= 2
    monkeypatch.chdir(tmp_path)
    for example in examples:
        assert run(shlex.split(example.partition(">")[0])[1:]) == 0, example
    assert list(tmp_path.iterdir()) == []
