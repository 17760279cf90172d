"""Bring the engines that cannot live in .venv, for tests and benchmarks (`make peers`).

Each has a folder below build/peers: `sail` and `dbt` are environments of their own, `delta-spark`
holds the jars of Delta for Spark, `hadoop-aws` those of Hadoop for S3. What is there with the right
pins is left alone. One that cannot be brought (no Maven, no network) is no failure: the reason is
kept beside it, and tests skip with it. `spark-classes` is what Java keeps of Spark, to start it
faster: nothing is skipped without. Chromium, for the tests of the operations page, is the system's:
where it is missing apt brings it, for root on Debian and Ubuntu.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.java import java_home

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.chromium import MISSING, chromium  # noqa: E402 - tests look for it in the same way
from support.java_options import JAVA_OPTIONS  # noqa: E402 - Java wants the same options again

PINS = ROOT / "scripts" / "peers"
PEERS = ROOT / "build" / "peers"
CLASSES = ROOT / "scripts" / "spark_classes.py"

MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
# Spark ships the rest itself, mostly in newer versions.
JARS_OF = {
    "delta-spark": ("io.delta", "io.unitycatalog"),
    "hadoop-aws": (
        *("org.apache.hadoop", "software.amazon.awssdk", "software.amazon.eventstream"),
        *("software.amazon.s3.analyticsaccelerator", "org.reactivestreams"),
    ),
}


class CannotBringError(Exception):
    """Why a peer cannot be brought."""


def main() -> None:
    """Bring what is not there yet."""
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bring("sail", (PINS / "sail.txt", ROOT / "constraints.txt"), partial(environment, "sail"))
        bring("dbt", (PINS / "dbt.txt",), dbt)
        for name in JARS_OF:
            bring(name, (PINS / f"{name}.xml",), partial(jars, name))
        bring("spark-classes", (ROOT / "constraints.txt", CLASSES), spark_classes)
        bring_chromium()


def bring(name: str, pins: tuple[Path, ...], make: Callable[[Path], None]) -> None:
    """Make the folder of a peer, unless it was made with these pins."""
    folder, reason = PEERS / name, PEERS / f"{name}.missing"
    ready = folder / ".ready"
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in pins)).hexdigest()
    if ready.is_file() and ready.read_text() == digest:
        return
    print(f"peers: bringing {name} …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        make(folder)
    except CannotBringError as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason.write_text(str(error))
        print(f"peers: no {name}, tests that need it will be skipped: {error}", file=sys.stderr)
        return
    ready.write_text(digest)
    reason.unlink(missing_ok=True)


def environment(name: str, folder: Path) -> None:
    """An environment with the packages of a file of pins."""
    run(sys.executable, "-m", "venv", str(folder))
    python, pins = str(folder / "bin" / "python"), str(PINS / f"{name}.txt")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", pins)


def dbt(folder: Path) -> None:
    """An environment with dbt; PySpark, and what this project needs, are those of .venv."""
    environment("dbt", folder)
    (own,) = folder.glob("lib/python*/site-packages")
    others = [ROOT / "src", sysconfig.get_path("purelib")]
    (own / "project.pth").write_text("".join(f"{path}\n" for path in others))


def jars(name: str, folder: Path) -> None:
    """The jars of a peer, for `spark.jars`."""
    maven = shutil.which("mvn")
    if maven is None:
        raise CannotBringError(
            "Maven resolves it, and there is no `mvn` on the PATH (apt install maven)"
        )
    try:
        java = java_home()
    except DeltaLakeDbError as error:
        raise CannotBringError(str(error)) from error
    run(
        *(
            maven,
            "--batch-mode",
            "--quiet",
            "-Dstyle.color=never",
            "--file",
            str(PINS / f"{name}.xml"),
        ),
        *(f"{MAVEN_PLUGIN}:copy-dependencies", f"-DincludeGroupIds={','.join(JARS_OF[name])}"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={folder}"),
        JAVA_HOME=str(java),
    )
    if not any(folder.glob(f"{name}*.jar")):
        raise CannotBringError(f"Maven ended well, but brought no jar of {name}")


def spark_classes(folder: Path) -> None:
    """What Java remembers of the classes that Spark loads; only Java knows what is in it."""
    folder.mkdir()
    archive = folder / "classes.jsa"
    options = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    with tempfile.TemporaryDirectory(prefix="deltalakedb-classes-") as scratch:
        run(sys.executable, str(CLASSES), scratch, SPARK_SUBMIT_OPTS=options)
    if not archive.is_file():
        raise CannotBringError("this Java keeps no classes (-XX:ArchiveClassesAtExit)")


def bring_chromium() -> None:
    """Install Chromium where we may and where it is missing; else say what to do."""
    if chromium() is not None:
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0 or os.environ.get("DELTALAKEDB_CHROMIUM"):
        print(f"peers: its tests will be skipped: {MISSING}", file=sys.stderr)
        return
    print("peers: bringing chromium …", flush=True)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(apt, "update", "-qq", **quiet)
        run(apt, "install", "-y", "-qq", "--no-install-recommends", "chromium", **quiet)
    except CannotBringError as error:
        print(f"peers: no chromium, its tests will be skipped: {error}", file=sys.stderr)


def run(*command: str, **variables: str) -> None:
    """Run a command to its end; when it fails, what it said last is the reason."""
    try:
        answer = subprocess.run(
            command,
            env={**os.environ, **variables},
            check=False,
            timeout=600,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBringError(f"{Path(command[0]).name} failed: {error}") from error
    if answer.returncode:
        lines = [line.strip() for line in answer.stdout.splitlines() if "ERROR" in line]
        said = (lines or answer.stdout.strip().splitlines() or ["nothing said"])[0][:300]
        raise CannotBringError(f"{Path(command[0]).name} ended with {answer.returncode}: {said}")


if __name__ == "__main__":
    main()
