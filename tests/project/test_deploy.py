"""The files of deploy/ are what systemd, Docker and our command line accept; without secrets."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from deltalakedb.cli.app import app
from deltalakedb.store.url import parse_url

from support.postgres_server import SUPERUSER, PostgresServer

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNIT = DEPLOY / "deltalakedb-mirror.service"
# Of the Compose specification, what is used here.
TOP = {"name", "services", "secrets", "volumes"}
SERVICE = {
    *(
        "image",
        "build",
        "restart",
        "user",
        "read_only",
        "cap_drop",
        "security_opt",
        "tmpfs",
        "environment",
    ),
    *("secrets", "volumes", "healthcheck", "command", "depends_on", "stop_grace_period", "ports"),
}
CONDITIONS = {"service_healthy", "service_completed_successfully", "service_started"}
INSTRUCTIONS = {"FROM", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}


def _accepts(words: list[str]) -> None:
    """Our command line takes these words."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    command.make_context(command.name, [*words, "--catalog", "sqlite:///lake.db"])


def _resolved(text: str) -> str:
    """A value of the compose file, where `.env` says nothing."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text("utf-8"))
    return loaded


def test_the_unit_runs_a_worker_and_may_little_else() -> None:
    reader = configparser.ConfigParser(strict=False, interpolation=None)
    reader.optionxform = str  # type: ignore[assignment, method-assign]
    reader.read_string(UNIT.read_text("utf-8"))
    service = reader["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "deltalakedb"
    _accepts(words)
    assert service["EnvironmentFile"].startswith("/etc/deltalakedb/")
    assert (service["DynamicUser"], service["ProtectSystem"]) == ("yes", "strict")


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # It looks whether the program is there: ours is in another place.
    program = tmp_path / "deltalakedb"
    program.symlink_to(sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text("utf-8").replace("/opt/deltalakedb/bin/deltalakedb", str(program))
    )
    checked = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_variables_of_the_worker_make_a_catalog_url() -> None:
    pairs = re.findall(
        r"^([A-Z_]+)=(.*)$", (DEPLOY / "mirror.env.example").read_text(), re.MULTILINE
    )
    named = dict(pairs)
    parse_url(named["DELTALAKEDB_CATALOG"], environ={"LAKE_PASSWORD": "x"})
    # An empty key would count as one: what may be left out is commented out.
    assert [name for name, value in pairs if not value] == ["LAKE_PASSWORD"]
    assert set(named) == {"DELTALAKEDB_CATALOG", "LAKE_PASSWORD"}


def test_the_unit_is_started_after_it_was_told_what_to_do() -> None:
    guide = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    assert guide.index("Fill in `/etc/deltalakedb/mirror.env`") < guide.index("systemctl enable")


def test_the_compose_file_names_only_what_there_is(compose: dict[str, Any]) -> None:
    known = {name for name in compose if not name.startswith("x-")}
    assert known == TOP
    for name, service in compose["services"].items():
        assert set(service) <= SERVICE, name
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        for other, how in service.get("depends_on", {}).items():
            assert other in compose["services"]
            assert how["condition"] in CONDITIONS
        for volume in service["volumes"]:
            source, target = _resolved(volume).split(":")
            assert target.startswith("/")
            assert source in compose["volumes"] or source.startswith("/")
    assert {"postgres", "worker", "page"} <= set(compose["services"])


def test_writers_reach_postgres_from_this_machine_and_nobody_else_does(
    compose: dict[str, Any],
) -> None:
    """And they name tables by the paths that the worker sees, and can share their folders."""
    published = {
        name: [_resolved(port) for port in service.get("ports", ())]
        for name, service in compose["services"].items()
    }
    assert published.pop("postgres") == ["127.0.0.1:5432:5432"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    for name in ("worker", "page", "migrate"):
        service = compose["services"][name]
        (folder,) = service["volumes"]
        inside, outside = folder[: len(folder) // 2], folder[len(folder) // 2 + 1 :]
        assert inside == outside
        assert _resolved(service["user"]) == "10001:10001"
    guide = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    named = set(re.findall(r"\$\{(\w+):-", (DEPLOY / "docker-compose.yml").read_text("utf-8")))
    assert named == {"LAKE_FOLDER", "LAKE_UID", "LAKE_GID", "LAKE_PORT"}
    assert all(name in guide for name in named)


def test_docker_compose_reads_the_file() -> None:
    docker = shutil.which("docker")
    command = [docker, "compose"] if docker else []
    probe = (
        subprocess.run([*command, "version"], capture_output=True, check=False) if docker else None
    )
    if probe is None or probe.returncode:
        pytest.skip("docker compose is not installed")
    checked = subprocess.run(
        [*command, "-f", str(DEPLOY / "docker-compose.yml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_every_service_runs_a_command_of_ours_on_a_catalog(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        if "command" in service:
            _accepts(service["command"])
            url = service["environment"]["DELTALAKEDB_CATALOG"].replace("$$", "$")
            parse_url(url, environ={"LAKE_PASSWORD": "x"})


def test_secrets_come_from_files_and_are_in_none_of_ours(compose: dict[str, Any]) -> None:
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())
    for service in compose["services"].values():
        for name, value in service["environment"].items():
            if re.search("PASSWORD|TOKEN|SECRET|KEY", name):
                assert name.endswith("_FILE"), name
                assert value.removeprefix("/run/secrets/") in service["secrets"]
    script = (DEPLOY / "entrypoint.sh").read_text()
    assert {"LAKE_PASSWORD_FILE", "DELTALAKEDB_TOKEN_FILE"} <= set(re.findall(r"[A-Z_]+", script))


def test_the_entry_point_reads_the_password_from_its_file(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    secret = tmp_path / "lake_password"
    secret.write_text(f"{postgres_server.password}\n")
    database = postgres_server.create_database()
    address = f"127.0.0.1:{postgres_server.port}/{database}"
    done = subprocess.run(
        ["/bin/sh", str(DEPLOY / "entrypoint.sh"), "migrate", "--json"],
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "DELTALAKEDB_CATALOG": f"postgresql://{SUPERUSER}:${{LAKE_PASSWORD}}@{address}",
            "LAKE_PASSWORD_FILE": str(secret),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == "0001_ledger"


def test_the_image_is_made_of_known_instructions_and_what_is_sent_to_the_builder() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} == INSTRUCTIONS
    assert lines[0].startswith("FROM python:3.")
    sent = (DEPLOY.parent / ".dockerignore").read_text().split()
    for line in lines:
        if line.startswith("COPY"):
            source = next(word for word in line.split()[1:] if not word.startswith("--"))
            assert f"!{source}" in sent, source
    assert "USER lake" in lines
