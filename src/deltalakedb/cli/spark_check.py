"""What `deltalakedb doctor --spark` looks at: whether Spark starts, counts, and knows S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from deltalakedb.cli.check import Check

_COMMAND: Final = (sys.executable, "-m", "deltalakedb.spark.probe")
# A machine that is busy, or fetches the packages that Spark is configured with.
_PATIENCE_SECONDS: Final = 300.0
_S3: Final = ("s3:", "s3a:", "s3n:")


def check_spark(locations: Sequence[str], *, ready: bool) -> Iterator[Check]:
    """Start Spark in a process of its own, count a row and stop it; nothing of it stays."""
    if not ready:
        yield Check("spark", "skipped", "It cannot be started", "Fix its packages and Java first")
        return
    probe = _probe(_COMMAND)
    if isinstance(probe, str):
        yield Check(
            "spark",
            "wrong",
            f"Spark cannot be used: {probe}",
            "Run: python -m deltalakedb.spark.probe, which shows all that Spark prints",
        )
        return
    yield Check(
        "spark", "ok", f"Spark {probe['spark']} (Hadoop {probe['hadoop']}) counts {probe['rows']}"
    )
    yield _internals(probe)
    if any(location.lower().startswith(_S3) for location in locations):
        yield _s3(probe)


def _internals(probe: dict[str, Any]) -> Check:
    broken: dict[str, str] = probe["broken"]
    if not broken:
        return Check("spark internals", "ok", "Everything used beyond Spark's public API works")
    errors = "; ".join(f"{name} ({error})" for name, error in broken.items())
    return Check(
        "spark internals",
        "wrong",
        f"Spark {probe['spark']} lacks internals that deltalakedb uses: {errors}",
        "Use a version of PySpark that deltalakedb is tested with, or a newer deltalakedb",
    )


def _s3(probe: dict[str, Any]) -> Check:
    if probe["s3a"]:
        return Check("spark on s3", "ok", "Hadoop's S3A is on Spark's class path")
    package = f"org.apache.hadoop:hadoop-aws:{probe['hadoop']}"
    return Check(
        "spark on s3",
        "warning",
        "Hadoop's S3A is not on Spark's class path, so Spark cannot read tables on S3",
        f"Set spark.jars.packages={package} in spark-defaults.conf, or where your sessions begin",
    )


def _probe(command: Sequence[str]) -> dict[str, Any] | str:
    """The result, or one sentence that names the error."""
    with (
        tempfile.TemporaryDirectory(prefix="deltalakedb-doctor-") as folder,
        subprocess.Popen(  # noqa: S603 - this Python and a module of ours
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            out, err = process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"it did not answer for {_PATIENCE_SECONDS:g} seconds"
        finally:
            # Its Java, too, whatever happened.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    if process.returncode == 0 and lines:
        with suppress(json.JSONDecodeError):
            answer: dict[str, Any] = json.loads(lines[-1])
            return answer
    errors = [line.strip() for line in err.splitlines() if line.strip()]
    return errors[-1] if errors else f"it ended with {process.returncode}, without a message"
