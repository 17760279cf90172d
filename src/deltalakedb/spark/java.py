"""The Java that a Spark session runs on, for users, the demo and the tests.

It is the first of these that is Java 17 or newer: JAVA_HOME, `java` on the PATH, the folder `java`
of this Python environment (`make setup` installs one there if the machine has none). If none is new
enough, the error lists all. `python -m deltalakedb.spark.java` prints the folder, or the error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError

# The oldest version for PySpark 4.
OLDEST = 17
# The module that starts Spark and tries it; it runs in a process of its own.
PROBE = "deltalakedb.spark.probe"
_PROPERTY = re.compile(r"^ *java\.(home|specification\.version) = (.*?)\r?$", re.MULTILINE)


def java_home(environ: Mapping[str, str] | None = None, *, prefix: str = sys.prefix) -> Path:
    """The folder that Spark needs as JAVA_HOME; ConfigurationError if no Java is new enough.

    `environ` are by default the variables of this process; `prefix` is its Python environment.
    """
    skipped: list[str] = []
    for origin, folder, path in _candidates(os.environ if environ is None else environ, prefix):
        command = shutil.which("java", path=path)
        java = _inspect(command) if command else "has no java"
        if isinstance(java, str):
            skipped.append(f"{origin} {java}")
        elif java[1] < OLDEST:
            skipped.append(f"{origin} is Java {java[1]}")
        else:
            return folder or java[0]
    raise ConfigurationError(
        f"Spark needs Java {OLDEST} or newer, and there is none",
        why="; ".join(skipped),
        fix="install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew "
        "install openjdk@17) and set JAVA_HOME where it is not on the PATH",
    )


def _candidates(
    environ: Mapping[str, str], prefix: str
) -> Iterator[tuple[str, Path | None, str | None]]:
    """The places to search: the name, the folder if it is known, and the path of the command."""
    if named := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME ({named})", Path(named), str(Path(named) / "bin")
    yield "the PATH", None, environ.get("PATH", os.defpath)
    yield f"the environment ({prefix})", Path(prefix) / "java", str(Path(prefix) / "java" / "bin")


def _inspect(command: str) -> tuple[Path, int] | str:
    """The home and major version of a Java, or an error."""
    try:
        answer = subprocess.run(  # noqa: S603 -- the user's PATH decides
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"has one that does not run: {error}"
    properties = dict(_PROPERTY.findall(answer.stderr))
    # Java 8 calls itself 1.8.
    version = properties.get("specification.version", "").removeprefix("1.")
    if answer.returncode or not version.isdecimal() or "home" not in properties:
        return f"has {command}, which prints no version (exit code {answer.returncode})"
    return Path(properties["home"]), int(version)


def main() -> int:
    """Print the folder, or an error; return the exit code."""
    try:
        sys.stdout.write(f"{java_home()}\n")
    except DeltaLakeDbError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
