"""Build the jar for Delta on Spark (`make jar`): src/deltalakedb/spark/delta/deltalakedb-delta.jar.

`javac` compiles jvm/src against the jars of PySpark and those of Delta (build/peers). What is there
from the same sources is left alone. Where the jar cannot be built (no JDK, no jars of Delta) the
reason is printed: everything else works without; with `--required` that is a failure.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.delta.jar import JAR, SOURCES_KEY
from deltalakedb.spark.java import java_home

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "jvm" / "src"
DELTA = ROOT / "build" / "peers" / "delta-spark"
RELEASE = "17"
OPTIONS = (
    *("--release", RELEASE, "-encoding", "UTF-8", "-Werror"),
    # -path: manifests of others' jars name jars that are not there. -overrides: Scala compiles
    # varargs to arrays. -classfile: Arrow has annotations that its jars lack.
    "-Xlint:all,-path,-overrides,-classfile",
)
# Each file of the same sources is the same file.
DATE = (1980, 1, 1, 0, 0, 0)


class CannotBuildError(Exception):
    """Why the jar cannot be built."""


def main() -> int:
    """Build the jar unless it is there; return the exit code."""
    try:
        if not is_current():
            build()
            print(f"jar: {JAR.relative_to(ROOT)}")
    except CannotBuildError as error:
        print(f"jar: Delta on Spark cannot be used with deltalakedb: {error}", file=sys.stderr)
        return 1 if "--required" in sys.argv[1:] else 0
    except subprocess.CalledProcessError as error:
        print(error.stdout, file=sys.stderr)
        return 1
    return 0


def is_current() -> bool:
    """Whether the jar was built from these sources."""
    if not JAR.is_file():
        return False
    with zipfile.ZipFile(JAR) as archive:
        return f"{SOURCES_KEY}: {digest()}" in archive.read("META-INF/MANIFEST.MF").decode()


def digest() -> str:
    """The digest of the sources and of what compiles them."""
    paths = [*sorted(SOURCES.rglob("*.java")), Path(__file__)]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:40]


def javac() -> str:
    """The compiler of the Java that Spark runs on, or of the PATH."""
    try:
        own = java_home() / "bin" / "javac"
    except DeltaLakeDbError as error:
        raise CannotBuildError(str(error)) from error
    command = str(own) if own.is_file() else shutil.which("javac")
    if command is None:
        raise CannotBuildError(
            f"its jar is compiled by javac, and there is none (Debian, Ubuntu: apt install "
            f"openjdk-{RELEASE}-jdk-headless)"
        )
    version = subprocess.run([command, "-version"], capture_output=True, text=True, check=True)
    number = re.search(r"\d+", version.stdout + version.stderr)
    if number is None or int(number[0]) < int(RELEASE):
        raise CannotBuildError(f"{command} is older than Java {RELEASE}")
    return command


def class_path() -> str:
    """The jars of PySpark and of Delta."""
    import pyspark

    if not any(DELTA.glob("delta-spark*.jar")):
        reason = DELTA.with_suffix(".missing")
        why = f": {reason.read_text()}" if reason.is_file() else "; `make peers` brings them"
        raise CannotBuildError(
            f"its jar is compiled against those of Delta, which are missing{why}"
        )
    spark = Path(pyspark.__file__).parent / "jars"
    return f"{DELTA}/*:{spark}/*"


def build() -> None:
    """Compile the sources, and pack the classes."""
    command = [javac(), *OPTIONS, "-cp", class_path()]
    with tempfile.TemporaryDirectory(prefix="deltalakedb-jar-") as folder:
        sources = [str(path) for path in sorted(SOURCES.rglob("*.java"))]
        subprocess.run(
            [*command, "-d", folder, *sources],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        pack(Path(folder))


def pack(classes: Path) -> None:
    """Write the jar in one step: a Spark may be about to read it."""
    manifest = f"Manifest-Version: 1.0\nCreated-By: deltalakedb\n{SOURCES_KEY}: {digest()}\n\n"
    unfinished = JAR.with_suffix(".tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", DATE), manifest)
        for path in sorted(classes.rglob("*.class")):
            entry = zipfile.ZipInfo(path.relative_to(classes).as_posix(), DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    unfinished.replace(JAR)


if __name__ == "__main__":
    sys.exit(main())
