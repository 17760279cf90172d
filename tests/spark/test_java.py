"""Which Java Spark gets, and what is said where there is none."""

from pathlib import Path

import pytest

from deltalakedb.errors import ConfigurationError
from deltalakedb.spark.java import java_home, main


def make_java(home: Path, version: str) -> Path:
    """A command that answers as a Java of this version does."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"echo 'openjdk version \"{version}\"' >&2\n"
    )
    command.chmod(0o755)
    return home


def found(tmp_path: Path, *, home: Path | None = None, path: Path | None = None) -> Path:
    """What is chosen with this JAVA_HOME and this PATH."""
    environ = {"PATH": str(path / "bin") if path else str(tmp_path / "empty")}
    if home:
        environ["JAVA_HOME"] = str(home)
    return java_home(environ, prefix=str(tmp_path / "venv"))


def test_java_home_comes_before_the_path_and_that_before_the_environment(tmp_path: Path) -> None:
    named, on_path = make_java(tmp_path / "a b", "21"), make_java(tmp_path / "path", "17")
    brought = make_java(tmp_path / "venv" / "java", "21")
    assert found(tmp_path, home=named, path=on_path) == named
    assert found(tmp_path, path=on_path) == on_path
    assert found(tmp_path) == brought


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "real", "17")
    (tmp_path / "links" / "bin").mkdir(parents=True)
    (tmp_path / "links" / "bin" / "java").symlink_to(home / "bin" / "java")
    assert found(tmp_path, path=tmp_path / "links") == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_one_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    old, new = make_java(tmp_path / "old", version), make_java(tmp_path / "new", "17")
    assert found(tmp_path, home=old, path=new) == new


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\n", "#!/no/such/shell\n"])
def test_a_command_that_is_no_java_is_passed_over(tmp_path: Path, text: str) -> None:
    broken, new = make_java(tmp_path / "broken", "17"), make_java(tmp_path / "new", "17")
    (broken / "bin" / "java").write_text(text)
    assert found(tmp_path, home=broken, path=new) == new
    assert found(tmp_path, home=tmp_path / "no such folder", path=new) == new


def test_without_any_the_error_says_what_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11")
    with pytest.raises(ConfigurationError, match="needs Java 17") as caught:
        found(tmp_path, home=old)
    assert f"JAVA_HOME ({old}) is Java 11; the PATH has no java; " in caught.value.why
    assert "openjdk-17" in caught.value.fix


def test_the_command_prints_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = make_java(tmp_path / "home", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert main() == 0
    assert capsys.readouterr().out == f"{home}\n"
